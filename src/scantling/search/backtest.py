"""Would ``design`` have found a released shape? Back-tests against models that were really trained.

From only the parameters, tokens, context, vocabulary and hardware of a released model, every legal
shape made of the same blocks (norms, activation, biases, tying) is asked whether it is better
beyond what can be told apart. Two gaps say how far a shape lies from the front:

- *lower*: at no higher cost (training time, KV cache, time per token), how much lower the loss
  could be, against the interval of that difference (``candidate.difference``) and the scatter of
  equal runs (``run_scatter``), in quadrature;
- *cheaper*: at no higher loss, how much cheaper a shape is in *every* cost, against a share of
  it that is not worth telling apart (``cost_noise``).

A shape is **on the front** when no legal shape is at least as good in all four objectives and
better in one; **inside the band** when one is, but neither gap is beyond the noise; **dominated**
when one is. Random legal shapes of the same size and blocks are put to the same test: a band that
holds them too proves nothing.

What no objective prices is bounded in a search (``laws.bounds``). Here those bounds are opened as
far as the shape that is judged lies outside, so that it is compared with shapes of its kind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import parameters, solve_width
from scantling.costs.estimate import DAY_S, reference_mfu
from scantling.costs.features import features
from scantling.errors import FieldError
from scantling.hardware import chip
from scantling.laws import bounds
from scantling.search.axes import ASPECT, HEAD_WIDTHS, depth_step, split
from scantling.search.budget import OBJECTIVES, Budget, Range, budget
from scantling.search.candidate import Candidate, candidate, difference
from scantling.search.shape_findings import axis_value
from scantling.search.space import Space, space
from scantling.search.sweep import legal
from scantling.sources import read_data
from scantling.spec import Dense, GroupedAttention, Spec, divisors, has, read, vary

if TYPE_CHECKING:
    import random

    import numpy as np
    from numpy.typing import NDArray

LONGEST = 8192
"""Contexts beyond this are reached in a last, short stage; most tokens are trained below it."""
MONTH_DAYS = 30
STEPS = ((10e9, 128), (30e9, 256), (math.inf, 512))
"""Below each size the step of widths: coarser where 512 is as small a part of them."""
ALIGNED = 128
"""What widths of random shapes are multiples of, as in a search."""
CLOSEST = 8
"""Of the shapes that cost no more, how many of the best and of the nearest are compared exactly."""
EQUAL = 1e-9
"""What floating point may miss of equal objectives."""
AXES = ("kv_group", "n_kv_head", "attention_width_ratio", "mlp_attention_ratio", "ffn_width_ratio")
"""Bounded axes of a search, opened here as far as a shape needs."""
OPENED = {
    "aspect": Range(*ASPECT), "kv_group": Range(1, 128), "n_kv_head": Range(1, 4096),
    "attention_width_ratio": Range(0.5, 2), "mlp_attention_ratio": Range(0.5, 12),
    "ffn_width_ratio": Range(0.2, 30),
}  # fmt: skip
"""What shapes are looked at for any shape that may be judged."""

COSTS = ("training days", "KV cache", "time per token")


class Trained(Struct, frozen=True):
    """What is known of the training of a released model."""

    name: str
    family: str
    tokens: float
    source: str
    context: int | None = None


class Gap(Struct, frozen=True):
    """A better shape, and by how much."""

    better: Candidate
    nats: float
    """Its loss minus that of the shape asked about."""
    nats_high: float
    """Upper end of the interval of that difference: below zero it is surely lower."""
    saved: tuple[float, float, float]
    """Share of each cost saved, in the order of ``COSTS``."""


class Verdict(Struct, frozen=True):
    """Where one shape lies."""

    shape: Candidate
    place: Literal["front", "band", "dominated"]
    lower: Gap | None
    """The shape of the surest lower loss at no higher cost."""
    cheaper: Gap | None
    """The shape that saves most in every cost at no higher loss."""
    single: Gap | None
    """The shape that saves most in one cost at no higher loss and no other cost higher."""
    outside: tuple[str, ...]
    """Axes on which the shape lies beyond the bounds of a search, published ablations' ends."""

    @property
    def holds(self) -> bool:
        """Whether the shape is on the front or inside the band."""
        return self.place != "dominated"

    @property
    def gap(self) -> Gap | None:
        """What dominates it: the surely lower loss, else the most saved."""
        if self.lower is not None and self.lower.nats_high < 0:
            return self.lower
        return self.cheaper or self.lower


