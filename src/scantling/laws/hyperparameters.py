"""Peak learning rate and batch size by the Step law."""

from __future__ import annotations

import functools
from typing import Any

from scantling.sources import read_data


@functools.cache
def _constants() -> dict[str, Any]:
    found: dict[str, Any] = read_data("laws.toml")["hyperparameters"]
    return found


def hyperparameters(body: float, tokens: float) -> dict[str, Any]:
    """Advice for a pre-training run: peak learning rate and batch, fitted.

    Li et al. (``steplaw2025``), over grids of learning rate and batch:

        learning rate = 1.78 N^−0.712 D^0.307
        batch, tokens = 0.573 D^0.571

    with N the body. Constants and their domain are data (``laws.toml``, [hyperparameters]).

    Args:
        body: Parameters without embeddings and head.
        tokens: Training tokens.

    Example:
        >>> h = hyperparameters(1e9, 1e11)
        >>> 1e-4 < h["learning_rate"]["value"] < 3e-3, h["extrapolated"]
        (True, False)
    """
    c = _constants()
    rate = c["rate"] * body ** c["rate_body"] * tokens ** c["rate_tokens"]
    batch = c["batch"] * tokens ** c["batch_tokens"]
    outside = not (c["body"][0] <= body <= c["body"][1] and tokens <= c["tokens"][1])
    why = [c["title"], f"source {c['source']}"] + (["outside the fitted domain"] if outside else [])
    spread = c["spread"] * (2 if outside else 1)

    def entry(value: float, unit: str) -> dict[str, Any]:
        return {"value": value, "low": value / (1 + spread), "high": value * (1 + spread),
                "unit": unit, "kind": "fitted", "why": why}  # fmt: skip

    return {
        "learning_rate": entry(rate, "peak, AdamW"), "batch_tokens": entry(batch, "tokens"),
        "extrapolated": outside,
    }  # fmt: skip
