"""What is said of the dimensions of models, each with a verdict that is computed again."""

from __future__ import annotations

from scantling.claims.records import VERDICTS, Claim, Verdict, areas, claim, claims
from scantling.claims.registry import CHECKS, Checked, differences, load_checks

__all__ = [
    "CHECKS", "VERDICTS", "Checked", "Claim", "Verdict", "areas", "claim", "claims", "differences",
    "load_checks",
]  # fmt: skip
