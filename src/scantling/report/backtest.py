"""A back-test in words: where a released shape lies, what is better, and how."""

from __future__ import annotations

from typing import Any

from scantling.search.backtest import COSTS, Gap, Verdict, reasons
from scantling.search.candidate import Candidate

PLACES = {
    "front": "on the front", "band": "inside the noise band", "dominated": "dominated",
}  # fmt: skip


def shape_text(c: Candidate) -> str:
    """A shape as people write it.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search import budget, candidate
        >>> shape_text(candidate(catalog.model("llama-2-70b"), budget(params=7e10)))
        '80 × 8192, 64/8 × 128, F 28,672'
    """
    d = c.dims()
    return (f"{d['n_layer']} × {d['d_model']}, {d['n_head']}/{d['n_kv_head']} × {d['d_head']}, "
            f"F {d['d_ff']:,}")  # fmt: skip


def gap_text(gap: Gap) -> str:
    """What a better shape gains: nats with their interval, and each cost."""
    half = gap.nats_high - gap.nats
    costs = ", ".join(f"{name} {-share:+.1%}" for name, share in zip(COSTS, gap.saved, strict=True))
    return f"{shape_text(gap.better)}: loss {gap.nats:+.4f} ± {half:.4f}, {costs}"


def backtest_lines(verdict: Verdict, compared: int) -> list[str]:
    """A verdict as lines of text."""
    c, b = verdict.shape, verdict.shape.budget
    asked = (
        f"  asked: {b.params / 1e9:.3g} B, {b.tokens / 1e12:.3g} T tokens, context "
        f"{b.train_context}, vocabulary {b.vocab_size:,}, {b.n_gpu} × {b.chip}; "
        f"{compared:,} legal shapes of its blocks"
    )
    found = [f"{c.name}  {shape_text(c)}: {PLACES[verdict.place]}", asked]
    if verdict.lower is not None:
        found.append(f"  at no higher cost    {gap_text(verdict.lower)}")
    if verdict.cheaper is not None:
        found.append(f"  at no higher loss    {gap_text(verdict.cheaper)}")
    if verdict.single is not None and verdict.single != verdict.cheaper:
        found.append(f"  most of one cost     {gap_text(verdict.single)}")
    if any(gap is not None and gap.nats > 0 for gap in (verdict.cheaper, verdict.single)):
        found.append("  (a loss counts with the upper end of its prior terms, as in a search)")
    if verdict.outside:
        axes = ", ".join(verdict.outside)
        found.append(f"  beyond where ablations end on {axes}: bounds opened as far as it lies")
    if not verdict.holds:
        found += [f"  - {text}" for text in reasons(verdict)]
    return found


def backtest_json(verdict: Verdict, compared: int) -> dict[str, Any]:
    """A verdict as one object."""
    b = verdict.shape.budget
    return {
        "schema": 1, "model": verdict.shape.name, "place": verdict.place,
        "dims": verdict.shape.dims(), "outside": list(verdict.outside), "compared": compared,
        "asked": {
            "params": b.params, "tokens": b.tokens, "vocab_size": b.vocab_size,
            "context": b.train_context, "gpu": b.chip, "gpus": b.n_gpu,
        },
        "lower": _gap_json(verdict.lower), "cheaper": _gap_json(verdict.cheaper),
        "single": _gap_json(verdict.single),
        "reasons": [] if verdict.holds else reasons(verdict),
    }  # fmt: skip


def _gap_json(gap: Gap | None) -> dict[str, Any] | None:
    if gap is None:
        return None
    half = gap.nats_high - gap.nats
    loss = {"value": gap.nats, "low": gap.nats - half, "high": gap.nats_high,
            "unit": "nats/token", "kind": "fitted"}  # fmt: skip
    days, kv, decode = gap.saved
    saved = {"training_days": days, "kv_bytes_per_token": kv, "decode_s": decode}
    return {"dims": gap.better.dims(), "loss": loss, "saved": saved}
