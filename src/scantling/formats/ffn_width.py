"""The FFN width a framework builds from the number in its config, where those differ."""

from __future__ import annotations

from fractions import Fraction

from scantling.errors import UnknownNameError

BUILT = {
    "stated": Fraction(1),
    "gpt-neox-gated": Fraction(2, 3) / 2,
}
"""Width of each matrix over the number in the file. GPT-NeoX takes 2/3 of a gated width and halves
it over gate and up (EleutherAI/gpt-neox, PR 1309)."""


def built_width(stated: int, rule: str) -> float:
    """The width F of the matrices that a framework makes of the number in its config.

    Raises:
        UnknownNameError: If nobody knows the rule.

    Example:
        >>> round(built_width(11008, "gpt-neox-gated"), 2)
        3669.33
    """
    return float(stated * _share(rule))


def stated_width(d_ff: int, rule: str) -> int:
    """The number to write for matrices of a width F.

    Raises:
        UnknownNameError: If nobody knows the rule.

    Example:
        >>> stated_width(11008, "gpt-neox-gated")
        33024
    """
    return int(d_ff / _share(rule))


def _share(rule: str) -> Fraction:
    if rule not in BUILT:
        raise UnknownNameError("FFN width rule", rule, BUILT)
    return BUILT[rule]