class Pool(Struct):
    """Every legal shape of a budget with its objectives, as candidates where asked for."""

    budget: Budget
    shapes: Space
    rows: NDArray[np.int64]
    values: NDArray[np.float64]
    axes: dict[str, Any]
    """Where each shape lies on the bounded axes; its depth and width."""
    known: dict[int, Candidate] = {}

    def candidate(self, at: int) -> Candidate:
        """One shape of the pool with everything known of it."""
        if at not in self.known:
            self.known[at] = candidate(self.shapes.spec(self.rows[at]), self.budget)
        return self.known[at]


@functools.cache
def released() -> dict[str, Trained]:
    """Every model of the back-test by its name.

    Example:
        >>> released()["llama-2-70b"].tokens
        2000000000000.0
    """
    return {
        name: Trained(name, family, float(tokens), entry["source"], entry.get("context"))
        for family, entry in read_data("backtest.toml")["families"].items()
        for name, tokens in entry["tokens"].items()
    }


def cost_noise() -> float:
    """Share of a cost that is not worth telling apart."""
    return float(read_data("backtest.toml")["cost_noise"])


def run_scatter() -> float:
    """Half-width, in nats, of the difference of two runs of one shape: seeds alone, 90 %."""
    return float(read_data("backtest.toml")["run_scatter"])


def question(name: str, tokens: float | None = None, **more: Any) -> Budget:
    """What would have been asked of ``design`` for a released model, before it was trained.

    Parameters, vocabulary and context of the model; its tokens; the chip of its year, as many as
    train it in about a month. No bound is taken from known models, which would give the answer
    away. Before grouped queries were published every query head has a KV head.

    Args:
        name: A model of the catalogue.
        tokens: Training tokens; by default those of ``data/backtest.toml``.
        **more: Further limits of the budget.

    Raises:
        FieldError: If the tokens are not known, or the model is not made of grouped attention
            and dense feed-forwards with one kind of layer.

    Example:
        >>> b = question("llama-7b")
        >>> b.chip, b.tokens, b.vocab_size, b.n_gpu
        ('a100-sxm-80gb', 1000000000000, 32000, 64)
    """
    entry = catalog.named()[catalog.loaded(name).name]
    spec = catalog.model(entry.name)
    _check_blocks(entry.name, spec)
    known = released().get(entry.name)
    if tokens is None and known is None:
        raise FieldError("tokens", None, f"of {entry.name} are not known", "give them: --tokens 2T")
    trained = float(tokens if tokens is not None else known.tokens)  # type: ignore[union-attr]
    data = read_data("backtest.toml")
    key = next(era["chip"] for era in data["hardware"] if entry.released < era["until"])
    longest = known.context if known is not None and known.context else LONGEST
    context = min(longest, spec.max_context or LONGEST)
    opened = OPENED
    if entry.released < data["grouped_queries"]:
        opened = OPENED | {"kv_group": Range(1, 1)}
    return budget(
        params=entry.parameters, tokens=trained, vocab_size=int(spec.vocab_size), tied=spec.tied,
        train_context=context, serve_context=context, chip=key,
        n_gpu=_gpus(entry.parameters, trained, key),
        multiple=next(step for size, step in STEPS if entry.parameters < size),
        bounded=opened, **more,
    )  # fmt: skip


def _check_blocks(name: str, spec: Spec) -> None:
    kinds = {type(branch.module) for kind in spec.decoder.kinds for block in kind.blocks
             for branch in block.branches}  # fmt: skip
    if kinds != {GroupedAttention, Dense} or spec.encoder is not None:
        raise FieldError("--backtest", name, "has other blocks than grouped attention and dense "
                         "feed-forwards", "the back-test is for such models")  # fmt: skip


def _gpus(params: float, tokens: float, key: str) -> int:
    """The power of two of chips, a node at least, that train in about a month."""
    one = chip(key)
    done = one.rate("bf16") * reference_mfu(one, 64) * MONTH_DAYS * DAY_S
    return 1 << max(3, round(math.log2(6 * params * tokens / done)))


def outside(c: Candidate) -> tuple[str, ...]:
    """The axes on which a shape lies beyond the bounds of a search."""
    found = []
    for axis in AXES:
        value = axis_value(c.dims(), c.features, axis)
        if value is not None and not bounds()[axis].holds(value):
            found.append(axis)
    return tuple(found)


