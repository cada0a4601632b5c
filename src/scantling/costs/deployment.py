"""Whether a model can be served as asked: splits, quantisation blocks, kernels; what would do."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Num
from scantling.costs.blocks import whole_number
from scantling.costs.flash import fused_kernels, takes, tile
from scantling.costs.parallel import (
    Problem,
    kv_replication,
    near_kv,
    near_multiple,
    nearest_change,
    problems,
    tp_reasons,
)
from scantling.costs.quantize import Scheme, scheme, support
from scantling.costs.ranks import Placed, expert_tp, padded_vocab, placed_operators
from scantling.costs.weights import ALONE, is_packed, size_notes
from scantling.errors import FieldError
from scantling.hardware import Chip, cluster
from scantling.ops import Tensor
from scantling.sources import read_data
from scantling.spec import Experts, GroupedAttention, LatentAttention, Spec, vary
from scantling.spec.plan import Plan
from scantling.spec.vary import nodes

# ---------------------------------------------------------------- matrices of a split model


class Cut(Struct, frozen=True, kw_only=True):
    """One side of a packed matrix on a rank, against the units of its scheme."""

    tensor: str
    part: str
    side: Literal["in", "out"]
    width: int
    """Of the whole matrix."""
    degree: int
    per_rank: Num
    unit: int
    units_per_rank: Num
    ok: bool
    merged: bool
    """Whether it lies in one product with others, where each must align for itself."""
    kernel: str = ""
    """What the fast kernel says against it, where the scheme itself does not."""

    @property
    def text(self) -> str:
        """In words, with the numbers."""
        ways = f"{self.width} / {self.degree} = {self.per_rank:g}" if self.degree > 1 else str(
            self.width)  # fmt: skip
        side = "inputs" if self.side == "in" else "outputs"
        count = f"{self.units_per_rank:g} units of {self.unit}"
        whole = "" if self.ok else ", not a whole number"
        return f"{self.tensor}: {ways} {side} are {count}{whole}"


def cuts(spec: Spec, quant: Scheme | str, plan: Plan = ALONE) -> tuple[Cut, ...]:
    """Every side of a packed matrix whose groups or blocks a split could cut.

    A group runs along the inputs, so it is cut where a rank has a slice of the inputs (``o``,
    ``down``), or does not fill the matrix at all. A block is also cut along the outputs, of each
    matrix for itself where several are one product (q, k, v; gate and up): even unsplit.

    Args:
        spec: One model.
        quant: A scheme or its name.
        plan: How it is split.

    Example:
        >>> from scantling import catalog
        >>> found = cuts(catalog.model("qwen2.5-0.5b"), "gptq-int4", Plan(tp=2))
        >>> [c.text for c in found if not c.ok]
        ['decoder.layer.attention.o: 896 / 2 = 448 inputs are 3.5 units of 128, not a whole number']
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    rank = {t.name: t for p in placed_operators(spec, replace(plan, pp=1), 1) for t in p.op.tensors}
    found: list[Cut] = []
    for placed in placed_operators(spec, Plan(), 1):
        matrices = [t for t in placed.op.tensors if is_packed(one, placed, t)]
        for t in matrices:
            merged = len(matrices) > 1 and t.part != "mixer"  # a mixer's are stored as one
            found += _sides(one, placed, t, rank[t.name], plan, merged=merged)
    return tuple(found)


