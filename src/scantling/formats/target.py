"""What a target can say, and one reading of a plain decoder for all exporters.

A target lists for each struct of a spec the fields it can express; anything else that is not at
its default is refused by name, so a part that is new to ``spec`` is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from scantling.errors import FieldError
from scantling.spec import (
    Block,
    Branch,
    Dense,
    Embeddings,
    Experts,
    Full,
    GroupedAttention,
    Head,
    LatentAttention,
    Layer,
    Norm,
    Plain,
    Rope,
    Router,
    Run,
    Spec,
    Stack,
    Window,
)
from scantling.spec.rotation import scaling_settings
from scantling.spec.vary import nodes

T = TypeVar("T")
V = TypeVar("V")

Grammar = Mapping[type, str]
"""The fields of each struct that a target can say, as words."""

DECODER: dict[type, str] = {
    Spec: "d_model vocab_size decoder embeddings tied head max_context",
    Stack: "kinds layout final_norm",
    Run: "pattern n",
    Layer: "name blocks",
    Embeddings: "",
    Head: "",
    Block: "branches pre",
    Branch: "module",
    Norm: "kind scale bias",
    Plain: "",
    Full: "",
    Rope: "theta",
    GroupedAttention: "n_head n_kv_head d_head position span",
    Dense: "d_ff gated activation",
}
"""What every target of decoders can say: pre-norm blocks of rotary GQA and a feed-forward."""


class Parts(Struct, frozen=True):
    """One layer as exporters read it: a mixer and a feed-forward with their blocks."""

    kind: str
    mixer: GroupedAttention | LatentAttention
    feedforward: Dense | Experts
    first: Block
    last: Block
    """The block of the feed-forward: the first one too, where they stand side by side."""

    @property
    def parallel(self) -> bool:
        """Whether attention and feed-forward read the same stream."""
        return self.first is self.last


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """The default of a field; a field without one has itself as a mark."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def refuse_beyond(spec: Spec, grammar: Grammar, target: str) -> None:
    """Refuse every part of a spec that a grammar does not list.

    Raises:
        FieldError: Naming the first such part by its path.

    Example:
        >>> from scantling import catalog
        >>> refuse_beyond(catalog.model("gpt-oss-20b"), DECODER, "plain")
        Traceback (most recent call last):
            ...
        scantling.errors.FieldError: decoder.local.attention.qkv_bias True cannot be said in plain
    """
    if spec.encoder is not None:
        raise FieldError("encoder", None, f"cannot be said in {target}", "decoders only")
    if spec.head is None:
        raise FieldError("head", None, f"is missing, which {target} cannot say")
    for path, node in nodes(spec):
        said = grammar.get(type(node))
        if said is None:
            name = type(node).__name__
            raise FieldError(path or "spec", name, f"cannot be said in {target}")
        known = said.split()
        if isinstance(node, Router) and node.scoring not in {"softmax", "sigmoid", *known}:
            raise FieldError(f"{path}.scoring", node.scoring, f"cannot be said in {target}")
        for field in msgspec.structs.fields(type(node)):
            value = getattr(node, field.name)
            if field.name not in known and value != default_of(field):
                where = f"{path}.{field.name}" if path else field.name
                shown = type(value).__name__ if isinstance(value, Struct | tuple) else value
                raise FieldError(where, shown, f"cannot be said in {target}")


def layers_of(spec: Spec, target: str) -> list[Parts]:
    """Every layer of a decoder in order, as a mixer and a feed-forward.

    Raises:
        FieldError: If a layer has other blocks.
    """
    found = {}
    for kind in spec.decoder.kinds:
        parts = _parts(kind)
        if parts is None:
            what = f"is no layer of attention and feed-forward, which {target} needs"
            raise FieldError(f"decoder.{kind.name}", None, what)
        found[kind.name] = parts
    return [found[name] for name in spec.decoder.expand()]


def _parts(kind: Layer) -> Parts | None:
    pairs = [(branch.module, block) for block in kind.blocks for branch in block.branches]
    if len(pairs) != 2:
        return None
    (mixer, first), (feedforward, last) = pairs
    if not isinstance(mixer, GroupedAttention | LatentAttention):
        return None
    if not isinstance(feedforward, Dense | Experts):
        return None
    return Parts(kind.name, mixer, feedforward, first, last)


