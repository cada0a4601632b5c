"""How much of each axis a model has: what multiplies the coefficient of a prior term.

An amount is zero at the reference of its axis, and ``None`` where the structure of the model has
no such axis: then the term costs nothing to evaluate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from scantling.arith import Num, maximum, minimum
from scantling.laws.features import Features, exp, log

if TYPE_CHECKING:
    from scantling.laws.priors import Prior


class Setting(NamedTuple):
    """What an amount may need beside the features: in a difference both sides share it."""

    loss: Num
    """Predicted loss L, nats a token."""
    size: Num
    """ln of the body."""
    reference_ratio: float | None = None
    """r of the runs behind the law."""


Amount: TypeAlias = "Callable[[Features, Prior, Setting], Num | None]"

AMOUNTS: dict[str, Amount] = {}
"""The axes whose amount is more than one feature."""


def amount(axis: str) -> Callable[[Amount], Amount]:
    """Decorates the amount of an axis."""

    def enter(function: Amount) -> Amount:
        AMOUNTS[axis] = function
        return function

    return enter


def amount_of(axis: str, prior: Prior, features: Features, setting: Setting) -> Num | None:
    """What multiplies the coefficient of an axis, ``None`` where the model has no such axis."""
    if axis in AMOUNTS:
        return AMOUNTS[axis](features, prior, setting)
    if not prior.feature:
        return None
    value: Num | None = getattr(features, prior.feature)
    if value is None or prior.scale is None:
        return value
    scaled: Num = minimum(value * prior.scale, 1.0)
    return scaled


def phi(ratio: Num, best: float, factor: float) -> Num:
    """A relative penalty b φ(r/r*), φ(x) = ln x + 1/x − 1, in place on columns."""
    x = ratio / best
    found = log(x) - 1
    found += 1 / x
    found *= factor
    return found


def _apart(ratio: Num) -> Num:
    """The distance of a ratio from one, |ln x|."""
    exponent = log(ratio)
    found: Num = maximum(exponent, -exponent)
    return found


@amount("kv_group")
def _kv_group(f: Features, prior: Prior, _: Setting) -> Num | None:
    """Octaves of the group beyond the reference: max(0, log2(g/4))."""
    group = f.kv_group
    if group is None:
        return None
    octaves = log(group / float(prior.reference))
    octaves /= math.log(2)
    found: Num = maximum(octaves, 0.0)
    return found


@amount("mlp_attention_ratio")
def _mlp_attention_ratio(f: Features, prior: Prior, at: Setting) -> Num | None:
    """Nats of the law taken in full: L [b φ(r/r*) − b φ(r_ref/r*)] shrink(N).

    shrink(N): the penalty halves for every fivefold body above the 1 B fit, unknown above 3 B, so
    (N/1e9)^−(ln 2/ln 5) between the two and constant outside.
    """
    ratio = f.mlp_attention_ratio
    if ratio is None:
        return None
    c = prior.constants
    base = float(prior.reference) if at.reference_ratio is None else at.reference_ratio
    start, end = math.log(c["shrink_from"]), math.log(c["shrink_to"])
    shrink = minimum(maximum(at.size, start), end)
    shrink -= start
    shrink *= -math.log(2) / math.log(c["shrink_halves"])
    excess = phi(ratio, c["r_best"], c["b"]) - phi(base, c["r_best"], c["b"])
    return excess * at.loss * exp(shrink)


@amount("attention_width")
def _attention_width(f: Features, prior: Prior, _: Setting) -> Num | None:
    """Distance of Hh/D from one in octaves, full at the end of the domain."""
    ratio = f.attention_width_ratio
    if ratio is None:
        return None
    found: Num = minimum(_apart(ratio) / math.log(prior.constants["full"]), 1.0)
    return found


@amount("window")
def _window(f: Features, prior: Prior, _: Setting) -> Num | None:
    """max(0, log2(S/(2w))) times the share of local layers over that of the table."""
    windows, share = f.context_windows, f.local_share
    if windows is None or share is None:
        return None
    octaves: Num = maximum(log(windows) / math.log(2) - 1.0, 0.0)
    return octaves * share / prior.constants["local_share"]


@amount("local_global")
def _local_global(f: Features, _: Prior, __: Setting) -> Num | None:
    """One from one local layer in two on, and none where windows are as long as the sequence."""
    share = f.local_share
    if share is None:
        return None
    found: Num = minimum(share * 2, 1.0)
    windows = f.context_windows
    if windows is None:
        return found
    shorter: Num = minimum(maximum(log(windows) / math.log(2), 0.0), 1.0)
    return found * shorter


@amount("partial_rotary")
def _partial_rotary(f: Features, _: Prior, __: Setting) -> Num | None:
    """None of it at full rotation, all of it from a half down."""
    if f.rotary_fraction is None:
        return None
    found: Num = minimum((1 - f.rotary_fraction) * 2, 1.0)
    return found


@amount("nope")
def _nope(f: Features, _: Prior, __: Setting) -> Num | None:
    """From each fourth layer (0) to every layer (1)."""
    if f.nope_share is None:
        return None
    found: Num = maximum((f.nope_share - 0.25) / 0.75, 0.0)
    return found


@amount("nope_some")
def _nope_some(f: Features, prior: Prior, at: Setting) -> Num | None:
    """One at each fourth layer; beyond it hands over to the term of every layer."""
    most = _nope(f, prior, at)
    if f.nope_share is None or most is None:
        return None
    found: Num = minimum(f.nope_share * 4, 1.0) * (1 - most)
    return found


@amount("recurrent")
def _recurrent(f: Features, prior: Prior, _: Setting) -> Num | None:
    """One for attention in 4 to 25 % of the mixers, straight down to 0 at none and at all."""
    share, c = f.attention_share, prior.constants
    if share is None:
        return None
    sides = minimum(share / c["full_from"], (1 - share) / (1 - c["full_to"]))
    found: Num = minimum(sides, 1.0)
    return found


@amount("parallel_block")
def _parallel_block(f: Features, prior: Prior, at: Setting) -> Num | None:
    """The share of parallel layers, times 0.7 per doubling above 1 B and nothing from 60 B on."""
    share, c = f.parallel_share, prior.constants
    if share is None:
        return None
    octaves = maximum((at.size - math.log(c["shrink_from"])) / math.log(2), 0.0)
    left: Num = exp(octaves * math.log(c["shrink_octave"]))
    return share * left * (at.size < math.log(c["none_from"]))


@amount("factorised_embedding")
def _factorised_embedding(f: Features, prior: Prior, _: Setting) -> Num | None:
    """ln(D/rank) over ln 6, for a table that is no head."""
    return _factor(f, prior) if f.tied is None else None


@amount("factorised_shared")
def _factorised_shared(f: Features, prior: Prior, _: Setting) -> Num | None:
    """The same for a table that is the head too."""
    return None if f.tied is None else _factor(f, prior)


def _factor(f: Features, prior: Prior) -> Num | None:
    if f.embedding_rank is None:
        return None
    found: Num = maximum(-log(f.embedding_rank) / math.log(prior.constants["rank"]), 0.0)
    return found


@amount("reused_block")
def _reused_block(f: Features, prior: Prior, _: Setting) -> Num | None:
    """(ln u / ln 12)^1.6."""
    if f.reuse is None:
        return None
    c = prior.constants
    uses: Num = maximum(f.reuse, 1.0)
    return (log(uses) / math.log(c["layers"])) ** c["power"]


@amount("n_experts")
def _n_experts(f: Features, prior: Prior, _: Setting) -> Num | None:
    """log2(E/64) inside the measured range, constant outside."""
    if f.n_experts is None:
        return None
    start, end = prior.constants["from"], prior.constants["to"]
    inside: Num = minimum(maximum(f.n_experts, start), end)
    return log(inside / start) / math.log(2)


@amount("n_experts_beyond")
def _n_experts_beyond(f: Features, prior: Prior, _: Setting) -> Num | None:
    """Octaves of E outside the measured range."""
    if f.n_experts is None:
        return None
    inside: Num = minimum(maximum(f.n_experts, prior.constants["from"]), prior.constants["to"])
    return _apart(f.n_experts / inside) / math.log(2)


@amount("granularity")
def _granularity(f: Features, prior: Prior, _: Setting) -> Num | None:
    """log2(G/2)/2 up to one: the measured step from G 2 to 8."""
    if f.granularity is None:
        return None
    octaves = log(f.granularity / float(prior.reference)) / math.log(2)
    found: Num = minimum(maximum(octaves / prior.constants["octaves"], 0.0), 1.0)
    return found


@amount("n_shared_experts")
def _n_shared_experts(f: Features, _: Prior, __: Setting) -> Num | None:
    """None of it at one shared expert, all of it from two on."""
    if f.n_shared_experts is None:
        return None
    found: Num = minimum(_apart(f.n_shared_experts) / math.log(2), 1.0)
    return found


@amount("first_dense")
def _first_dense(f: Features, prior: Prior, _: Setting) -> Num | None:
    """Nothing at 1 layer of 24, one at 2 of 6."""
    if f.dense_first_share is None:
        return None
    c = prior.constants
    found: Num = maximum((f.dense_first_share - c["none"]) / (c["full"] - c["none"]), 0.0)
    return found
