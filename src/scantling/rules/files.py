"""Which models a command line means: names, files, folders and globs of configs."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from scantling.errors import FieldError
from scantling.formats.json_file import read_object

SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "site-packages"}
"""Folders whose configs are nobody's own."""


def expand(given: Iterable[str]) -> list[str]:
    """Every model that is meant, globs opened and folders searched, each once.

    A folder with a ``config.json`` is that model, with a checkpoint too; any other is searched for
    JSON files that say a model type. A name or a file stays as it is.

    Raises:
        FieldError: If a folder or a glob holds none.

    Example:
        >>> expand(["gpt2", "gpt2", "-"])
        ['gpt2', '-']
    """
    found: list[str] = []
    for name in given:
        path = Path(name)
        if any(c in name for c in "*?[") and not path.exists():
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - absolute ones too
            if not matches:
                raise FieldError("model", name, "matches no file")
            found += [m for m in matches if Path(m).is_dir() or _is_config(Path(m))]
        elif path.is_dir() and not (path / "config.json").is_file() and not _weights(path):
            inside = [str(p) for p in _search(path)]
            if not inside:
                raise FieldError("model", name, "is a folder without a config of a model")
            found += inside
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def _weights(path: Path) -> bool:
    return any(p.suffix in {".safetensors", ".gguf"} for p in path.iterdir())


def _search(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.json")):
        if not SKIPPED & set(path.parts) and _is_config(path):
            yield path


def _is_config(path: Path) -> bool:
    """Whether a file holds the config of a model; other JSON is passed over."""
    if path.suffix != ".json":
        return path.suffix in {".safetensors", ".gguf"}
    try:
        config, _ = read_object(path)
    except FieldError:
        return path.name == "config.json"  # one that cannot be read is told of
    inner = config.get("text_config")
    return "model_type" in config or (isinstance(inner, dict) and "model_type" in inner)