def _sides(
    one: Scheme, placed: Placed, t: Tensor, own: Tensor, plan: Plan, *, merged: bool
) -> Iterator[Cut]:
    degree = expert_tp(plan) if t.experts is not None else plan.tp
    out, inner = int(t.shape[0]), int(t.shape[1])
    split_in = degree if placed.split == "in" else 1
    divided = placed.split == "out" or int(own.shape[0]) != out
    split_out = degree if divided and placed.split != "in" else 1
    n = out / split_out if out % split_out else int(own.shape[0])
    k = inner / split_in
    kernel = _kernel(one, n, k)
    unit = 1 if one.dealt else one.in_unit
    if unit > 1 or kernel:
        ok = k % unit == 0 or (one.out_unit > 1 and split_in == 1)
        yield Cut(
            tensor=t.name, part=t.part, side="in",
            width=inner, degree=split_in, per_rank=whole_number(k),
            unit=unit, units_per_rank=whole_number(k / unit), ok=ok, merged=merged, kernel=kernel,
        )  # fmt: skip
    unit = max(one.out_unit, one.out_multiple)
    if unit > 1 and (placed.split != "whole" or split_out > 1):
        checked = split_out > 1 or merged or one.out_multiple > 1
        shares = out // int(n) if n == int(n) and out % int(n) == 0 else split_out
        yield Cut(
            tensor=t.name, part=t.part, side="out",
            width=out, degree=shares, per_rank=whole_number(n),
            unit=unit, units_per_rank=whole_number(n / unit), ok=not checked or n % unit == 0,
            merged=merged,
        )  # fmt: skip


def _kernel(one: Scheme, n: Num, k: Num) -> str:
    """What fast kernels say of a rank's matrix; empty where they take it."""
    if n % one.multiple or k % one.multiple:
        return f"kernels pad {n:g} × {k:g} of a rank to multiples of {one.multiple}"
    if not one.tiles or any(n % a == 0 and k % b == 0 for a, b in one.tiles):
        strict = one.strict
        if strict is None or (n % strict[0] == 0 and k % strict[1] == 0):
            return ""
        odd = f"k {k:g} is no multiple of {strict[1]}" if k % strict[1] else (
            f"n {n:g} is no multiple of {strict[0]}")  # fmt: skip
        return f"Marlin kernels of older releases do not take it: {odd} on a rank"
    pairs = " or ".join(f"n % {a} and k % {b}" for a, b in one.tiles)
    return f"Marlin kernels take {pairs}; n {n:g}, k {k:g} is padded, or runs on a slower kernel"


# ---------------------------------------------------------------- degrees


