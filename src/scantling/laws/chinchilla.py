"""The law most people mean: size and tokens alone."""

from __future__ import annotations

from collections.abc import Mapping

from scantling.arith import Num
from scantling.laws.features import Features, exp, log
from scantling.laws.registry import register


@register("chinchilla-2024")
def chinchilla(features: Features, constants: Mapping[str, float]) -> Num:
    """Loss from total parameters and tokens.

    The third approach of Hoffmann et al. (``chinchilla2022``) with the constants of the re-fit by
    Besiroglu et al. (``besiroglu2024``) to the points of its figure 4:

        L = E + A N^−α + B D^−β,    N^−α = exp(−α ln N)

    It cannot see shape: among equal sizes it ranks by what the embeddings weigh, which picks the
    wrong one more often than not.

    Args:
        features: ``total`` and ``tokens``.
        constants: ``E A alpha B beta``.

    Returns:
        Nats a token in the recipe of the runs.

    Example:
        >>> from scantling.laws.registry import law
        >>> f = Features(body=7e10, total=7e10, width=8192, depth=80, tokens=1.4e12)
        >>> round(chinchilla(f, law("chinchilla-2024").facts.constants), 3)
        1.974
    """
    c = constants
    size_term = c["A"] * exp(-c["alpha"] * log(features.total))
    token_term = c["B"] * exp(-c["beta"] * log(features.tokens))
    return c["E"] + size_term + token_term