def pool(b: Budget, spec: Spec) -> Pool:
    """Every legal shape of a budget, not only its front, made of the blocks of a model."""
    import numpy as np

    shapes = space(b)
    shapes = replace(shapes, families=tuple(replace(one, spec=spec) for one in shapes.families))
    rows = [np.empty((0, len(shapes.columns)), dtype=np.int64)]
    values = [np.empty((0, len(OBJECTIVES)))]
    axes: dict[str, list[Any]] = {name: [np.empty(0)] for name in (*AXES, "d_model", "n_layer")}
    for some, costs in legal(shapes, b):
        n = len(some)
        found = costs.values()
        rows.append(some)
        values.append(np.stack([np.broadcast_to(found[k], n) for k in OBJECTIVES], axis=1))
        for name, column in axes.items():
            value: Any = getattr(costs.features, name, None)
            value = getattr(costs.spec, name, None) if value is None else value
            if name == "ffn_width_ratio":
                value = costs.spec.d_ff / costs.spec.d_model
            column.append(np.broadcast_to(value, n))
    joined = {name: np.concatenate(column) for name, column in axes.items()}
    return Pool(b, shapes, np.concatenate(rows), np.concatenate(values), joined)


def judge(c: Candidate, others: Pool) -> Verdict:
    """Where a shape lies among all legal shapes of its size; see the head of this module."""
    own = _objectives(c)
    no_dearer = (others.values[:, 1:] <= own[1:] * (1 + EQUAL)).all(axis=1)
    for axis in AXES:
        bound, value = bounds()[axis], axis_value(c.dims(), c.features, axis)
        low, high = bound.low or 0.0, bound.high or math.inf
        if value is not None:
            low, high = min(low, value * (1 - EQUAL)), max(high, value * (1 + EQUAL))
        no_dearer &= (others.axes[axis] >= low) & (others.axes[axis] <= high)
    lower = _lower(c, others, no_dearer)
    as_good = no_dearer & (others.values[:, 0] <= own[0] * (1 + EQUAL))
    cheaper, single = _cheaper(c, others, as_good)
    surely = lower is not None and lower.nats_high < 0
    if surely or (cheaper is not None and min(cheaper.saved) > cost_noise()):
        place: Literal["front", "band", "dominated"] = "dominated"
    else:
        place = "front" if cheaper is None else "band"
    return Verdict(c, place, lower, cheaper, single, outside(c))


def _objectives(c: Candidate) -> Any:
    import numpy as np

    return np.array([c.loss_upper, c.days, c.kv_bytes_per_token, float(c.decode.value_s)])


def _lower(c: Candidate, others: Pool, no_dearer: Any) -> Gap | None:
    """Of the shapes that cost no more, the one whose loss is most surely lower."""
    import numpy as np

    at = np.flatnonzero(no_dearer & (others.values[:, 0] < c.loss_upper))
    if not len(at):
        return None
    gain = c.loss_upper - others.values[at, 0]
    apart = np.hypot(
        *(np.log(others.axes[name][at] / c.dims()[name]) for name in ("d_model", "n_layer"))
    )
    # near shapes share most of the law's error, so a small gain may be sure
    order = {*np.argsort(-gain)[:CLOSEST], *np.argsort(-gain / (0.02 + apart))[:CLOSEST]}
    gaps = [_gap(others.candidate(int(at[i])), c) for i in sorted(order)]
    return min(gaps, key=lambda gap: gap.nats_high)


def _cheaper(c: Candidate, others: Pool, as_good: Any) -> tuple[Gap | None, Gap | None]:
    """Of the shapes at least as good in everything, what saves most in every cost and in one."""
    import numpy as np

    own = _objectives(c)
    better = (others.values < own * (1 - EQUAL)).any(axis=1)
    at = np.flatnonzero(as_good & better)
    if not len(at):
        return None, None
    saved = 1 - others.values[at, 1:] / own[1:]
    every = at[np.lexsort((-saved.sum(axis=1), -saved.min(axis=1)))[0]]
    one = at[saved.max(axis=1).argmax()]
    return _gap(others.candidate(int(every)), c), _gap(others.candidate(int(one)), c)


