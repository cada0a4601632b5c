"""A spec as a Hugging Face config.json."""

from __future__ import annotations

import json

from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.context import far_rope
from scantling.formats.registry import Exported, register
from scantling.formats.target import scaling_of
from scantling.spec import Spec


@register("hf")
def export(spec: Spec) -> Exported:
    """The config of the first model type that says exactly the same.

    Raises:
        ScantlingError: If no model type of the table can say it.

    Example:
        >>> from scantling import catalog
        >>> export(catalog.model("qwen3-8b")).values["head_dim"]
        128
    """
    kind = scaling_of(far_rope(spec)).get("rope_type")
    try:
        config = hf.write(spec)
    except FieldError:
        if kind is None:
            raise
        rule = "cannot be written: no class of the table that fits this model reads it"
        raise FieldError("rope_scaling", kind, rule) from None
    notes = []
    if kind == "llama3":
        notes.append("rope_type llama3 needs transformers 4.43 or newer")
    return Exported("hf", config, json.dumps(config, indent=2) + "\n", tuple(notes))