def valid_tp(
    spec: Spec, quant: Scheme | str = "bf16", most: int = 128, expert_tp: int | None = None
) -> list[int]:  # fmt: skip
    """Tensor-parallel degrees that heads, feed-forwards and the scheme's groups allow.

    Args:
        spec: One model.
        quant: A scheme or its name.
        most: The largest degree asked for.
        expert_tp: The degree of the experts, 1 with expert parallelism; None is that of the rest.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("qwen2.5-0.5b")
        >>> valid_tp(spec), valid_tp(spec, "gptq-int4"), valid_tp(spec, "gptq-int4-g32")
        ([1, 2], [1], [1, 2])
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    return [
        n for n in range(1, most + 1)
        if not any(tp_reasons(spec, n)) and not any(expert_reasons(spec, expert_tp or n))
        and all(c.ok for c in cuts(spec, one, Plan(tp=n, expert_tp=expert_tp)))
    ]  # fmt: skip


def expert_reasons(spec: Spec, degree: int) -> Iterator[str]:
    """Why experts cannot be split by tensor over so many ranks."""
    for width in sorted({int(n.d_expert) for _, n in nodes(spec) if isinstance(n, Experts)}):
        if width % degree:
            yield f"{width} columns of an expert cannot be split over TP {degree}"


FIELDS = {
    "o": "n_head", "q": "n_head", "q_up": "n_head", "kv_up": "n_head", "down": "d_ff",
    "gate": "d_ff", "up": "d_ff", "experts_down": "d_expert", "experts_up": "d_expert",
    "experts_gate": "d_expert", "shared_down": "d_shared", "shared_up": "d_shared",
    "shared_gate": "d_shared",
}  # fmt: skip
"""The dimension whose slice a side of a matrix is."""


def nearest_shape(
    spec: Spec, degree: int, quant: Scheme | str = "bf16", expert_tp: int | None = None
) -> dict[str, int]:  # fmt: skip
    """The smallest changes of shape that make a tensor-parallel degree valid: field -> value.

    First what divides heads and columns (``nearest_change``), then, for every group or block still
    cut, the nearest multiple of unit × degree; heads move in whole heads.

    Returns:
        Empty where it is valid already, or where no such change is known to help.

    Example:
        >>> from scantling import catalog
        >>> nearest_shape(catalog.model("qwen2.5-0.5b"), 2, "gptq-int4")
        {'n_head': 16, 'n_kv_head': 2}
        >>> nearest_shape(catalog.model("qwen3-30b-a3b"), 4, "fp8-block")
        {'d_expert': 1024}
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    changes = nearest_change(spec, "tp", degree)
    for width in {int(n.d_expert) for _, n in nodes(spec) if isinstance(n, Experts)}:
        if width % (expert_tp or degree):
            changes["d_expert"] = near_multiple(width, expert_tp or degree)
    plan = Plan(tp=degree, expert_tp=expert_tp)
    for c in cuts(_changed(spec, changes), one, plan):
        field = None if c.part == "mixer" else FIELDS.get(c.tensor.rpartition(".")[2])
        inside = c.side == "out" or c.tensor.rpartition(".")[2].endswith(("o", "down"))
        if c.ok or field is None or not inside:
            continue
        ranks = (expert_tp or degree) if field == "d_expert" else degree
        step, width = c.unit * ranks, c.width
        if field == "n_head":
            heads = changes.get("n_head", int(spec.n_head))
            each = width // heads
            step = step // math.gcd(step, each)
            changes["n_head"] = near_multiple(heads, step)
            if any(isinstance(n, GroupedAttention) for _, n in nodes(spec)):
                kv = changes.get("n_kv_head", int(spec.n_kv_head))
                changes["n_kv_head"] = near_kv(kv, changes["n_head"], degree)
        else:
            changes[field] = near_multiple(width, step)
    after = _changed(spec, changes)
    good = all(c.ok for c in cuts(after, one, plan))
    return changes if good and not any(tp_reasons(after, degree)) else {}


def _changed(spec: Spec, changes: dict[str, int]) -> Spec:
    return vary(spec, **changes) if changes else spec


# ---------------------------------------------------------------- heads and kernels


def head_widths(spec: Spec) -> dict[tuple[int, int], str]:
    """The (key, value) widths that attention kernels meet, and a layer that has each.

    Latent attention decodes absorbed: keys of rank + rotary width, values of the rank.

    Example:
        >>> from scantling import catalog
        >>> head_widths(catalog.model("deepseek-v3"))
        {(192, 128): 'decoder.dense.attention, prefill', (576, 512): 'decoder.dense.attention, decode'}
    """  # noqa: E501 - an example is one line
    found: dict[tuple[int, int], str] = {}
    for path, node in nodes(spec):
        if isinstance(node, GroupedAttention):
            width = int(node.d_head)
            value = width if node.d_value is None else int(node.d_value)
            found.setdefault((width, value), path)
        elif isinstance(node, LatentAttention):
            rope, nope = int(node.d_rope), int(node.d_nope)
            rank = int(node.kv_rank)
            found.setdefault((nope + rope, int(node.d_value)), f"{path}, prefill")
            found.setdefault((rank + rope, rank), f"{path}, decode")
    return found


def head_notes(spec: Spec, chip: Chip) -> tuple[str, ...]:
    """What attention kernels say of each head width of a model on a chip.

    Nothing where some kernel takes a width as it is, nor of a common width on a chip whose kernels
    are in no table. All kinds of layer are looked at, not the first alone.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> head_notes(catalog.model("llama-3.1-8b"), chip("h100"))
        ()
    """
    found = []
    for (key, value), where in head_widths(spec).items():
        taken = [takes(name, chip, key, value) for name in fused_kernels()]
        unknown = chip.compute_capability is None and common(key)
        if not unknown and all(t.verdict != "yes" for t in taken):
            found.append(f"{where}: {width_note(chip, key, value)}")
    return tuple(found)


