"""What a user adds to the speed of serving: cached prefixes, guessed tokens, chunks, a queue.

``costs.serve`` times a step and a load. Here are the factors that a user sets, the time of a
request under load, and what a token costs in chip-seconds.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Num, ceil_div, maximum, minimum
from scantling.costs.serve import (
    CHUNK_TOKENS,
    Demand,
    Deployment,
    Load,
    Times,
    demand,
    load,
    prefill_time,
    serve_constants,
    served,
    step_time,
)
from scantling.hardware import Chip
from scantling.hardware.constants.serve import ServeConstants
from scantling.spec import Experts, Spec
from scantling.spec.vary import nodes

BURSTS = (0.0, 0.5, 2.0)
"""(1 + cv²) / 2 of a queue for one server: nobody waits, every request alike, and arrivals and
lengths so uneven that their squared coefficients of variation sum to four."""

HALVINGS = 60


class Factors(Struct, frozen=True, kw_only=True):
    """What the user knows of the traffic and the engine.

    Args:
        prefix_hit: Share of a prompt's tokens whose keys and values are cached already, in [0, 1).
        guesses: Tokens guessed ahead for each step of the model.
        accept: Chance that a guess is right, each on its own, in [0, 1].
        draft: The model that guesses; None costs nothing (n-grams, heads of the model itself).
        chunk: Tokens of prompts that one step takes.
        skew: How unevenly tokens choose experts: the i-th most wanted is chosen in proportion to
            i^(−skew); 0 is evenly.
    """

    prefix_hit: float = 0.0
    guesses: int = 0
    accept: float = 0.7
    draft: Spec | None = None
    chunk: int = CHUNK_TOKENS
    skew: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step yields: 1 + a + a² + … + a^k = (1 − a^{k+1}) / (1 − a).

        Guesses are right until the first wrong one, and the model's own token comes on top
        (Leviathan et al. 2023).

        Example:
            >>> Factors(guesses=3, accept=0.5).tokens_per_step
            1.875
        """
        return float(sum(self.accept**i for i in range(self.guesses + 1)))


class Speed(Struct, frozen=True, kw_only=True):
    """What one replica does at a load."""

    sequences: Num
    """Running at once in one attention group."""
    tpot_s: Times
    ttft_s: Times
    """Of a request that does not queue."""
    tokens_per_s: Times
    """Output tokens of the replica."""
    input_s: Num
    """Seconds of the replica that a prompt's token takes, cached ones included."""
    output_s: Num
    """Seconds of the replica that a token of the answer takes."""
    prompt_s: Num
    """Seconds of its group that a prompt takes among others."""
    queues: Any


def speed(
    spec: Spec, chip: Chip, d: Deployment, prompt: Num, answer: Num, concurrency: Num | None = None,
    factors: Factors | None = None, read: Num = 1.0,
) -> Speed:  # fmt: skip
    """What one replica does with so many requests in flight.

        tokens per step E = Σ aⁱ, i = 0 … k           guessing k tokens, each right with chance a
        time per token   = (step of k + 1 tokens a sequence + k steps of the draft) / E
                           + (sequences − own) × prefill / answer
        prefill          = of the prompt's tokens that are not cached, which attend to all
        first token      = a prefill alone, in chunks: (chunks − 1) × launches more

    Args:
        spec: The model, or a column.
        chip: Where.
        d: How it is split, and in what numbers.
        prompt: Tokens in.
        answer: Tokens out.
        concurrency: Requests in flight on the replica; None is as many as the memory holds.
        factors: What the user knows.
        read: Bytes of the weights over those of ``d``'s dtypes, where a scheme has others.

    Example:
        >>> from scantling import catalog
        >>> from scantling.hardware import chip
        >>> spec, one = catalog.model("llama-3.1-8b"), chip("h100-sxm")
        >>> plain = speed(spec, one, Deployment(), 4096, 256, 8)
        >>> cached = speed(spec, one, Deployment(), 4096, 256, 8, Factors(prefix_hit=0.75))
        >>> cached.ttft_s.value < plain.ttft_s.value, cached.tpot_s.value < plain.tpot_s.value
        (True, True)
    """
    f = factors or Factors()
    c = serve_constants(chip)
    w = load(spec, chip, d, prompt, answer, concurrency, c)
    if f.prefix_hit:
        w = prefix_cached(w, spec, chip, d, f.prefix_hit)
    w = replace(w, **{f: _reading(getattr(w, f), read) for f in ("decode", "prefill", "bunch")})
    if f.skew:
        share = touched_share(spec, float(w.sequences * d.dp / d.pp), f.skew)
        w = replace(w, decode=replace(w.decode, experts_s=w.decode.experts_s * share))
    base = served(w, d, c)
    plain: Any = step_time(w.decode, c)
    step: Any = plain
    if f.guesses:
        step = guessed_step(w, spec, chip, d, c, f, read) / f.tokens_per_step
    among: Any = prefill_time(w, c)
    tpot: Any = base.tpot_s.value - plain + step
    chunks: Any = maximum(ceil_div(w.prompt, f.chunk), 1)  # type: ignore[arg-type]
    first: Any = base.ttft_s.value + (chunks - 1) * w.prefill.launches * c.launch_s
    output: Any = step / (w.sequences * d.dp)
    input_: Any = among / (d.pp * d.dp)
    rate: Any = 1 / (output + input_ / answer)
    return Speed(
        sequences=w.sequences, tpot_s=_scaled(base.tpot_s, tpot),
        ttft_s=_scaled(base.ttft_s, first), tokens_per_s=_scaled(base.tokens_per_s, rate),
        input_s=input_ / prompt, output_s=output, prompt_s=among / d.pp, queues=w.queues,
    )  # fmt: skip


