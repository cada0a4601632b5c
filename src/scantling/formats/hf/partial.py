"""A config read as far as it goes: each value and each field for itself, the illegal ones left out.

``read`` stops at the first thing that is wrong; a linter must see past it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from msgspec import Struct

from scantling.errors import FieldError
from scantling.formats.hf.expression import evaluate
from scantling.formats.hf.read import classic_rope, one_original, text_part, value_of
from scantling.formats.hf.types import ModelType, kinds, model_type, model_types
from scantling.formats.hf.unseen import guess

MIXER_FIELD = re.compile(r"^mixers\['\w+'\]\['(\w+)'\]$")

BROKEN = (FieldError, TypeError, ValueError, LookupError, ZeroDivisionError, OverflowError)
"""What an expression over values that do not fit together may raise."""


class Partial(Struct, frozen=True, kw_only=True):
    """The values of a config by the keys of its model type.

    Args:
        kind: Its model type, or the known one it resembles most.
        config: The text part, rotary keys in one spelling.
        values: What each key of the type holds; the class default where it is not given.
        given: The spelling under which each key was found.
        refused: Why a value is none of its key, by the spelling.
    """

    kind: ModelType
    config: dict[str, Any]
    values: dict[str, Any]
    given: dict[str, str]
    refused: dict[str, FieldError]

    def field(self, name: str) -> Any:
        """A neutral field (``n_kv_head``), or None where the values do not say it.

        Example:
            >>> partial({"model_type": "llama", "num_attention_heads": 7}).field("n_head")
            7
        """
        text = self.kind.expressions.get(name)
        if text is None:
            return None
        try:
            return evaluate(text, self.values)
        except BROKEN:
            return None

    def whole(self, name: str) -> int | None:
        """A field that is a whole number above zero; None where it is not."""
        found = self.field(name)
        good = isinstance(found, int) and not isinstance(found, bool) and found > 0
        return found if good else None

    def key(self, name: str) -> str:
        """The key that says a neutral field, as this config spells it.

        Example:
            >>> partial({"model_type": "gpt2", "n_head": 5}).key("n_head")
            'n_head'
        """
        key = _field_keys(self.kind.name).get(name)
        return name if key is None else self.given.get(key, self.kind.spellings(key)[0])

    def has(self, name: str) -> bool:
        """Whether some key of the type says a neutral field.

        Example:
            >>> gpt2 = partial({"model_type": "gpt2"})
            >>> gpt2.has("n_head"), gpt2.has("n_kv_head")
            (True, False)
        """
        return name in _field_keys(self.kind.name)

    def says(self, key: str) -> bool:
        """Whether the config gives a key of its type, in any spelling."""
        return key in self.given


@functools.cache
def _field_keys(name: str) -> dict[str, str]:
    """The key of a model type that says each neutral field, the first of several."""
    kind, found = model_type(name), dict[str, str]()
    for key, text in kind.write.items():
        if key in kind.keys:
            found.setdefault(MIXER_FIELD.sub(r"\1", text), key)
    return found


def partial(config: dict[str, Any]) -> Partial:
    """Read the text part of a config value by value.

    Raises:
        FieldError: If nothing says what model type it is, or one that resembles none.

    Example:
        >>> found = partial({"model_type": "llama", "vocab_size": "many", "hidden_size": 100})
        >>> [str(e) for e in found.refused.values()], found.values["hidden_size"]
        (["vocab_size 'many' (text) must be a whole number"], 100)
    """
    own, name = text_part(config)
    own = classic_rope(own)
    kind = model_type(name) if name in model_types() else guess(own, name, assume=True)[0].kind
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    refused: dict[str, FieldError] = {}
    try:
        own = one_original(own)
    except FieldError as error:
        refused[error.path] = error
    for key, default in kind.keys.items():
        values[key] = default
        spelling = next((s for s in kind.spellings(key) if s in own), None)
        if spelling is None:
            continue
        given[key] = spelling
        try:
            values[key] = value_of(spelling, kinds()[key], own[spelling], [])
        except FieldError as error:
            refused[spelling] = error
    return Partial(kind=kind, config=own, values=values, given=given, refused=refused)