def only(items: Iterable[T], read: Callable[[T], V], path: str, target: str) -> V:
    """The one value that all layers share; a target with one setting for all needs it.

    Raises:
        FieldError: If the layers differ.
    """
    values = list(dict.fromkeys(read(item) for item in items))
    if len(values) > 1:
        shown = " and ".join(str(_plain(v)) for v in values[:3])
        raise FieldError(path, shown, f"differ between layers, which {target} cannot say")
    return values[0]


def _plain(value: object) -> object:
    return type(value).__name__ if isinstance(value, Struct) else value


def need(holds: object, path: str, value: object, rule: str, hint: str = "") -> None:
    """Raise a field error unless a condition holds."""
    if not holds:
        raise FieldError(path, value, rule, hint)


def norm_of(spec: Spec, target: str) -> Norm:
    """The one norm of the stream, which the final norm must share.

    Raises:
        FieldError: If norms differ, or the final norm is missing.
    """
    final = spec.decoder.final_norm
    if final is None:
        raise FieldError("decoder.final_norm", None, f"is missing, which {target} cannot say")
    for path, block in nodes(spec.decoder, "decoder"):
        if isinstance(block, Block | Branch):
            for name in ("pre", "post", "after"):
                norm = getattr(block, name, None)
                need(norm is None or norm == final, f"{path}.{name}", norm and norm.kind,
                     f"differs from the final norm, which {target} cannot say")  # fmt: skip
    return final


def pre_normed(spec: Spec, layers: list[Parts], target: str) -> None:
    """Require one serial pre-norm block for the mixer and one for the feed-forward."""
    for layer in layers:
        path = f"decoder.{layer.kind}"
        need(not layer.parallel, path, "parallel blocks", f"cannot be said in {target}")
        need(layer.first.pre and layer.last.pre, path, None,
             f"has a block without a norm before it, which {target} cannot say")  # fmt: skip
    norm_of(spec, target)


def rope_of(layers: list[Parts], target: str) -> Rope | None:
    """The one rotary setting of all layers that rotate, none if no layer does."""
    found = [p.mixer.position for p in layers if isinstance(p.mixer.position, Rope)]
    return only(found, lambda r: r, "attention.position", target) if found else None


def scaling_of(rope: Rope | None) -> dict[str, Any]:
    """The context extension of a rotary setting as a dictionary, its kind under ``rope_type``."""
    return scaling_settings(rope)


def windows_of(layers: list[Parts], target: str) -> tuple[int | None, list[int]]:
    """The one window width, and a 1 for each layer that has it."""
    flags = [int(isinstance(p.mixer.span, Window)) for p in layers]
    spans = [p.mixer.span for p in layers if isinstance(p.mixer.span, Window)]
    if not spans:
        return None, flags
    return int(only(spans, lambda s: int(s.window), "attention.span.window", target)), flags


def corrected(router: Router, target: str) -> bool:
    """Whether a router has a load-balancing bias that is a buffer, as targets keep it."""
    need(router.correction != "parameter", "ffn.router.correction", "parameter",
         f"cannot be said in {target}", "use buffer")  # fmt: skip
    return bool(router.correction)


def cycle(flags: list[int]) -> str:
    """A list over the layers as the short expression some tools read.

    Example:
        >>> cycle([0, 0, 0, 1, 1]), cycle([1, 0, 1, 0, 1, 0]), cycle([1, 0, 1])
        ('([0]*3+[1]*2)', '([1]*1+[0]*1)*3', '([1]*1+[0]*1+[1]*1)')
    """
    n = len(flags)
    period = next(p for p in range(1, n + 1) if n % p == 0 and flags == flags[:p] * (n // p))
    runs: list[list[int]] = []
    for flag in flags[:period]:
        if runs and runs[-1][0] == flag:
            runs[-1][1] += 1
        else:
            runs.append([flag, 1])
    text = "+".join(f"[{flag}]*{times}" for flag, times in runs)
    return f"({text})" + (f"*{n // period}" if n > period else "")


def number(value: float) -> int | float:
    """A float that is whole as an int: 10000.0 is 10000."""
    return int(value) if float(value).is_integer() else value


def context_of(spec: Spec) -> int | None:
    """Positions the model was made for, if it says so."""
    return None if spec.max_context is None else int(spec.max_context)
