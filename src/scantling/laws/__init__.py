"""Loss from plain features; laws know nothing of specs.

``LAWS`` holds them by name, ``law(name)`` finds one, ``prior_terms`` prices what no law can, and
``bounds`` says where evidence ends.

Example:
    >>> DEFAULT, len(LAWS) > 10
    ('aspect', True)
"""

from __future__ import annotations

from scantling.laws import (  # noqa: F401 - importing a law registers it
    aspect,
    chinchilla,
    precision,
    routed,
    shape,
    size_laws,
)
from scantling.laws.features import Features
from scantling.laws.head_width import half_width as head_width_half
from scantling.laws.head_width import head_width_excess
from scantling.laws.priors import (
    Bound,
    Price,
    Prior,
    Term,
    Unseen,
    bounds,
    difference_terms,
    prior_terms,
    priors,
    ratio_penalty,
    terms,
    total,
    unseen,
    unseen_texts,
)
from scantling.laws.registry import LAWS, Difference, Errors, Facts, Law, law, register

DEFAULT = "aspect"
"""The law used unless another is named."""

__all__ = [
    "DEFAULT",
    "LAWS",
    "Bound",
    "Difference",
    "Errors",
    "Facts",
    "Features",
    "Law",
    "Price",
    "Prior",
    "Term",
    "Unseen",
    "bounds",
    "difference_terms",
    "head_width_excess",
    "head_width_half",
    "law",
    "prior_terms",
    "priors",
    "ratio_penalty",
    "register",
    "terms",
    "total",
    "unseen",
    "unseen_texts",
]
