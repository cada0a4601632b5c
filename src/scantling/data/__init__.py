"""Data of the package: TOML files, a source per number."""
