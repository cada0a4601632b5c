"""scantling chooses, checks and tests the dimensions of language models.

The verbs of the command line are functions here: ``analyze``, ``calibrate``, ``compare``,
``design``, ``export``, ``lint``, ``plan``, ``serve``, ``trace``, ``validate``.
Names are found on first use, so that importing the package costs a few milliseconds.

Example:
    >>> import scantling
    >>> scantling.model("llama-3.1-8b").n_layer
    32
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

NAMES = {
    "analyze": "scantling.report.analyze",
    "Budget": "scantling.search.budget",
    "Candidate": "scantling.search.candidate",
    "Front": "scantling.search",
    "Quantity": "scantling.quantity",
    "ScantlingError": "scantling.errors",
    "Spec": "scantling.spec",
    "Workload": "scantling.spec",
    "calibrate": "scantling.calibrate",
    "chip": "scantling.hardware",
    "compare": "scantling.report.compare",
    "design": "scantling.search",
    "export": "scantling.formats.registry",
    "extend": "scantling.formats.context",
    "law": "scantling.laws",
    "lint": "scantling.rules",
    "load": "scantling.catalog",
    "model": "scantling.catalog",
    "parameters": "scantling.costs.count",
    "plan": "scantling.search.plans",
    "rope": "scantling.report.rope",
    "serve": "scantling.search.serving",
    "trace": "scantling.report.trace",
    "validate": "scantling.validate",
    "vary": "scantling.spec",
}
"""Public names and where they live."""

if TYPE_CHECKING:
    from scantling.catalog import load, model
    from scantling.costs.count import parameters
    from scantling.errors import ScantlingError
    from scantling.hardware import chip
    from scantling.laws import law
    from scantling.quantity import Quantity
    from scantling.spec import Spec, Workload, vary


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return getattr(import_module(NAMES[name]), name)
    raise AttributeError(f"module 'scantling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*NAMES, "__version__"])


__all__ = [
    "Quantity",
    "ScantlingError",
    "Spec",
    "Workload",
    "chip",
    "law",
    "load",
    "model",
    "parameters",
    "vary",
]
