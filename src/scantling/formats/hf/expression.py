"""The small expressions of ``data/hf_types.toml``: a subset of Python over config keys."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from scantling.arith import ceil_div, round_up
from scantling.errors import FieldError
from scantling.spec.relations import near_divisors

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
        raise FieldError(by, b, f"must divide {name} {a}", near_divisors(a, b))
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


def layer_names(
    windowed: bool | Sequence[bool], window: int | None, chunk: int | None, n: int
) -> list[str] | None:
    """The ``layer_types`` list, or none where all layers are alike."""
    if window is None and chunk is None:
        return None
    local = "sliding_attention" if window is not None else "chunked_attention"
    return [local if w else "full_attention" for w in over(windowed, n)]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exact": exact, "window_of": window_of, "named": named, "over": over, "first": first,
    "layer_names": layer_names, "range": range, "bool": bool, "int": int, "dict": dict, "len": len, "max": max, "min": min,
    "round_up": round_up, "ceil_div": ceil_div, "str": str, "enumerate": enumerate,
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
