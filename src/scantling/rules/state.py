"""Recurrent layers: groups, heads and widths that must divide (SC121 to SC123)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from scantling.rules.registry import Fix, Found, rule
from scantling.rules.subject import Subject
from scantling.spec import GatedDelta, Mamba1, Mamba2, RgLru
from scantling.spec.relations import RELATIONS

TAGS: dict[str, type] = {
    "mamba2": Mamba2, "mamba1": Mamba1, "gated_delta": GatedDelta, "rglru": RgLru,
}  # fmt: skip
"""Modules by the tag that a config's mixers are read under."""


@rule("SC121", "state-divides", "transformers", reads="config")
def state_divides(s: Subject) -> Iterator[Found]:
    """Heads of a recurrent layer divide its inner width, groups divide heads.

    Mamba-2 splits its inner width into heads of P = d_inner/H each, and shares B and C among the
    heads of a group; the gated delta rule shares keys among value heads; RG-LRU's gates are blocks
    of the width. None of these can be cut unevenly. (The relations of ``spec/relations.py``.)

    Exceptions: none.
    """
    mixers = s.raw.field("mixers")
    for mixer in mixers.values() if isinstance(mixers, dict) else ():
        given = _fields(mixer)
        kind = TAGS.get(str(given.get("type")))
        for relation in RELATIONS:
            if relation.of is not kind:
                continue
            try:
                module: Any = SimpleNamespace(**given)
                if relation.holds(module):
                    continue
                message, hint = relation.message(module), relation.hint(module)
            except (TypeError, AttributeError, ZeroDivisionError):
                continue  # a value that is none of its key: SC001 tells
            key, value = s.raw.key(relation.field), given[relation.field]
            fix = Fix(text=f"{key}: {hint}") if hint else None
            yield Found("error", key, f"{key} {value} {message}", fix)


def _fields(mixer: Any) -> dict[str, Any]:
    if isinstance(mixer, dict):
        return {"n_select_head": None, "n_group": 1, **mixer}
    return {}


@rule("SC122", "state-width", "nvidia-matmul-guide")
def state_width(s: Subject) -> Iterator[Found]:
    """The inner width of a recurrent layer is a multiple of 64, its convolution 2 to 4 wide.

    The projections in and out are products whose width is d_inner; kernels of short convolutions
    (``causal_conv1d``) are compiled for 2, 3 and 4 taps.

    Exceptions: none in the released models looked at.
    """
    for path, node in s.modules:
        if not isinstance(node, Mamba1 | Mamba2):
            continue
        inner, taps = int(node.d_inner), int(node.d_conv)
        if inner % 64:
            near = round(inner / 64) * 64 or 64
            yield Found("warning", s.key("d_inner"), f"{path}: an inner width of {inner} is no "
                        "multiple of 64: products of it are padded", Fix(text=f"{near}")
            )  # fmt: skip
        if not 2 <= taps <= 4:
            yield Found("warning", s.key("d_conv"), f"{path}: a convolution of {taps} taps; the "
                        "fast kernel takes 2 to 4", Fix(text=f"{s.key('d_conv')} 4"),
                        source=("causal-conv1d",))  # fmt: skip
            return


@rule("SC123", "recurrent-only", "samba2024")
def recurrent_only(s: Subject) -> Iterator[Found]:
    """A few attention layers among recurrent ones keep recall; none at all does not.

    A state of fixed size cannot hold every token. At 0.35 to 8B, 8 to 25 % of attention layers are
    −0.02 nats against attention alone and against recurrence alone (ablations, section 1);
    what loss does not see is recall at a distance.

    Exceptions: Mamba and RWKV models, on purpose.
    """
    kinds = {type(branch.module).__name__ for layer in s.legal.decoder.kinds
             for block in layer.blocks for branch in block.branches}  # fmt: skip
    recurrent = kinds & {"Mamba1", "Mamba2", "Rwkv", "GatedDelta", "KimiDelta", "LinearAttention",
                         "RgLru"}  # fmt: skip
    if recurrent and not kinds & {"GroupedAttention", "LatentAttention", "CompressedAttention"}:
        yield Found("info", "layers", "no layer attends: recall at a distance is bounded by the "
                    "state, and no loss shows it")  # fmt: skip