def _gap(better: Candidate, c: Candidate) -> Gap:
    loss = difference(better, c)
    assert loss.high is not None
    half = math.hypot(loss.high - float(loss.value), run_scatter())
    days, kv, decode = (float(v) for v in 1 - _objectives(better)[1:] / _objectives(c)[1:])
    return Gap(better, float(loss.value), float(loss.value) + half, (days, kv, decode))


def backtest(name: str, tokens: float | None = None, **more: Any) -> tuple[Verdict, Pool]:
    """The verdict on a released model, and all legal shapes it was compared with.

    Example:
        >>> verdict, others = backtest("cerebras-gpt-1.3b")
        >>> verdict.place in ("front", "band", "dominated"), len(others.rows) > 100
        (True, True)
    """
    b = question(name, tokens, **more)
    spec = catalog.model(name)
    others = pool(b, spec)
    return judge(candidate(spec, b, catalog.loaded(name).name), others), others


def random_shapes(spec: Spec, b: Budget, n: int, chance: random.Random) -> Iterator[Spec]:
    """Random legal shapes of the blocks and the size of a model, of a much wider kind than any.

    Uniform in ln: D/L from 8 to 320, H h/D from 0.5 to 2. Alike likely: h of the widths kernels
    are built for, K of the divisors of H (K = H where the budget has no groups). Legal as in a
    search: D and F are multiples of 128, depths and heads split where those of the size must.
    Kept are those within the tolerance of the size and with MLP/attention from 0.5 to 12.
    """
    grouped = b.bounded["kv_group"].high > 1
    ratios, over, step = OPENED["mlp_attention_ratio"], split(b), depth_step(b)
    found = 0
    while found < n:
        aspect = _log_uniform(chance, OPENED["aspect"])
        width = max(1, round((b.params * aspect / 12) ** (1 / 3) / ALIGNED)) * ALIGNED
        depth = max(1, round(width / aspect / step)) * step
        d_head = chance.choice(HEAD_WIDTHS)
        heads = _log_uniform(chance, OPENED["attention_width_ratio"]) * width / d_head
        n_head = max(1, round(heads / over)) * over
        shared = [k for k in divisors(n_head) if k % over == 0 or over % k == 0]
        one = vary(spec, d_model=width, n_layer=depth, d_head=d_head, n_head=n_head,
                   n_kv_head=chance.choice(shared) if grouped else n_head)  # fmt: skip
        one = vary(one, d_ff=solve_width(one, b.params, ALIGNED))
        f = features(one, float(b.tokens))
        near = abs(float(parameters(one).total) / b.params - 1) <= b.tolerance
        if near and ratios.low <= float(f.mlp_attention_ratio or 0) <= ratios.high:
            found += 1
            yield one


def _log_uniform(chance: random.Random, span: Range) -> float:
    return math.exp(chance.uniform(math.log(span.low), math.log(span.high)))


def reasons(verdict: Verdict) -> list[str]:
    """What a better shape does differently, field by field, in a practitioner's words."""
    gap = verdict.gap
    if gap is None:
        return []
    own, other = verdict.shape, gap.better
    found = []
    if _is_multi_head(own) and not _is_multi_head(other):
        found.append(f"a KV head for every query head; {other.dims()['n_kv_head']} would do")
    for axis, many, few in (
        ("attention_width_ratio", "attention wide", "attention narrow"),
        ("mlp_attention_ratio", "feed-forward wide", "feed-forward narrow"),
        ("aspect", "shallow and wide", "deep and narrow"),
    ):
        a = getattr(own.features, axis, None)
        b = getattr(other.features, axis, None)
        if a is None or b is None or abs(math.log(float(a / b))) < math.log(1.2):
            continue
        words = many if a > b else few
        found.append(f"{words}: {RATIO_NAMES[axis]} {float(a):.3g}, better {float(b):.3g}")
    widths = (own.dims().get("d_head"), other.dims().get("d_head"))
    if widths[0] != widths[1]:
        found.append(f"heads of {widths[0]}, better {widths[1]}")
    return found or ["nothing stands out: a step in several dimensions"]


RATIO_NAMES = {
    "attention_width_ratio": "H h/D", "mlp_attention_ratio": "MLP/attention", "aspect": "D/L",
}  # fmt: skip


def _is_multi_head(c: Candidate) -> bool:
    kept = has(c.spec, "n_kv_head") and has(c.spec, "n_head")
    return kept and read(c.spec, "n_kv_head") == read(c.spec, "n_head")
