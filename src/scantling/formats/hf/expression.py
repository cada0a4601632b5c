"""The small expressions of ``data/hf_types.toml``: a subset of Python over config keys."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from scantling.arith import ceil_div, round_up
from scantling.errors import FieldError
from scantling.formats.hf.layout import freeze, thaw
from scantling.spec.relations import head_fit, near_divisors

ALLOWED = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.ListComp, ast.comprehension, ast.Store, ast.Call, ast.Subscript,
    ast.Tuple, ast.List,
    ast.Dict, ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Nothing here reaches an attribute, a lambda or an import."""


def exact(name: str, a: int, by: str, b: int) -> int:
    """A / b where it must be whole: no head width is floored in silence."""
    if a % b:
        hint = head_fit(a, b).hint(name) if by.endswith("heads") else near_divisors(a, b)
        raise FieldError(by, b, f"must divide {name} {a}", hint)
    return a // b


def window_of(window: int | None) -> bool:
    """Whether a window that all layers share is there at all (0 and null mean none)."""
    return bool(window)


def named(kinds: Sequence[str], wanted: str) -> list[bool]:
    """Which layers of a list of kinds are of one kind."""
    return [kind == wanted for kind in kinds]


def over(flags: bool | Sequence[bool], n: int) -> list[bool]:
    """A flag for each layer, from one for all or a list."""
    return [flags] * n if isinstance(flags, bool) else list(flags)


def first(flags: bool | Sequence[bool], n: int) -> int:
    """The first layer that has a flag; n if none has."""
    listed = over(flags, n)
    return listed.index(True) if True in listed else n


def spacing(flags: Sequence[bool]) -> int:
    """How far apart the first two flags of a list are; past its end where there are not two.

    Example:
        >>> spacing([False, True, False, True]), spacing([True, False]), spacing([False])
        (2, 2, 2)
    """
    found = [i for i, flag in enumerate(flags) if flag]
    return found[1] - found[0] if len(found) > 1 else len(flags) + (not found)


def layer_names(
    windowed: bool | Sequence[bool], window: int | None, chunk: int | None, n: int
) -> list[str] | None:
    """The ``layer_types`` list, or none where all layers are alike."""
    if window is None and chunk is None:
        return None
    local = "sliding_attention" if window is not None else "chunked_attention"
    return [local if w else "full_attention" for w in over(windowed, n)]


def pattern_of(pattern: int | str, n: int) -> list[bool]:
    """Which layers look through the window: all but each p-th, or the L of a word of L and G.

    Example:
        >>> pattern_of(4, 4), pattern_of("LG", 4)
        ([True, True, True, False], [True, False, True, False])
    """
    if isinstance(pattern, str):
        return [pattern[i % len(pattern)] == "L" for i in range(n)]
    return [(i + 1) % pattern != 0 for i in range(n)]


def last_word(text: str) -> str:
    """What follows the last hyphen: the activation of ``gated-silu``."""
    return text.rpartition("-")[2]


def unrolled(runs: Sequence[Any]) -> list[str]:
    """Kinds of layers from runs of [kinds, times].

    Example:
        >>> unrolled([[["global", "local"], 2], [["global"], 1]])
        ['global', 'local', 'global', 'local', 'global']
    """
    try:
        return [str(kind) for kinds, times in runs for _ in range(times) for kind in kinds]
    except (TypeError, ValueError) as error:
        raise FieldError("attention_types", runs, "must be runs of [kinds, times]") from error


def spread(value: Any, n: int) -> list[Any]:
    """A list over the layers, from one value for all or the list itself.

    Example:
        >>> spread(64, 2), spread([64, 32], 2)
        ([64, 64], [64, 32])
    """
    return value if isinstance(value, list) else [value] * n


def of_layer(entries: dict[str, Any], i: int, key: str, default: Any) -> Any:
    """A value of one layer from entries by number, or the default of all layers.

    Example:
        >>> of_layer({"1": {"head_dim": 512}}, 1, "head_dim", 256), of_layer({}, 0, "head_dim", 256)
        (512, 256)
    """
    entry = entries.get(str(i), {})
    if not isinstance(entry, dict):
        raise FieldError(f"per_layer_config.{i}", entry, "must be an object")
    return entry.get(key, default)


def pick(settings: dict[str, Any] | None, key: str, default: Any) -> Any:
    """A value of a nested object, or a default where it is missing."""
    return (settings or {}).get(key, default)


def pairs(settings: dict[str, Any] | None) -> tuple[tuple[str, Any], ...] | None:
    """Settings as sorted pairs, as a spec keeps them; ``unpaired`` is the way back.

    Example:
        >>> pairs({"type": "yarn", "factor": 4.0})
        (('factor', 4.0), ('type', 'yarn'))
    """
    return None if settings is None else freeze(settings)


def defaulted(
    settings: dict[str, Any] | None, key: str, value: Any, kind: str | None = None
) -> dict[str, Any] | None:
    """Settings with what a class adds where it is not given, if they are of one kind.

    Example:
        >>> defaulted({"type": "longrope"}, "factor", 4.0)
        {'factor': 4.0, 'type': 'longrope'}
    """
    own = pick(settings, "rope_type", pick(settings, "type", None))
    if not settings or value is None or (kind is not None and own != kind):
        return settings
    return {key: value, **settings}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exact": exact, "window_of": window_of, "named": named, "over": over, "first": first,
    "spacing": spacing, "layer_names": layer_names, "range": range, "bool": bool, "int": int,
    "dict": dict,
    "len": len, "max": max, "min": min, "pattern_of": pattern_of, "last_word": last_word,
    "pick": pick, "unrolled": unrolled, "round_up": round_up, "ceil_div": ceil_div, "str": str,
    "enumerate": enumerate, "spread": spread, "of_layer": of_layer, "pairs": pairs, "round": round,
    "unpaired": thaw, "defaulted": defaulted,
}  # fmt: skip


@functools.cache
def parse(text: str) -> tuple[CodeType, frozenset[str]]:
    """Compile an expression; also the names it reads.

    Example:
        >>> code, names = parse("head_dim or hidden_size // num_attention_heads")
        >>> sorted(names)
        ['head_dim', 'hidden_size', 'num_attention_heads']
    """
    tree = ast.parse(text, mode="eval")
    bound: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        assert isinstance(node, ALLOWED), f"{text}: {type(node).__name__} is not allowed"
        if isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else names).add(node.id)
    read = frozenset(names - bound - set(FUNCTIONS))
    return compile(tree, text, "eval"), read


def evaluate(text: str, values: dict[str, Any]) -> Any:
    """The value of an expression over config keys or neutral fields.

    Example:
        >>> evaluate("head_dim or hidden_size // 2", {"head_dim": None, "hidden_size": 8})
        4
    """
    code, _ = parse(text)
    return eval(code, {"__builtins__": {}, **FUNCTIONS, **values})  # noqa: S307 - own data, checked
