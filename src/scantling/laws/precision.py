"""What few bits cost: in training as if the model were smaller, after training as extra loss."""

from __future__ import annotations

from collections.abc import Mapping

from scantling.arith import Num, maximum
from scantling.laws.features import Features, exp, log
from scantling.laws.registry import register

LEAST_SHARE = 1e-3
"""The least share of a part that training in few bits leaves; the runs end at a fifth."""


@register("kumar-2024")
def kumar(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from body, tokens, and the bits of training and of serving.

    Kumar et al. (``kumar2024``), integer types. Weights, activations and KV cache trained in P bits
    each leave a share of the parameters, and weights quantized after training to P_s bits add a
    loss that grows with the tokens a parameter has seen:

        N_eff = N Π_x (1 − exp(n_x − P_x/γ_x))             x in weights, activations, KV cache
        L = E + A N_eff^−α + B D^−α + C D^γ_D N^−γ_N exp(b − P_s/γ_s)

    The paper prints the exponentials without the offsets n_x and b, whose values are in its table
    of constants without a sign. With this sign the best precision for a budget of N·D·P is 7.0
    bits and 4 bits cost 5.2 times the parameters, as the text says (7 to 8 bits; over 4 times);
    with the other sign 3.0 bits and 1.2 times.
    The added loss is that of a model trained in 16 bits; one trained in few bits loses less.

    Args:
        features: ``body`` and ``tokens``; ``weight_bits``, ``activation_bits`` and ``kv_bits`` of
            training and ``served_bits`` of the weights, 16 and more where absent.
        constants: ``E A B alpha``, ``gamma_x`` with ``offset_x`` for x in w a kv, and
            ``C gamma_D gamma_N gamma_s offset_s``.

    Returns:
        Nats a token on Dolma.

    Example:
        >>> from scantling.laws.registry import law
        >>> c = law("kumar-2024").facts.constants
        >>> shape = {"body": 1e8, "total": 1.3e8, "width": 768, "depth": 14}
        >>> for tokens in (2e9, 2e10):  # what four bits add after short and after long training
        ...     plain = kumar(Features(**shape, tokens=tokens), c)
        ...     print(round(kumar(Features(**shape, tokens=tokens, served_bits=4), c) - plain, 3))
        0.019
        0.062
    """
    c = constants
    n, d = log(features.body), log(features.tokens)
    effective = n
    bits = {"w": features.weight_bits, "a": features.activation_bits, "kv": features.kv_bits}
    for part, given in bits.items():
        if given is not None:
            share = 1 - exp(c[f"offset_{part}"] - given / c[f"gamma_{part}"])
            effective = effective + log(maximum(share, LEAST_SHARE))
    loss = c["E"] + c["A"] * exp(-c["alpha"] * effective) + c["B"] * exp(-c["alpha"] * d)
    if features.served_bits is None:
        return loss
    exposure = c["gamma_D"] * d - c["gamma_N"] * n
    rounding = c["offset_s"] - features.served_bits / c["gamma_s"]
    return loss + c["C"] * exp(exposure + rounding)
