"""Pictures of ``plan``: time against memory, and a varied number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scantling.report.asked import Row
from scantling.report.figure import need_matplotlib
from scantling.report.plan_text import plan_words
from scantling.search.plans import Plans

GIB = 2**30
PARTS = (
    ("compute", "compute_s", "#2c7fb8"), ("exposed communication", "communication_s", "#d95f0e"),
    ("bubble", "bubble_s", "#bdbdbd"), ("optimizer", "optimizer_s", "#31a354"),
)  # fmt: skip


def save_plans(found: Plans, path: Path) -> Path:
    """The front of time against memory, and where the step of each split goes."""
    figure = need_matplotlib()(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    q, chosen = found.question, found.choice
    assert chosen is not None
    trials = found.front
    left.errorbar(
        [t.step_s for t in trials], [float(t.memory.total) / GIB for t in trials],
        yerr=[[float(t.memory.total - t.memory.low) / GIB for t in trials],
              [float(t.memory.needed_high - t.memory.total) / GIB for t in trials]],
        fmt="o-", color="#2c7fb8", markersize=4, linewidth=1, label="no other beats it in both",
    )  # fmt: skip
    left.scatter([t.step_s for t in found.alternatives],
                 [float(t.memory.total) / GIB for t in found.alternatives], s=16, color="#bdbdbd",
                 label="the fastest of other splits")  # fmt: skip
    left.scatter([chosen.step_s], [float(chosen.memory.total) / GIB], s=170, marker="*",
                 color="#d95f0e", zorder=3, label=plan_words(chosen.plan))  # fmt: skip
    left.axhline(q.chip.usable_bytes / GIB, color="#d95f0e", linewidth=0.8, linestyle="--")
    left.annotate(f"{q.chip.key} holds {q.chip.usable_bytes / GIB:.1f} GiB",
                  (0.02, q.chip.usable_bytes / GIB), xycoords=("axes fraction", "data"),
                  fontsize=8, va="bottom")  # fmt: skip
    left.set_xlabel("seconds a step")
    left.set_ylabel("GiB on the most loaded GPU")
    left.set_ylim(bottom=0)
    left.legend(fontsize=7, loc="best")
    shown = (chosen, *found.alternatives[:7])
    names = [f"{i}  {_short(t.plan)}" for i, t in enumerate(shown)]
    start = [0.0] * len(shown)
    for name, field, color in PARTS:
        values = [float(getattr(t.step, field)) for t in shown]
        right.barh(names, values, left=start, color=color, label=name)
        start = [a + b for a, b in zip(start, values, strict=True)]
    right.invert_yaxis()
    right.set_xlabel("seconds a step")
    right.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.09), ncols=4, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{q.name} on {q.cluster.n_gpu:,} × {q.chip.key}, context {q.context:,}"
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)
    return path


def _short(p: Any) -> str:
    """The degrees of a split."""
    parts = [f"{name}{n}" for name in ("tp", "pp", "dp", "cp", "ep") if (n := getattr(p, name)) > 1]
    return " ".join(parts) or "one GPU"


def save_varied(field: str, rows: list[Row[Any]], path: Path) -> Path:
    """A varied number against step, MFU, days and memory, with their intervals."""
    figure = need_matplotlib()(figsize=(11, 2.9), layout="constrained")
    panels = figure.subplots(1, 4)
    answers = [(r.value, r.answer) for r in rows if r.answer is not None]
    kept = [
        (v, p.choice, p.bill) for v, p in answers if p.choice is not None and p.bill is not None
    ]
    values = [v for v, _, _ in kept]
    series = {
        "seconds a step": [t.step.step for _, t, _ in kept],
        "MFU": [t.step.mfu for _, t, _ in kept],
        "days": [b.days for _, _, b in kept],
    }
    for axes, (name, line) in zip(panels, series.items(), strict=False):
        axes.plot(values, [float(e.value_s) for e in line], marker=".", color="#2c7fb8")
        axes.fill_between(values, [float(e.low_s) for e in line], [float(e.high_s) for e in line],
                          color="#2c7fb8", alpha=0.15)  # fmt: skip
        axes.set_title(name, fontsize=9)
    panels[3].plot(values, [float(t.memory.total) / GIB for _, t, _ in kept], marker=".",
                   color="#2c7fb8")  # fmt: skip
    panels[3].set_title("GiB on the most loaded GPU", fontsize=9)
    for axes in panels:
        axes.set_xlabel(field)
        axes.grid(alpha=0.25)
    figure.savefig(path)
    return path
