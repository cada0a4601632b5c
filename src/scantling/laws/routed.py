"""Published laws of models with experts; without experts each gives its dense loss."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scantling.arith import Num
from scantling.laws.features import Features, exp, log
from scantling.laws.registry import register


@register("clark-2022")
def clark(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from dense-equivalent size and the number of experts.

    Clark et al. (``clark2022``), the S-BASE router, logarithms to base 10:

        log L = a log N + b log Ê + c log N log Ê + d
        1/Ê   = 1/(E − 1 + 1/(1/Es − 1/Em)) + 1/Em

    so Ê is Es at E = 1 and Em with endless experts.

    Args:
        features: ``body`` (of one token) and ``n_experts``, one where absent.
        constants: ``a b c d E_start E_max``.

    Returns:
        Nats a token on MassiveText after 130 B tokens; tokens are not in the law.

    Example:
        >>> from scantling.laws.registry import law
        >>> k = law("clark-2022").facts.constants
        >>> shape = {"body": 1e8, "total": 1.3e8, "width": 768, "depth": 12, "tokens": 1.3e11}
        >>> clark(Features(**shape, n_experts=64), k) < clark(Features(**shape), k)
        True
    """
    k = constants
    experts = 1 if features.n_experts is None else features.n_experts
    start = 1 / (1 / k["E_start"] - 1 / k["E_max"])
    effective = 1 / (1 / (experts - 1 + start) + 1 / k["E_max"])
    n, e = log(features.body) / math.log(10), log(effective) / math.log(10)
    power = k["a"] * n + k["b"] * e + k["c"] * (n * e) + k["d"]
    return exp(power * math.log(10))


@register("krajewski-2024")
def krajewski(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from size, tokens and the granularity of 64-fold experts.

    Ludziejewski, Krajewski et al. (``krajewski2024``), expansion rate 64:

        L = c + (g/G^γ + a) N^−α + b D^−β

    with N all parameters, and a dense law with constants of its own where there are no experts.

    Args:
        features: ``tokens``, ``granularity`` G (absent: dense), and ``all_parameters``
            (``total`` where absent).
        constants: ``c a alpha b beta g gamma`` and ``dense_a`` to ``dense_beta``.

    Returns:
        Nats a token on C4.

    Example:
        >>> from scantling.laws.registry import law
        >>> k = law("krajewski-2024").facts.constants
        >>> shape = {"body": 1e9, "total": 1e9, "width": 2048, "depth": 20, "tokens": 6.6e10}
        >>> coarse, fine = (
        ...     krajewski(Features(**shape, granularity=g, all_parameters=4e10), k) for g in (1, 16)
        ... )
        >>> fine < coarse < krajewski(Features(**shape), k)
        True
    """
    k = constants
    n, d = log(_all_parameters(features)), log(features.tokens)
    if features.granularity is None:
        size_term = k["dense_a"] * exp(-k["dense_alpha"] * n)
        return k["c"] + size_term + k["dense_b"] * exp(-k["dense_beta"] * d)
    fine = k["g"] * exp(-k["gamma"] * log(features.granularity))
    return k["c"] + (fine + k["a"]) * exp(-k["alpha"] * n) + k["b"] * exp(-k["beta"] * d)


@register("abnar-2025")
def abnar(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from all parameters, tokens and sparsity.

    Abnar et al. (``abnar2025``), with S = (E − K)/E the share of experts a token does not visit:

        L = a N^−α + b D^−β + c (1−S)^−λ + d (1−S)^−δ N^−γ + e

    R² is 0.99 in sample and 0.68 at the held-out S = 0.98: sparsity must not be extrapolated.

    Args:
        features: ``all_parameters`` (``total`` where absent), ``tokens`` and
            ``active_share`` 1 − S (one where absent).
        constants: ``a alpha b beta c lambda d delta gamma e``.

    Returns:
        Nats a token on RedPajama.

    Example:
        >>> from scantling.laws.registry import law
        >>> k = law("abnar-2025").facts.constants
        >>> f = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e11)
        >>> g = Features(body=1e9, total=1e9, width=2048, depth=20, tokens=1e12)
        >>> abnar(g, k) < abnar(f, k)
        True
    """
    k = constants
    n = log(_all_parameters(features))
    share = 0.0 if features.active_share is None else log(features.active_share)
    loss = k["a"] * exp(-k["alpha"] * n) + k["b"] * exp(-k["beta"] * log(features.tokens))
    loss = loss + k["c"] * exp(-k["lambda"] * share)
    return loss + k["d"] * exp(-k["delta"] * share - k["gamma"] * n) + k["e"]


def _all_parameters(features: Features) -> Num:
    return features.total if features.all_parameters is None else features.all_parameters