def _reading(one: Demand, read: Num) -> Demand:
    return replace(one, weights_s=one.weights_s * read, experts_s=one.experts_s * read)


def _scaled(t: Times, value: Any) -> Times:
    """The same interval around another value."""
    by: Any = value / t.value
    return Times(t.low * by, value, t.high * by)


def prefix_cached(w: Load, spec: Spec, chip: Chip, d: Deployment, hit: float) -> Load:
    """A load whose prompts are cached up to a share: only the rest passes the layers.

    The rest of f = (1 − hit) p tokens sees all keys: of the p² / 2 pairs of a causal prompt
    (p² − (hit p)²) / 2 remain, where f² / 2 are what f tokens alone would have.
    """
    fresh: Any = maximum(ceil_div(w.prompt * 1000 - int(hit * 1000) * w.prompt, 1000), 1)  # type: ignore[arg-type]
    pairs: Any = (w.prompt * w.prompt - (w.prompt - fresh) * (w.prompt - fresh)) / (fresh * fresh)
    bunched: Any = minimum(maximum(CHUNK_TOKENS // fresh, 1), maximum(w.sequences // d.pp, 1))
    one, many = (demand(spec, chip, d, n, fresh, "prefill") for n in (1, bunched))
    return replace(
        w, prefill=replace(one, attention_s=one.attention_s * pairs),
        bunch=replace(many, attention_s=many.attention_s * pairs), bunched=bunched, prompt=fresh,
    )  # fmt: skip


def touched_share(spec: Spec, tokens: float, skew: float) -> float:
    """Distinct experts that a step of so many tokens touches, over those of an even choice.

        even    E (1 − (1 − k/E)^m)
        skewed  Σ 1 − (1 − πᵢ)^m,  πᵢ = 1 − e^{−λ i^(−skew)},  λ such that Σ πᵢ = k

    πᵢ is the chance that a token draws expert i among k without putting any back, by weight: those
    whose exponential clocks of rate i^(−skew) ring before the time at which k have rung.

    Args:
        spec: One model.
        tokens: m, of all groups of a stage.
        skew: See ``Factors``.

    Example:
        >>> from scantling import catalog
        >>> spec = catalog.model("qwen3-30b-a3b")
        >>> round(touched_share(spec, 32, 0.0), 6), touched_share(spec, 32, 1.0) < 0.8
        (1.0, True)
    """
    experts = [n for _, n in nodes(spec) if isinstance(n, Experts)]
    if not experts:
        return 1.0
    n, k, m = int(experts[0].n_expert), int(experts[0].top_k), max(tokens, 1.0)
    weights = [float(i) ** -skew for i in range(1, n + 1)]
    low, high = 0.0, k / weights[-1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = sum(1 - math.exp(-middle * w) for w in weights) >= k
        low, high = (low, middle) if enough else (middle, high)
    found = sum(1 - math.exp(-high * w * m) for w in weights)
    return float(found / (n * (1 - (1 - k / n) ** m)))


def guessed_step(
    w: Load,
    spec: Spec,
    chip: Chip,
    d: Deployment,
    c: ServeConstants,
    f: Factors,
    read: Num = 1.0,
) -> Any:
    """A step that checks k guesses of every sequence, after the draft made them.

    The check is a decode step of k + 1 tokens a sequence that reads each cache once.
    """
    batch: Any = maximum(w.sequences / d.pp, 1)
    context: Any = w.prompt + ceil_div(w.answer, 2)  # type: ignore[arg-type]
    tokens = f.guesses + 1
    wide = _reading(demand(spec, chip, d, batch * tokens, context), read)
    check = replace(wide, cache_s=wide.cache_s / tokens, sequences=wide.sequences / tokens)
    if f.skew:
        share = touched_share(spec, float(batch * tokens * d.dp), f.skew)
        check = replace(check, experts_s=check.experts_s * share)
    seconds: Any = step_time(check, c)
    if f.draft is not None:
        own = replace(d, tp=1, dp=1, pp=1)
        small = demand(f.draft, chip, own, batch, context)
        seconds = seconds + f.guesses * step_time(small, c)
    return seconds


def first_token_under_load(alone: Times, prompt_s: Any, utilisation: float) -> Times:
    """Time to the first token where requests queue: a range, since bursts decide.

    Pollaczek and Khinchine: a queue for one server at utilisation u waits
    service × u / (1 − u) × (1 + cv²) / 2 on average. The low end is no wait, the value that of
    requests alike (cv 0), the high end that of uneven ones (2.0).

    Args:
        alone: Without a queue.
        prompt_s: Service: seconds of a prompt among others.
        utilisation: Share of the time that prefills are at work, in [0, 1).

    Example:
        >>> first_token_under_load(Times(0.1, 0.2, 0.3), 0.2, 0.5)
        Times(low=0.1, value=0.3, high=0.7)
    """
    low, middle, high = (prompt_s * utilisation / (1 - utilisation) * burst for burst in BURSTS)
    return Times(alone.low + low, round(alone.value + middle, 12), alone.high + high)
