"""Peak learning rate, batch, warmup and steps: laws side by side, and what big runs did."""

from __future__ import annotations

import functools
import math
from typing import Any

from scantling.sources import read_data
from scantling.units import count_text

NINETY = 1.645
"""Standard deviations that hold 90 % of a normal distribution on both sides of its middle."""


@functools.cache
def _constants() -> dict[str, Any]:
    found: dict[str, Any] = read_data("laws.toml")["hyperparameters"]
    return found


def batch_tokens(tokens: float) -> float:
    """The batch in tokens of the Step law for a run of so many tokens.

    Example:
        >>> round(batch_tokens(1e11) / 1e6, 1)
        1.1
    """
    c = _constants()
    return float(c["batch"] * tokens ** c["batch_tokens"])


def hyperparameters(body: float, tokens: float) -> dict[str, Any]:
    """Advice for a pre-training run: peak learning rate and batch, fitted.

    Li et al. (``steplaw2025``), over grids of learning rate and batch:

        learning rate = 1.78 N^−0.712 D^0.307
        batch, tokens = 0.573 D^0.571

    with N the body. Constants and their domain are data (``laws.toml``, [hyperparameters]).
    The interval is a factor of 1.6 inside the grids, which holds the best rate and the best batch
    of 16 of 17 cells of the public ones. It widens with the distance from their middle by what
    the bootstraps of the exponents leave open:

        ln 1.6, and 1.645 s_N ln(N/N_mid) and 1.645 s_D ln(D/D_mid), in quadrature

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
    outside = not (c["body"][0] <= body <= c["body"][1] and tokens <= c["tokens"][1])
    why = [c["title"], f"source {c['source']}"] + (["outside the fitted domain"] if outside else [])
    far_body, far_tokens = (
        NINETY * (math.log(x) - sum(map(math.log, c[axis])) / 2)
        for x, axis in ((body, "body"), (tokens, "tokens"))
    )

    def entry(value: float, unit: str, *open_ends: float) -> dict[str, Any]:
        wide = math.exp(math.hypot(math.log(1 + c["spread"]), *open_ends))
        return _entry(value, value / wide, value * wide, unit, why)

    rate_ends = (c["rate_body_deviation"] * far_body, c["rate_tokens_deviation"] * far_tokens)
    batch_end = c["batch_tokens_deviation"] * far_tokens
    return {
        "learning_rate": entry(rate, "peak, AdamW", *rate_ends),
        "batch_tokens": entry(batch_tokens(tokens), "tokens", batch_end), "extrapolated": outside,
    }  # fmt: skip


def advice(
    active_body: float, tokens: float, batch: float, *, method: str | None = None,
    total: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Peak rate, batch, warmup and steps for a run, each with its interval and its sources.

    For pre-training: the Step law, the compute law of DeepSeek LLM
    (``deepseek2024``: rate = 0.3118 C^−0.1250, batch = 0.2920 C^0.3271 with C = 6 N D), and what
    the published run nearest in size did. The value is their geometric mean, the interval reaches
    from the lowest to the highest, each law widened by its own spread: where laws disagree, that
    is how little is known. Warmup is 2,000 steps, less in a short run.

    Args:
        active_body: Parameters of the body that a token passes.
        tokens: Training tokens.
        batch: Tokens of the step that is planned.
        method: ``full``, ``lora`` or ``qlora`` where it is fine-tuning.
        total: Parameters in all; by default those of the body.

    Example:
        >>> a = advice(7e9, 2e12, 4e6)
        >>> a["learning_rate"]["low"] <= 3e-4 < a["learning_rate"]["high"], a["steps"]
        (True, 500000)
    """
    steps = math.ceil(tokens / batch)
    found: dict[str, Any] = {"steps": steps, "warmup_steps": _warmup(steps)}
    if method is not None:
        return {"learning_rate": _tuning(method, total or active_body), **found}
    c = _constants()
    step = hyperparameters(active_body, tokens)
    other = c["compute"]
    flops = 6 * active_body * tokens
    outside = not other["flops"][0] <= flops <= other["flops"][1]
    near = min(c["practice"], key=lambda row: abs(math.log(row["active"] / active_body)))
    by_compute = {
        "learning_rate": other["rate"] * flops ** other["rate_flops"],
        "batch_tokens": other["batch"] * flops ** other["batch_flops"],
    }
    practised = {"learning_rate": near["rate"], "batch_tokens": near["batch"]}
    for name, unit, show in (
        ("learning_rate", "peak, AdamW", "{:.3g}".format),
        ("batch_tokens", "tokens", count_text),
    ):
        said = step[name]
        values = [said["value"], by_compute[name], practised[name]]
        why = [
            f"{show(said['value'])}: {c['title']} [{c['source']}]"
            + (" (outside its domain)" if step["extrapolated"] else ""),
            f"{show(by_compute[name])}: {other['title']} [{other['source']}]"
            + (" (outside its domain)" if outside else ""),
            f"{show(practised[name])}: {near['name']} [{near['source']}]",
        ]
        middle = math.exp(sum(map(math.log, values)) / len(values))
        found[name] = _entry(middle, min(*values, said["low"]), max(*values, said["high"]), unit,
                             why)  # fmt: skip
    found["extrapolated"] = bool(step["extrapolated"] and outside)
    return found


def tuning_batch() -> int:
    """Sequences of a fine-tuning step: those of a published one."""
    return int(_constants()["tuning"]["batch"])


def _tuning(method: str, total: float) -> dict[str, Any]:
    """The rate of a fine-tuning, by what published ones used."""
    c = _constants()["tuning" if method == "full" else "adapter"]
    rate = c["rate_above"] if total > c.get("above", math.inf) else c["rate"]
    wide = 1 + c["spread"]
    why = [c["title"], f"source {c['source']}"]
    return _entry(rate, rate / wide, rate * wide, "peak, AdamW", why, "assumed")


def _warmup(steps: int) -> dict[str, Any]:
    c = _constants()["warmup"]
    low, middle, high = (
        max(1, round(min(most, share * steps)))
        for most, share in zip(c["steps"], c["share"], strict=True)
    )
    return _entry(middle, low, high, "steps", [c["title"], f"source {c['source']}"], "assumed")


def _entry(
    value: float, low: float, high: float, unit: str, why: list[str], kind: str = "fitted"
) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "unit": unit, "kind": kind, "why": why}
