"""The rotary positions of a model against a context, as JSON, text and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from rich.markup import escape

from scantling import catalog
from scantling.costs.cache import KVCache, kv_cache
from scantling.costs.rope import FAST_TURNS, Method, Pair, Stretch, Turning, stretch
from scantling.errors import FieldError
from scantling.formats.hf.layout import thaw
from scantling.report.figure import need_matplotlib
from scantling.report.text import show_table, table
from scantling.spec import Spec
from scantling.units import bytes_text, parse_context, parse_count

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 16
"""Pairs printed of a table; JSON has all."""


class Rotary(Struct, frozen=True):
    """A model's wavelengths, the ways to a longer context, and what its cache then holds."""

    name: str
    found: Stretch
    batch: int
    kv_dtype: str
    before: KVCache
    """At the trained context."""
    after: KVCache
    """At the context asked for."""

    def to_json(self) -> dict[str, Any]:
        """The answer of ``analyze --rope --json``; a wavelength of a pair that stands is null."""
        one = self.found
        return {
            "schema": 1,
            "model": self.name,
            "original_context": {
                "value": one.original.tokens, "low": None, "high": None, "unit": "tokens",
                "kind": "assumed" if one.original.assumed else "exact",
                "why": [one.original.why],
            },
            "max_context": one.limit, "context": one.context, "scaling": _plain(one.scaling),
            "needed": one.needed,
            "tables": [_table(t) for t in one.tables],
            "methods": [_method(m) for m in one.methods],
            "kv_cache": {
                "bytes_per_token": self.after.bytes_per_token,
                "bytes_at_original": self.before.bytes, "bytes": self.after.bytes,
                "batch": self.batch, "kv_dtype": self.kv_dtype,
            },
            "advice": list(one.advice),
        }  # fmt: skip


def rope(
    given: str | Path | dict[str, Any] | Spec, context: int | str | None = None,
    original: int | str | None = None, *, batch: int | str = 1, kv_dtype: str = "bf16",
    tables: Mapping[str, Sequence[float]] | None = None, loaded: catalog.Loaded | None = None,
    assume: bool = False,
) -> Rotary:  # fmt: skip
    """The rotary wavelengths of a model, and what a longer context needs.

    Args:
        given: A catalogue name, a path, a parsed config or a spec.
        context: Tokens wanted; by default what the model reads.
        original: Tokens it was trained on, where its config says more.
        batch: Sequences, for the cache.
        kv_dtype: Dtype of the cache.
        tables: ``short_factor`` and ``long_factor`` for longrope, if a search found them.
        loaded: The model, where it is loaded already.
        assume: For a model type in no table: go on past fields that are not understood.

    Raises:
        ScantlingError: If the model cannot be read, has no rotary positions, or the context is
            not longer than the original one.

    Example:
        >>> found = rope("llama-2-7b", "32k")
        >>> found.found.methods[0].kind, found.after.bytes // found.before.bytes
        ('yarn', 8)
    """
    one = catalog.load(given, assume=assume) if loaded is None else loaded
    batch = parse_count(batch, "batch")
    wanted = None if context is None else parse_context(context, "context")
    trained = None if original is None else parse_context(original, "original context")
    for name, value in (("batch", batch), ("context", wanted), ("original context", trained)):
        if value is not None and not 1 <= value <= 2**40:
            raise FieldError(name, value, "must be at least 1 (and at most 2^40)")
    found = stretch(one.spec, wanted, trained, tables)
    caches = [kv_cache(one.spec, batch, n, kv_dtype) for n in (found.original.tokens,
                                                              found.context)]  # fmt: skip
    return Rotary(one.name, found, batch, kv_dtype, *caches)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return thaw(settings.items()) or {}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(t: Turning) -> dict[str, Any]:
    r = t.rotation
    return {
        "theta": float(r.rope.theta), "rotary_width": int(r.head * r.rope.fraction),
        "layers": r.n_layer, "reach": r.reach, "attention_factor": t.attention_factor,
        "counts": t.counts(),
        "pairs": [
            {"pair": p.index, "wavelength": _number(p.wavelength),
             "scaled_wavelength": _number(p.scaled), "stretch": p.stretch,
             "turns_at_original": p.turns_trained, "turns": p.turns, "state": state(p)}
            for p in t.pairs
        ],
    }  # fmt: skip


