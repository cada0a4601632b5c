"""Which splits of a model over chips are valid, why others are not, and what is nearest to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from scantling.costs.ranks import (
    Placed,
    expert_tp,
    padded_vocab,
    placed_operators,
    rank_operators,
    rank_spec,
    stage_layers,
    stages,
)
from scantling.hardware import Cluster
from scantling.spec import (
    ChannelMix,
    CompressedAttention,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    KimiDelta,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    Spec,
    vary,
)
from scantling.spec.plan import Plan

__all__ = [
    "Degrees",
    "HeadPadding",
    "LayerSplit",
    "Placed",
    "Problem",
    "expert_tp",
    "kv_replication",
    "nearest_change",
    "padded_heads",
    "padded_vocab",
    "placed_operators",
    "problems",
    "rank_operators",
    "rank_spec",
    "split_layers",
    "stage_layers",
    "stages",
    "ulysses_degrees",
    "uneven",
    "valid_degrees",
    "valid_ep",
]


class Problem(Struct, frozen=True):
    """Why a plan cannot run: which degree, and the relation with its numbers."""

    field: str
    reason: str


def problems(spec: Spec, plan: Plan, cluster: Cluster, context: int) -> tuple[Problem, ...]:
    """Every reason why a plan cannot run; empty where it can.

    Args:
        spec: One model.
        plan: How it is split.
        cluster: Where.
        context: Tokens of a sequence.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import cluster
        >>> found = problems(catalog.model("llama-3.1-8b"), Plan(tp=6), cluster("h100", 6), 8192)
        >>> found[0].reason
        '32 heads cannot be split over TP 6'
    """
    whole = plan.tp * plan.pp * plan.dp * plan.cp
    found = [
        Problem(field, f"{field} is {n}; it must be at least 1")
        for field in ("tp", "pp", "dp", "cp", "ep", "virtual", "micro_batch", "n_micro_batch")
        if (n := getattr(plan, field)) < 1
    ]
    if found:
        return tuple(found)
    if whole != cluster.n_gpu:
        found.append(Problem("gpus", f"tp × pp × dp × cp is {whole}, not {cluster.n_gpu}"))
    found += (Problem("tp", reason) for reason in tp_reasons(spec, plan.tp))
    found += _context_problems(spec, plan, context)
    found += _expert_problems(spec, plan)
    found += _pipeline_problems(spec, plan)
    found += _sharing_problems(plan)
    return tuple(found)


# ---------------------------------------------------------------- tensor parallelism

DIVIDED: dict[type, tuple[tuple[str, str], ...]] = {
    LatentAttention: (("n_head", "heads"),),
    CompressedAttention: (("n_head", "heads"), ("n_out_group", "output groups")),
    LinearAttention: (("n_head", "heads"),),
    GatedDelta: (("n_key_head", "key heads"), ("n_value_head", "value heads")),
    KimiDelta: (("n_delta_head", "heads"),),
    Mamba1: (("d_inner", "inner channels"),),
    Mamba2: (("n_ssm_head", "heads"), ("d_inner", "inner channels")),
    Rwkv: (("d_attention", "channels"),),
    RgLru: (("d_rnn", "channels"),),
    Dense: (("d_ff", "FFN columns"),),
    ChannelMix: (("d_ff", "FFN columns"),),
}
"""Dimensions that the tensor-parallel degree must divide, and their name."""


def tp_reasons(spec: Spec, tp: int) -> Iterator[str]:
    """Why a model cannot be split over a tensor-parallel group.

    Heads, feed-forward columns and channels must divide. KV heads must divide (K mod t = 0) or be
    copied equally often (t mod K = 0). The vocabulary is padded, so it never stands in the way.
    """
    seen = set()
    for module in _modules(spec):
        for reason in _module_reasons(module, tp):
            if reason not in seen:
                seen.add(reason)
                yield reason


def _modules(spec: Spec) -> Iterator[Any]:
    for stack in (spec.decoder, spec.encoder):
        for kind in () if stack is None else stack.kinds:
            for block in kind.blocks:
                for branch in block.branches:
                    yield branch.module


def _module_reasons(module: Any, tp: int) -> Iterator[str]:
    pairs = DIVIDED.get(type(module), ())
    if isinstance(module, GroupedAttention):
        pairs = (("n_head", "heads"),)
    for field, name in pairs:
        n = int(getattr(module, field))
        if n % tp:
            yield f"{n} {name} cannot be split over TP {tp}"
    if isinstance(module, GroupedAttention):
        n = int(module.n_kv_head)
        if n % tp and tp % n:
            yield f"{n} KV heads cannot be split over TP {tp}, nor copied equally often"
    if isinstance(module, Mamba2):
        n = int(module.n_group)
        if n % tp and tp % n:
            yield f"{n} state groups cannot be split over TP {tp}, nor copied equally often"
    shared = module.shared if isinstance(module, Experts) else None
    if shared is not None and int(shared.d_shared) % tp:
        yield f"{int(shared.d_shared)} columns of the shared expert cannot be split over TP {tp}"


class HeadPadding(Struct, frozen=True):
    """What it costs to make heads divide by adding empty ones."""

    heads: int
    """After padding."""
    waste: float
    """Extra attention work as a share of the useful one."""


def padded_heads(n_head: int, tp: int) -> HeadPadding:
    """Heads padded to the next multiple of TP, and the work that wastes.

    Example:
        >>> padded_heads(32, 5)
        HeadPadding(heads=35, waste=0.09375)
    """
    padded = -(-n_head // tp) * tp
    return HeadPadding(padded, (padded - n_head) / n_head)


class KVShare(Struct, frozen=True):
    """KV heads of one rank, and how many ranks hold each."""

    per_rank: int
    copies: int


def kv_replication(n_kv_head: int, tp: int) -> KVShare:
    """KV heads on a rank, and how often each is held: keys and values grow by as much in all.

    With K KV heads on t > K ranks each rank keeps one, so a head is kept t / K times.

    Example:
        >>> kv_replication(4, 8), kv_replication(8, 4)
        (KVShare(per_rank=1, copies=2), KVShare(per_rank=2, copies=1))
    """
    return KVShare(-(-n_kv_head // tp), max(1, tp // n_kv_head))


# ---------------------------------------------------------------- context and sequence


def _context_problems(spec: Spec, plan: Plan, context: int) -> Iterator[Problem]:
    chunks = 2 * plan.cp
    if plan.cp > 1 and plan.ulysses:
        yield from _exchange_problems(spec, plan, context)
    elif plan.cp > 1 and context % chunks:
        yield Problem(
            "cp", f"{context} tokens cannot be cut into the {chunks} chunks that CP {plan.cp} needs"
            " to balance causal attention",
        )  # fmt: skip
    elif plan.sequence_parallel and plan.tp > 1 and context // plan.cp % plan.tp:
        yield Problem(
            "sequence_parallel", f"{context // plan.cp} tokens of a rank cannot be split over TP "
            f"{plan.tp} by sequence",
        )  # fmt: skip


def _exchange_problems(spec: Spec, plan: Plan, context: int) -> Iterator[Problem]:
    if context % plan.cp:
        yield Problem("cp", f"{context} tokens cannot be split over CP {plan.cp}")
    for module in _modules(spec):
        if not isinstance(module, GroupedAttention):
            continue
        heads, kv = int(module.n_head) // plan.tp, max(1, int(module.n_kv_head) // plan.tp)
        if plan.cp not in ulysses_degrees(heads, kv):
            yield Problem(
                "cp", f"{heads} heads and {kv} KV heads of a rank cannot be exchanged over CP "
                f"{plan.cp}; it must be one of {ulysses_degrees(heads, kv)}",
            )  # fmt: skip
            return


def ulysses_degrees(n_head: int, n_kv_head: int) -> list[int]:
    """Degrees at which all-to-all sequence parallelism (Ulysses) can split the heads.

    It must divide the query heads; KV heads are divided, or repeated where it is a multiple.

    Example:
        >>> ulysses_degrees(40, 8)
        [1, 2, 4, 8, 40]
    """
    return [
        n for n in range(1, n_head + 1)
        if n_head % n == 0 and (n_kv_head % n == 0 or n % n_kv_head == 0)
    ]  # fmt: skip


# ---------------------------------------------------------------- experts


def _experts(spec: Spec) -> Iterator[Experts]:
    yield from (m for m in _modules(spec) if isinstance(m, Experts))


def _expert_problems(spec: Spec, plan: Plan) -> Iterator[Problem]:
    etp = expert_tp(plan)
    seats = plan.tp * plan.dp * plan.cp
    found = list(_experts(spec))
    if not found and plan.ep > 1:
        yield Problem("ep", f"EP {plan.ep} needs experts; this model has none")
    for f in found:
        if int(f.n_expert) % plan.ep:
            yield Problem("ep", f"{int(f.n_expert)} experts cannot be split over EP {plan.ep}")
        if int(f.d_expert) % etp:
            yield Problem(
                "expert_tp", f"{int(f.d_expert)} columns of an expert cannot be split over "
                f"expert TP {etp}",
            )  # fmt: skip
    if found and seats % (plan.ep * etp):
        yield Problem(
            "ep", f"EP {plan.ep} × expert TP {etp} does not divide the {seats} ranks of a stage "
            f"(tp × cp × dp)",
        )  # fmt: skip


def valid_ep(n_expert: int, n_gpu: int) -> list[int]:
    """Expert-parallel degrees: they divide the experts and the ranks that share them.

    Example:
        >>> valid_ep(64, 8)
        [1, 2, 4, 8]
    """
    return [n for n in range(1, n_gpu + 1) if n_expert % n == 0 and n_gpu % n == 0]


# ---------------------------------------------------------------- pipeline


class LayerSplit(Struct, frozen=True):
    """How layers fall on pipeline stages."""

    stages: tuple[int, ...]
    """Layers of each stage, as even as they go."""
    even: bool
    floor_total: int
    """Layers that software builds which gives every stage ⌊L / p⌋."""
    divisors: tuple[int, ...]
    """Stage counts that do divide the layers."""


def split_layers(n_layer: int, pp: int) -> LayerSplit:
    """Layers on stages: L mod p of them hold one more.

    Example:
        >>> split_layers(30, 4)
        LayerSplit(stages=(8, 8, 7, 7), even=False, floor_total=28, divisors=(1, 2, 3, 5, 6, \
10, 15, 30))
    """
    each = tuple(n_layer // pp + (s < n_layer % pp) for s in range(pp))
    divisors = tuple(n for n in range(1, n_layer + 1) if n_layer % n == 0)
    return LayerSplit(each, n_layer % pp == 0, n_layer // pp * pp, divisors)


def _pipeline_problems(spec: Spec, plan: Plan) -> Iterator[Problem]:
    """Chunks of interleaving are equal, where embedding and head may each stand for a layer.

    So the 126 layers of Llama 3.1 405B were cut into 16 stages: 128 places less those two
    (Grattafiori et al. 2024, section 3.3.2).
    """
    layers = int(spec.n_layer)
    chunks = plan.pp * plan.virtual
    if plan.pp > 1 and spec.encoder is not None:
        yield Problem("pp", "pipelines of an encoder beside a decoder are not worked out; use pp 1")
    tables = 2 if plan.virtual > 1 else 0
    if layers + tables < chunks:
        yield Problem("pp", f"{layers} layers cannot fill {chunks} pipeline chunks")
    elif plan.virtual > 1 and -layers % chunks > tables:
        yield Problem(
            "virtual", f"{layers} layers cannot be cut into pp {plan.pp} × virtual {plan.virtual} "
            f"= {chunks} equal chunks, nor with the embedding or the head in place of one",
        )  # fmt: skip
    if plan.virtual > 1 and plan.pp == 1:
        yield Problem("virtual", f"virtual {plan.virtual} needs more than one pipeline stage")
    elif plan.virtual > 1 and plan.n_micro_batch % plan.pp:
        yield Problem(
            "virtual", f"{plan.n_micro_batch} micro-batches are no multiple of the {plan.pp} "
            "stages, which interleaving needs",
        )  # fmt: skip


def uneven(spec: Spec, plan: Plan) -> str:
    """What to know of a pipeline whose stages differ; empty where they do not.

    Example:
        >>> from scantling import catalog
        >>> from scantling.spec import vary
        >>> uneven(vary(catalog.model("llama-3.1-8b"), n_layer=30), Plan(pp=4))
        '30 layers over 4 stages: 8, 8, 7, 7; equal stages of ⌊30 / 4⌋ would build 28 layers'
    """
    split = split_layers(int(spec.n_layer), plan.pp)
    if split.even:
        return ""
    listed = ", ".join(str(n) for n in split.stages)
    layers = int(spec.n_layer)
    return (
        f"{layers} layers over {plan.pp} stages: {listed}; equal stages of ⌊{layers} / {plan.pp}⌋ "
        f"would build {split.floor_total} layers"
    )


# ---------------------------------------------------------------- data parallelism


def _sharing_problems(plan: Plan) -> Iterator[Problem]:
    ranks = plan.dp * plan.cp
    if plan.zero_ranks < 1 or ranks % plan.zero_ranks:
        yield Problem("shard", f"{ranks} data-parallel ranks cannot be cut into groups of "
                      f"{plan.zero_ranks}")  # fmt: skip
    if plan.zero >= 2 and plan.pp > 1:
        yield Problem(
            "zero", f"ZeRO-{plan.zero} with {plan.pp} pipeline stages would share out or gather "
            f"everything once for each of {plan.n_micro_batch} micro-batches; use ZeRO-1",
        )  # fmt: skip


# ---------------------------------------------------------------- degrees and changes


class Degrees(Struct, frozen=True):
    """Degrees a model allows; EP and PP only as its own shape limits them."""

    tp: list[int]
    ep: list[int]
    pp: list[int]
    """That divide the layers; others make stages of two sizes."""
    cp: list[int]
    """Ulysses; a ring takes any that cuts the context into 2 × CP equal chunks."""


def valid_degrees(spec: Spec, most: int = 1024) -> Degrees:
    """Degrees by which a model can be split.

    Args:
        spec: One model.
        most: The largest degree asked for.

    Example:
        >>> from scantling import catalog
        >>> d = valid_degrees(catalog.model("qwen2.5-7b"))
        >>> d.tp, d.pp
        ([1, 2, 4], [1, 2, 4, 7, 14, 28])
    """
    attention = [m for m in _modules(spec) if isinstance(m, GroupedAttention)]
    tp = [n for n in range(1, most + 1) if not any(tp_reasons(spec, n))]
    counts = [int(f.n_expert) for f in _experts(spec)]
    ep = [n for n in range(1, most + 1) if counts and all(c % n == 0 for c in counts)] or [1]
    pp = [n for n in split_layers(int(spec.n_layer), 1).divisors if n <= most]
    cp = [n for n in common_ulysses(attention) if n <= most]
    return Degrees(tp=tp, ep=ep, pp=pp, cp=cp)


def common_ulysses(attention: list[GroupedAttention]) -> list[int]:
    """Ulysses degrees that suit every attention of a model."""
    lists = [set(ulysses_degrees(int(a.n_head), int(a.n_kv_head))) for a in attention]
    return sorted(set.intersection(*lists)) if lists else [1]


def nearest_change(spec: Spec, field: str, degree: int) -> dict[str, int]:
    """The smallest changes of shape that make a degree valid: field -> value.

    Each dimension that stands in the way goes to the nearest multiple of the degree, the larger of
    two equally near; KV heads also to the nearest divisor. Heads keep their width.

    Args:
        spec: One model.
        field: ``tp``, ``ep`` or ``pp``.
        degree: The degree wanted.

    Example:
        >>> from scantling import catalog
        >>> nearest_change(catalog.model("qwen2.5-7b"), "tp", 8)
        {'n_head': 32, 'n_kv_head': 4}
        >>> nearest_change(catalog.model("qwen2.5-7b"), "pp", 8)
        {'n_layer': 32}
    """
    if field == "pp":
        n = int(spec.n_layer)
        return {} if n % degree == 0 else {"n_layer": near_multiple(n, degree)}
    if field == "ep":
        counts = [int(f.n_expert) for f in _experts(spec) if int(f.n_expert) % degree]
        return {"n_expert": near_multiple(max(counts), degree)} if counts else {}
    found: dict[str, int] = {}
    for module in _modules(spec):
        names = [f for f, _ in DIVIDED.get(type(module), ())]
        if isinstance(module, GroupedAttention):
            names = ["n_head"]
        sizes = [(name, int(getattr(module, name))) for name in names]
        if isinstance(module, Experts) and module.shared is not None:
            sizes.append(("d_shared", int(module.shared.d_shared)))
        for name, n in sizes:
            if n % degree:
                found[name] = near_multiple(n, degree)
        if isinstance(module, GroupedAttention):
            heads = found.get("n_head", int(module.n_head))
            kv = near_kv(int(module.n_kv_head), heads, degree)
            if kv != int(module.n_kv_head) or "n_head" in found:
                found["n_kv_head"] = kv
    return found


def near_multiple(n: int, step: int) -> int:
    """The multiple of a step nearest to a number, at least one step, the larger of two.

    Example:
        >>> near_multiple(28, 8), near_multiple(10922, 8)
        (32, 10920)
    """
    return max(1, (2 * n + step) // (2 * step)) * step


def near_kv(n_kv_head: int, n_head: int, tp: int) -> int:
    """The KV heads nearest to a number that divide the heads and suit TP."""
    fits: Callable[[int], bool] = lambda k: n_head % k == 0 and (k % tp == 0 or tp % k == 0)  # noqa: E731
    return min((k for k in range(1, n_head + 1) if fits(k)), key=lambda k: (abs(k - n_kv_head), -k))


def changed(spec: Spec, field: str, degree: int) -> Spec:
    """The spec with ``nearest_change`` made."""
    return vary(spec, **nearest_change(spec, field, degree))
