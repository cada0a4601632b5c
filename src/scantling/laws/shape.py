"""scantling's own law: body and part of the head, aspect ratio that follows size, head width."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scantling.arith import Num, maximum, minimum
from scantling.laws.aspect import useful_size
from scantling.laws.experts import effective_body
from scantling.laws.features import Features, exp, log
from scantling.laws.head_width import head_width_excess
from scantling.laws.registry import FITTED_HERE, form, register
from scantling.laws.size_laws import seen_tokens


@form("shape")
def shape(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from body, width, depth, tokens and head width.

    The ``aspect`` law with two more freedoms, both small and both held back by a prior in the fit,
    and with repetition:

    1. Part of the head works like body. It is ``share`` · V0 · W parameters with the vocabulary V0
       of the runs, so it depends on width alone: no vocabulary is bought by it.
                                                       n = (body + share V0 W)/N0
    2. The best width over depth may follow size:      a = ln(W/L) − ln r0 − ν ln n
       but only over the sizes of the runs, n_low to n_high: beyond them n stands still in a.
       A slope seen over one decade would make 70 B a model of 300 layers. Refits behind an
       interval have no such ends, so that it holds the slope going on.

    3. A repeated token is worth less than a new one: D is U + U R* (1 − exp(−(D/U − 1)/R*)) with
       U unique tokens, as in ``muennighoff-2023``.

    4. With experts the body is the geometric mean of what a token passes and what is stored
       (``experts.effective_body``).

    With s = ln n and t = ln(D/D0), as in ``aspect``,

        L = E + A exp(κ a² − α s) + B exp(δ s − β t) + excess(h)

    with s no larger than is of use at so many tokens (``aspect.useful_size``).

    Args:
        features: ``body``, ``tokens``, ``width``, ``depth``, and ``d_head`` where there is one.
        constants: ``E A alpha kappa r0 nu B beta delta share V0 N0 D0 repeats``, and ``n_low``
            and ``n_high`` of the runs.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> constants = {"E": 1.4, "A": 1.2, "alpha": 0.15, "kappa": 0.008, "r0": 32, "nu": 0,
        ...              "B": 0.2, "beta": 0.5, "delta": 0.15, "share": 0, "V0": 50304,
        ...              "N0": 3e8, "D0": 5e10, "repeats": 15.4}
        >>> best = Features(body=3e8, total=3e8, width=1024, depth=32, tokens=5e10, d_head=128)
        >>> round(shape(best, constants), 6)  # every term is one: E + A + B
        2.8
    """
    c = constants
    body = features.body
    if features.all_body is not None:
        body = effective_body(body, features.all_body)
    s = log((body + c["share"] * c["V0"] * features.width) / c["N0"])
    t = log(seen_tokens(features, c["repeats"]) / c["D0"])
    seen = s = useful_size(s, t, c)
    if "n_low" in c:
        seen = minimum(maximum(s, math.log(c["n_low"])), math.log(c["n_high"]))
    a = log(features.width / features.depth) - math.log(c["r0"]) - c["nu"] * seen
    size_term = c["A"] * exp(c["kappa"] * (a * a) - c["alpha"] * s)
    token_term = c["B"] * exp(c["delta"] * s - c["beta"] * t)
    loss = c["E"] + size_term + token_term
    return loss if features.d_head is None else loss + head_width_excess(features.d_head)


for _name in FITTED_HERE:
    register(_name)(shape)


@form("size-tokens")
def size_tokens(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from all parameters and tokens, Chinchilla's form in scaled units.

    L = E + A (N/N0)^−α + B (D/D0)^−β, so that A and B are losses at N0 and D0 and a fit is well
    conditioned.

    Args:
        features: ``total`` and ``tokens``.
        constants: ``E A alpha B beta N0 D0 repeats``.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> at = Features(body=3e8, total=3e8, width=1, depth=1, tokens=5e10)
        >>> c = {"E": 1.7, "A": 0.9, "alpha": 0.3, "B": 0.2, "beta": 0.4, "N0": 3e8, "D0": 5e10,
        ...      "repeats": 15.4}
        >>> round(size_tokens(at, c), 6)
        2.8
    """
    return _of_size(features.total, features, constants)


@form("body-tokens")
def body_tokens(features: Features, constants: Mapping[str, float]) -> Num:
    """The same from the body.

    Example:
        >>> at = Features(body=3e8, total=4e8, width=1, depth=1, tokens=5e10)
        >>> c = {"E": 1.7, "A": 0.9, "alpha": 0.3, "B": 0.2, "beta": 0.4, "N0": 3e8, "D0": 5e10,
        ...      "repeats": 15.4}
        >>> round(body_tokens(at, c), 6)
        2.8
    """
    return _of_size(features.body, features, constants)


def _of_size(size: Num, features: Features, c: Mapping[str, float]) -> Num:
    tokens = seen_tokens(features, c["repeats"])
    size_term = c["A"] * exp(-c["alpha"] * log(size / c["N0"]))
    return c["E"] + size_term + c["B"] * exp(-c["beta"] * log(tokens / c["D0"]))


@form("over-training")
def over_training(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from all parameters and tokens with one exponent, as Gadre et al. fit it.

    Their law in C = 6 N D and M = D/N (``gadre2024``) is Chinchilla's with equal exponents:

        E + (a M^η + b M^−η) C^−η = E + 6^−η (a N^−2η + b D^−2η)

    so that over-training at fixed M moves the loss along parallel lines. In scaled units, with
    α = 2η: L = E + A (N/N0)^−α + B (D/D0)^−α.

    Args:
        features: ``total`` and ``tokens``.
        constants: ``E A alpha B N0 D0 repeats``.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> at = Features(body=3e8, total=3e8, width=1, depth=1, tokens=5e10)
        >>> c = {"E": 1.7, "A": 0.9, "alpha": 0.3, "B": 0.2, "N0": 3e8, "D0": 5e10,
        ...      "repeats": 15.4}
        >>> round(over_training(at, c), 6)
        2.8
    """
    return _of_size(features.total, features, {**constants, "beta": constants["alpha"]})


register("gadre-2024")(over_training)


@form("width-depth")
def width_depth(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from width, depth, body and tokens, a power of each, with data coupled to size.

    The form of the Gemstones (``gemstones2025``) on the body, with the coupling of ``aspect``:

        L = E + w (W/W0)^−a_w + l (L/L0)^−a_l + A n^−α + B n^δ d^−β

    Args:
        features: ``body``, ``tokens``, ``width`` and ``depth``.
        constants: ``E w a_w l a_l A alpha B beta delta N0 D0 W0 L0``.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> at = Features(body=3e8, total=4e8, width=1024, depth=20, tokens=5e10)
        >>> c = {"E": 0.9, "w": 0.3, "a_w": 0.5, "l": 0.4, "a_l": 0.3, "A": 1.0, "alpha": 0.1,
        ...      "B": 0.2, "beta": 0.5, "delta": 0.2, "N0": 3e8, "D0": 5e10, "W0": 1024, "L0": 20}
        >>> round(width_depth(at, c), 6)
        2.8
    """
    c = constants
    s, t = log(features.body / c["N0"]), log(features.tokens / c["D0"])
    width_term = c["w"] * exp(-c["a_w"] * log(features.width / c["W0"]))
    depth_term = c["l"] * exp(-c["a_l"] * log(features.depth / c["L0"]))
    size_term = c["A"] * exp(-c["alpha"] * s)
    return (
        c["E"] + width_term + depth_term + size_term + c["B"] * exp(c["delta"] * s - c["beta"] * t)
    )