def _method(m: Method) -> dict[str, Any]:
    if m.refused:
        return {"rope": m.kind, "refused": m.refused}
    return {
        "rope": m.kind, "factor": m.factor, "rope_theta": m.theta,
        "rope_scaling": _plain(m.settings) or None, "max_position_embeddings": m.max_context,
        "attention_factor": m.attention_factor, "slowest_stretch": m.slowest,
        "fastest_stretch": m.fastest, "counts": m.counts,
        "factor_supported_untrained": m.supported(trained=False),
        "factor_supported_trained": m.supported(trained=True),
        "evidence": [msgspec.to_builtins(e) for e in m.evidence],
        "evidence_applies": m.searched, "notes": list(m.notes),
    }  # fmt: skip


def state(pair: Pair) -> str:
    """What a longer context means for a pair, in a word or two.

    Example:
        >>> state(Pair(0, 6.28, 6.28, 652.0, 1304.0))
        'fast'
    """
    if not math.isfinite(pair.wavelength):
        return "still"
    if pair.unseen:
        return "unseen angles"
    if pair.turns_trained >= FAST_TURNS:
        return "fast, stretched" if pair.stretch > 1.001 else "fast"
    if pair.complete:
        return "complete"
    return "partial turn"


def print_rope(out: Console, r: Rotary) -> None:
    """The wavelength tables, the methods and the advice."""
    one = r.found
    kind = one.scaling.get("rope_type", "none")
    limit = "says none" if one.limit is None else f"{one.limit:,}"
    out.print(
        f"[bold]{r.name}[/bold]: rotary positions at {one.context:,} tokens "
        f"(original {one.original.tokens:,}, config {limit}, scaling {kind})"
    )
    for t in one.tables:
        _print_table(out, t)
    out.print("[dim]wavelength and now: tokens a turn before and after the scaling, × between "
              f"them; fast: {FAST_TURNS} turns or more[/dim]")  # fmt: skip
    if one.methods:
        _print_methods(out, one.methods)
    out.print(f"KV cache, batch {r.batch}, {r.kv_dtype}: {bytes_text(float(r.before.bytes))} at "
              f"{one.original.tokens:,} tokens, {bytes_text(float(r.after.bytes))} at "
              f"{one.context:,}")  # fmt: skip
    for line in one.advice:
        out.print(f"  {escape(line)}")
    if one.methods and not one.methods[0].refused:
        best = one.methods[0]
        for e in best.evidence:
            how = "trained at the length" if e.trained else "without training"
            out.print(f"  [dim]{e.grade} {e.source}, {best.kind} ×{e.factor:g}, {how}: "
                      f"{escape(e.says)}[/dim]")  # fmt: skip


def _print_table(out: Console, t: Turning) -> None:
    r, counts = t.rotation, t.counts()
    sees = "the whole context" if r.reach is None else f"{r.reach:,} tokens"
    found = table(
        ("pair", "right"), ("wavelength", "right"), ("now", "right"), ("×", "right"),
        ("turns at original", "right"), ("turns here", "right"), ("", "left"),
        title=f"{r.n_layer} layers that see {sees}: base {r.rope.theta:,.6g}, "
        f"{counts['pairs']} pairs, {counts['never_complete']} with no turn at the original length",
    )  # fmt: skip
    for i in shown(t.pairs):
        p = t.pairs[i]
        found.add_row(str(i), _tokens(p.wavelength), _tokens(p.scaled), f"{p.stretch:.3g}",
                      f"{p.turns_trained:.3g}", f"{p.turns:.3g}", state(p))  # fmt: skip
    show_table(out, found)


