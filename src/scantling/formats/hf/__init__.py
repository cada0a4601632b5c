"""Hugging Face ``config.json``, both ways; the facts are data in ``data/hf_types.toml``."""

from scantling.formats.hf.read import Imported, read
from scantling.formats.hf.types import ModelType, kinds, model_type, model_types
from scantling.formats.hf.write import write

__all__ = ["Imported", "ModelType", "kinds", "model_type", "model_types", "read", "write"]