@functools.cache
def _common_heads() -> dict[str, int]:
    found: dict[str, int] = read_data("quantization.toml")["heads"]
    return found


def common(d_key: int) -> bool:
    """Whether a head width lies in the range that most kernels take."""
    limits = _common_heads()
    return bool(limits["least"] <= d_key <= limits["most"])


def width_note(chip: Chip, d_key: int, d_value: int | None = None) -> str:
    """What is to be said of a head width that no kernel of the table takes as it is on a chip."""
    value = d_key if d_value is None else d_value
    limits = _common_heads()
    shown = str(d_key) if value == d_key else f"{d_key} with values of {value}"
    parts = []
    if not common(d_key):
        range_ = f"[{limits['least']},{limits['most']}]"
        parts.append(f"head width {shown} is outside {range_} of common kernels")
    taken = [takes(name, chip, d_key, value) for name in fused_kernels()]
    parts += [t.reason for t in taken if t.verdict == "padded"][:1]
    running = [t.reason for t in taken if " does not run on " not in t.reason]
    if chip.compute_capability is not None and not running:
        parts.append(f"no fused kernel of the table runs on {chip.name}, compute capability "
                     f"{chip.compute_capability}")  # fmt: skip
    parts += running if not parts else []
    if d_key > limits["most"] and chip.shared_max_bytes is not None and tile(chip, d_key) is None:
        room = chip.shared_max_bytes // 1024 - 1
        parts.append(
            f"no tile of queries, keys and values fits the shared memory limit of {room} KiB a "
            f"block on {chip.name}; a kernel that splits the head, or one without fusion, is left"
        )
    return "; ".join(parts)


# ---------------------------------------------------------------- a deployment


class Deployment(Struct, frozen=True):
    """Whether a model can be served as asked, and what to know of it."""

    valid: bool
    problems: tuple[Problem, ...]
    """Why it cannot."""
    warnings: tuple[str, ...] = ()
    """What costs memory or speed."""
    degrees: list[int] = []
    """Tensor-parallel degrees that would be valid in this scheme, if the split is what is wrong."""
    nearest: dict[str, int] = {}
    """The nearest change of shape that would make the degree valid."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it in words, one line each."""
        advice = []
        if not self.valid and self.degrees:
            advice.append(f"valid TP: {', '.join(map(str, self.degrees))}")
        if self.nearest:
            changes = ", ".join(f"{k} {v}" for k, v in self.nearest.items())
            advice.append(f"nearest shape that would do: {changes}")
        return (*(p.reason for p in self.problems), *self.warnings, *advice)


def deployment(
    spec: Spec, chip: Chip, plan: Plan = ALONE, quant: Scheme | str = "bf16", context: int = 1
) -> Deployment:
    """Whether a model can be served on chips as asked.

    Args:
        spec: One model.
        chip: The chip, as many as the plan asks for.
        plan: How it is split; ``tp``, ``ep``, ``pp`` and ``dp`` count.
        quant: A scheme or its name.
        context: Tokens of a sequence.

    Raises:
        UnknownNameError: If no scheme has that name.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> d = deployment(catalog.model("qwen3-30b-a3b"), chip("h100"), Plan(tp=4), "fp8-block")
        >>> d.valid, d.degrees, d.nearest
        (False, [1, 2], {'d_expert': 1024})
    """
    one = scheme(quant) if isinstance(quant, str) else quant
    own = replace(plan, sequence_parallel=False)
    low = [f for f in DEGREES if (getattr(plan, f) or 0) < 1 and getattr(plan, f) is not None]
    if low:
        text = f"{low[0]} is {getattr(plan, low[0])}; it must be at least 1"
        return Deployment(valid=False, problems=(Problem(low[0], text),))
    found = list(_split_problems(spec, own, chip, context))
    sides = () if found else cuts(spec, one, own)
    found += [Problem("quant", f"{one.name}: {text}") for text in _cut_lines(sides)]
    can = support(one, chip)
    if can.verdict == "no":
        found.append(Problem("quant", can.reason))
    warnings = [*_copies(spec, plan), *_vocabulary(spec, plan), *head_notes(spec, chip)]
    warnings += size_notes(spec, one, own)
    warnings += dict.fromkeys(f"{c.tensor}: {c.kernel}" for c in sides if c.ok and c.kernel)
    if one.quantised and can.verdict == "weights":
        warnings.append(can.reason)
    blocked = any(p.field in {"tp", "expert_tp", "quant"} for p in found)
    stuck = blocked and can.verdict != "no"
    degrees = valid_tp(spec, one, expert_tp=plan.expert_tp) if stuck else []
    changes = nearest_shape(spec, plan.tp, one, plan.expert_tp) if stuck and plan.tp > 1 else {}
    advice = _expert_advice(spec, plan) if any(".experts" in p.reason for p in found) else ()
    return Deployment(not found, tuple(found), (*warnings, *advice), degrees, changes)