def shown(pairs: tuple[Pair, ...]) -> list[int]:
    """The pairs worth a line: an even spread, and both sides of every change of state."""
    n = len(pairs)
    picked = (
        {round(i * (n - 1) / (SHOWN - 1)) for i in range(SHOWN)} if n > SHOWN else set(range(n))
    )
    changes = [i for i in range(1, n) if state(pairs[i]) != state(pairs[i - 1])]
    return sorted(picked | {j for i in changes for j in (i - 1, i)})


def _tokens(wavelength: float) -> str:
    if not math.isfinite(wavelength):
        return "still"
    return f"{wavelength:,.0f}" if wavelength >= 100 else f"{wavelength:.3g}"


def _print_methods(out: Console, methods: tuple[Method, ...]) -> None:
    found = table(
        ("--rope", "left"), ("base", "right"), ("factor", "right"), ("on attention", "right"),
        ("slowest ×", "right"), ("unseen", "right"), ("fast slower", "right"),
        ("known untrained", "right"), ("trained", "right"), ("best evidence", "left"),
        title="Ways to this context",
    )  # fmt: skip
    for m in methods:
        if m.refused:
            continue
        best = m.evidence[0] if m.evidence and m.searched else None
        found.add_row(
            m.kind, f"{m.theta:,.6g}", f"{m.factor:.4g}", f"{m.attention_factor:.4f}",
            f"{m.slowest:.4g}", str(m.counts["unseen"]), str(m.counts["fast_stretched"]),
            f"×{m.supported(trained=False):g}", f"×{m.supported(trained=True):g}",
            "" if best is None else f"{best.grade} {best.source}",
        )  # fmt: skip
    if found.row_count:
        show_table(out, found)
        out.print(
            "[dim]slowest ×: how much slower the slowest pair turns; unseen: pairs that reach new "
            "angles; fast slower: fast pairs that turn slower; known untrained, trained: the "
            "largest factor that evidence covers[/dim]"
        )
    reasons: dict[str, list[str]] = {}
    for m in methods:
        if m.refused:
            reasons.setdefault(m.refused.removeprefix(f"rope {m.kind} "), []).append(m.kind)
    for reason, kinds in reasons.items():
        out.print(f"[dim]{', '.join(kinds)}: {escape(reason)}[/dim]")


def save_rope(r: Rotary, path: Path) -> Path:
    """The wavelengths of the layers that see far, before scaling and under every method."""
    figure = need_matplotlib()(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    one = r.found
    pairs = [p for p in one.tables[0].pairs if math.isfinite(p.wavelength)]
    axes.plot([p.index for p in pairs], [p.wavelength for p in pairs], color="#333333",
              marker=".", label="before scaling")  # fmt: skip
    if one.scaling:
        axes.plot([p.index for p in pairs], [p.scaled for p in pairs], label="as it is")
    for m in one.methods:
        if not m.refused:
            axes.plot(range(len(m.wavelengths)), m.wavelengths, label=m.kind, linewidth=1,
                      linestyle="--" if m.kind == "longrope" else "-")  # over YaRN's  # fmt: skip
    for tokens, name, color in ((one.original.tokens, "original", "#2c7fb8"),
                                (one.context, "context", "#d95f0e")):  # fmt: skip
        axes.axhline(tokens, color=color, linestyle="--", linewidth=1)
        axes.annotate(f"{name} {tokens:,}", (0, tokens), xytext=(2, 3), fontsize=8,
                      textcoords="offset points", color=color)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("pair of a head")
    axes.set_ylabel("wavelength, tokens a turn")
    axes.set_title(f"{r.name}: above a line, a pair makes no whole turn in that context",
                   fontsize=9)  # fmt: skip
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path)
    return path
