"""The default law: body size, tokens, aspect ratio and head width."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scantling.arith import Num, minimum
from scantling.laws.features import Features, exp, log
from scantling.laws.head_width import head_width_excess
from scantling.laws.registry import register


@register("aspect")
def aspect(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from body, tokens, width over depth, and head width.

    Derived from the law of Hoffmann et al. (2022), L = E + A N^−α + B D^−β, in four steps.
    Let n = N/N0 with N the *body* (embeddings and head do not choose a shape well), d = D/D0.

    1. Scaled units, so that A and B are losses at N0 and D0:   E + A n^−α + B d^−β
    2. A shape far from the best width/depth r0 wastes body; the waste is symmetric in the
       logarithm and multiplies the size term:                 A n^−α · exp(κ ln²((W/L)/r0))
    3. Larger bodies gain more from data, so the token term depends on n:      B n^δ d^−β
    4. The excess of the head width is added:                                  + excess(h)

    With s = ln n, a = ln((W/L)/r0) and t = ln d the powers fold into one exponential each:

        L = E + A exp(κ a² − α s) + B exp(δ s − β t) + excess(h)

    which is three logarithms and two exponentials a shape, and s ends where a larger body would
    begin to be worse (``useful_size``).
    Constants: fitted by robust least squares on log loss to the cooled Gemstones runs
    (``gemstones2025``); E and A are not separately identified, so the asymptote means nothing.

    Args:
        features: ``body``, ``tokens``, ``width``, ``depth``, and ``d_head`` where there is one.
        constants: ``E A alpha kappa r0 B beta delta N0 D0``.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> from scantling.laws.registry import law
        >>> constants = law("aspect").facts.constants
        >>> best = Features(body=3e8, total=3e8, width=413, depth=10, tokens=5e10, d_head=128)
        >>> round(aspect(best, constants), 4)  # every term is one: E + A + B
        2.8208
    """
    c = constants
    s = log(features.body / c["N0"])
    a = log(features.width / (features.depth * c["r0"]))
    t = log(features.tokens / c["D0"])
    s = useful_size(s, t, c)
    size_term = c["A"] * exp(c["kappa"] * (a * a) - c["alpha"] * s)
    token_term = c["B"] * exp(c["delta"] * s - c["beta"] * t)
    loss = c["E"] + size_term + token_term
    return loss if features.d_head is None else loss + head_width_excess(features.d_head)


def useful_size(s: Num, t: Num, constants: Mapping[str, float]) -> Num:
    """The logarithm of the size up to which a larger body is better, at so many tokens.

    The token term B exp(δ s − β t) grows with size. At few tokens it would outgrow the size term
    A exp(−α s), which no table of runs shows: a larger body is at worst as good. The slopes are
    equal, α A exp(−α s) = δ B exp(δ s − β t), at

        s = (ln(α A/(δ B)) + β t)/(α + δ)

    and from there on both terms keep their value.

    Args:
        s: ln(N/N0).
        t: ln(D/D0).
        constants: ``A alpha B beta delta``.

    Example:
        >>> c = {"A": 1.2, "alpha": 0.15, "B": 0.2, "beta": 0.5, "delta": 0.15}
        >>> round(useful_size(9.0, 0.0, c), 3), useful_size(1.0, 0.0, c)
        (5.973, 1.0)
    """
    c = constants
    if c["delta"] <= 0:
        return s
    turn = math.log(c["alpha"] * c["A"] / (c["delta"] * c["B"]))
    end = (turn + c["beta"] * t) / (c["alpha"] + c["delta"])
    return minimum(s, end)  # type: ignore[no-any-return]
