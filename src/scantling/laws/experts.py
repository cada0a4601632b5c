"""The dense body that a model with experts is worth."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from scantling.arith import Num
from scantling.laws.features import exp, log
from scantling.sources import read_data


class ExpertFacts(NamedTuple):
    """The power of the total body, and the 90 % ends of it over the configurations."""

    power: float
    low: float
    high: float


@functools.cache
def expert_facts() -> ExpertFacts:
    """The constants of ``effective_body``, from ``data/laws.toml``."""
    c = read_data("laws.toml")["experts"]
    return ExpertFacts(c["power"], c["low"], c["high"])


def effective_body(active: Num, everything: Num, power: float | None = None) -> Num:
    """Between what a token passes and what is stored: active^(1−θ) · all^θ.

    θ is 0.495 over the 16 best runs of four models with experts (9 to 58 % active, 2.15 B in all,
    2 to 20 B tokens) against the dense runs of the same recipe, so the geometric mean. It leaves
    0.037 nats (0.018 from 8 B tokens on); the active body alone leaves 0.102, the total 0.062.
    Experts pay more the longer the training: at 2 B tokens the mean promises 0.07 nats too much.
    One total size and one layer shape stand behind it: a check, not a law.

    Args:
        active: Body parameters a token passes.
        everything: Body parameters with all experts.
        power: θ; the fitted one where absent.

    Returns:
        Parameters.

    Example:
        >>> round(effective_body(1e9, 16e9) / 1e9, 2)
        4.0
        >>> effective_body(1e9, 1e9)
        1000000000.0
    """
    theta = expert_facts().power if power is None else power
    if theta == 0:
        return active
    return active * exp(theta * log(everything / active))


def efficiency_leverage(active_share: Num, granularity: Num, flops: Num) -> Num:
    """How many times the compute of a model with experts a dense one needs for the same loss.

    The Ling team (``ling2025``), over 300 models to 28 B, with A the share of the experts' weights
    that a token passes, G the granularity (2 F of a dense layer over F of an expert), C the FLOPs:

        EL = (A + A0)^(a + d log10 C + γ log2²G + β log2 G)

    The exponent is least where log2 G = −β/(2γ), at G = 11.3 of the paper. The bases of the
    logarithms were inferred from that and from its EL of 7.2 at 1e22 FLOPs, A = 3.1 %, G = 12.

    Args:
        active_share: A, from 0.8 % to 1.
        granularity: G, from 2 to 16.
        flops: Training FLOPs, 1e18 to 1e22.

    Example:
        >>> round(efficiency_leverage(0.031, 12, 1e22), 1)
        7.2
    """
    c = read_data("laws.toml")["leverage"]
    g = log(granularity) / math.log(2)
    power = c["a"] + c["d"] * log(flops) / math.log(10) + c["gamma"] * g * g + c["beta"] * g
    return exp(power * log(active_share + c["offset"]))


def leveraged_body(active: Num, active_share: Num, granularity: Num, tokens: Num) -> Num:
    """The dense body of the same loss and tokens by the leverage of the Ling team.

    With C = 6 N D and equal tokens, EL times the compute is EL times the body. It is the second
    opinion to ``effective_body``: where the two disagree, that is how little is known.

    Args:
        active: Body parameters a token passes.
        active_share: As for ``efficiency_leverage``, with ``granularity``.
        granularity: As above.
        tokens: Training tokens.

    Example:
        >>> round(leveraged_body(1e9, 1 / 16, 8, 1e11) / 1e9, 1)
        4.1
    """
    return active * efficiency_leverage(active_share, granularity, 6 * active * tokens)