DEGREES = ("tp", "pp", "dp", "cp", "ep", "expert_tp")


def _split_problems(spec: Spec, plan: Plan, chip: Chip, context: int) -> Iterator[Problem]:
    whole = cluster(chip, plan.n_gpu, plan.n_gpu)
    yield from (p for p in problems(spec, plan, whole, context) if p.field != "sequence_parallel")


def _cut_lines(sides: Sequence[Cut]) -> list[str]:
    return list(dict.fromkeys(c.text for c in sides if not c.ok))


def _copies(spec: Spec, plan: Plan) -> Iterator[str]:
    """KV heads and latents that several ranks hold."""
    if plan.tp < 2:
        return
    counts = sorted({int(n.n_kv_head) for _, n in nodes(spec) if isinstance(n, GroupedAttention)})
    for count in counts:
        share = kv_replication(count, plan.tp)
        if share.copies > 1 and plan.tp % count == 0:
            yield (
                f"{count} KV heads on TP {plan.tp}: each is held {share.copies} times, so the "
                f"cache of all ranks together is {share.copies} times that of one chip"
            )
    if any(isinstance(n, LatentAttention) for _, n in nodes(spec)):
        yield (
            f"latent attention on TP {plan.tp}: every rank holds the whole latent, so the cache of "
            f"all ranks together is {plan.tp} times that of one chip; split attention by data "
            "instead"
        )


def _vocabulary(spec: Spec, plan: Plan) -> Iterator[str]:
    padded = padded_vocab(int(spec.vocab_size), plan.tp)
    if padded != spec.vocab_size:
        yield f"the vocabulary of {int(spec.vocab_size)} is padded to {padded} for TP {plan.tp}"


def _expert_advice(spec: Spec, plan: Plan) -> Iterator[str]:
    counts = {int(n.n_expert) for _, n in nodes(spec) if isinstance(n, Experts)}
    if plan.tp > 1 and counts and all(n % plan.tp == 0 for n in counts):
        yield f"use EP {plan.tp} for the experts instead of TP: each stays whole on its rank"


def check(deployed: Deployment, plan: Plan) -> None:
    """Raise the first problem of a deployment as an error.

    Raises:
        FieldError: In one line, with the degrees that are valid.
    """
    if deployed.valid:
        return
    first = deployed.problems[0]
    value = getattr(plan, first.field, None)
    hint = f"use tp {' or '.join(map(str, deployed.degrees[:6]))}" if deployed.degrees else ""
    raise FieldError(first.field, value, f"cannot be served: {first.reason}", hint)


def largest_power_of_two(degrees: Sequence[int]) -> int:
    """The largest degree that is a power of two.

    Example:
        >>> largest_power_of_two([1, 2, 4, 7, 14])
        4
    """
    return max(n for n in degrees if n & (n - 1) == 0)
