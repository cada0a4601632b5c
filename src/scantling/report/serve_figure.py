"""The picture of ``serve``: latency against throughput."""

from __future__ import annotations

from pathlib import Path

from scantling.report.figure import need_matplotlib
from scantling.report.serve_text import distinct, layout_words
from scantling.search.serving import MOST_RUNNING, NAMED, Point, Served, Trial, curve

COLOURS = ("#2c7fb8", "#d95f0e", "#31a354", "#756bb1", "#636363", "#c51b8a")


def save_serve(found: Served, path: Path) -> Path:
    """Time per token and to the first token against output tokens a second of one chip.

    A line is a chip, a quantisation or a split; its points are loads from one request to as many
    as run.
    """
    q = found.question
    figure = need_matplotlib()(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, (name, t, most) in enumerate(_lines(found)):
        points = curve(q, t, most)
        if not points:
            continue
        colour = COLOURS[i % len(COLOURS)]
        rate = [float(p.tokens_per_s.value) / t.n_gpu for p in points]
        each = [float(p.speed.tpot_s.value) * 1e3 for p in points]
        left.plot(rate, each, marker=".", markersize=4, color=colour, label=name)
        queued = [float(p.ttft_queued_s.value) * 1e3 for p in points]
        right.plot(rate, queued, marker=".", markersize=4, color=colour, label=name)
        if i == 0:  # one band: several would hide each other
            left.fill_between(rate, [float(p.speed.tpot_s.low) * 1e3 for p in points],
                              [float(p.speed.tpot_s.high) * 1e3 for p in points], color=colour,
                              alpha=0.15, linewidth=0)  # fmt: skip
            right.fill_between(rate, [float(p.ttft_queued_s.low) * 1e3 for p in points],
                               [float(p.ttft_queued_s.high) * 1e3 for p in points], color=colour,
                               alpha=0.15, linewidth=0)  # fmt: skip
            _mark(left, points, rate, each)
    if q.slo is not None:
        for axes, limit in ((left, q.slo.tpot_s), (right, q.slo.ttft_s)):
            if limit is not None:
                axes.axhline(limit * 1e3, color="#636363", linewidth=0.8, linestyle="--")
    left.set_ylabel("ms per output token")
    right.set_ylabel("ms to the first token, requests at random")
    right.set_ylim(bottom=0)
    left.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xlabel("output tokens a second of one chip")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        f"{q.name}, {q.prompt:,} tokens in and {q.answer:,} out; numbers are requests in flight",
        fontsize=9,
    )
    figure.savefig(path)
    return path


def _lines(found: Served) -> list[tuple[str, Trial, int]]:
    """What is drawn: rows where there are several, else the splits of one; with their most load."""
    q = found.question
    if len(found.rows) > 1:
        rows = [r for r in found.rows if r.saturation is not None][: len(COLOURS)]
        return [
            (f"{r.trial.n_gpu} × {r.trial.chip.key} {r.trial.scheme.name}", r.trial,
             r.saturation.running if r.saturation is not None else 0) for r in rows
        ]  # fmt: skip
    one = found.choice
    if one is None or one.saturation is None:
        return []
    trials = [one.trial, *distinct(one.trial, found.alternatives)][: len(COLOURS)]
    most = max(one.saturation.running, *q.loads)
    return [(layout_words(t.layout), t, min(most, MOST_RUNNING * t.layout.groups)) for t in trials]


def _mark(axes: object, points: list[Point], rate: list[float], each: list[float]) -> None:
    """Name a few loads beside the first line."""
    for p, x, y in zip(points, rate, each, strict=True):
        if p.concurrency in NAMED:
            axes.annotate(f"{p.concurrency:,}", (x, y), fontsize=7, xytext=(3, -9),  # type: ignore[attr-defined]
                          textcoords="offset points")  # fmt: skip
