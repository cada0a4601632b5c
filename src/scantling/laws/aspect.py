"""The default law: body size, tokens, aspect ratio and head width."""

from __future__ import annotations

from collections.abc import Mapping

from scantling.arith import Num
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

    which is three logarithms and two exponentials a shape.
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
    size_term = c["A"] * exp(c["kappa"] * (a * a) - c["alpha"] * s)
    token_term = c["B"] * exp(c["delta"] * s - c["beta"] * t)
    loss = c["E"] + size_term + token_term
    return loss if features.d_head is None else loss + head_width_excess(features.d_head)
