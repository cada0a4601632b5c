"""Outside descriptions of models, read into a spec and written from one."""
