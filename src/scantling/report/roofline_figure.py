"""A roofline with the operators of a model on it, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scantling.report.figure import check_path, need_matplotlib
from scantling.units import flops_text

NAMED = 10
"""Marks with a number, the largest first: more would hide each other."""


def save_roofline(found: dict[str, Any], path: Path, name: str) -> Path:
    """The answer of ``alignment`` as FLOPs a second against FLOPs a byte.

    Products and attention of a prefill and of a decode step; the larger a mark, the
    more of its pass it takes.

    Raises:
        FieldError: If the path is no place for a picture, or matplotlib is missing.
    """
    check_path(path)
    peak, bandwidth = found["peak_flops_per_s"], found["memory_bytes_per_s"]
    marks = [
        (p["name"], "product", p["intensity"], p["fraction"] * peak, p["share"])
        for p in found["products"]
    ] + [
        (f"{p['name']}, decode", "step", p["intensity"], p["fraction"] * peak, p["share"])
        for p in found["products_decode"]
    ] + [
        (f"{a['names'][0]}, {phase}", phase, a[phase]["intensity"],
         a[phase]["fraction"] * a[phase]["ridge"] * bandwidth, a[phase]["share"])
        for a in found["attention"] for phase in ("prefill", "decode") if a[phase] is not None
    ]  # fmt: skip
    figure = need_matplotlib()(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    ridge = peak / bandwidth
    left = min([0.5, *(m[2] / 2 for m in marks)])
    right = max([4 * ridge, *(m[2] * 2 for m in marks)])
    axes.plot([left, ridge, right], [left * bandwidth, peak, peak], color="#444444")
    axes.axvline(ridge, color="#bdbdbd", linewidth=0.8, linestyle=":")
    colors = {"product": "#2c7fb8", "step": "#756bb1", "prefill": "#d95f0e", "decode": "#31a354"}
    labels = {"product": "products of a prefill", "step": "products of a decode step",
              "prefill": "attention of a prefill",
              "decode": "attention of a decode step"}  # fmt: skip
    for what, color in colors.items():
        mine = [m for m in marks if m[1] == what]
        if not mine:
            continue
        axes.scatter([m[2] for m in mine], [m[3] for m in mine], color=color, alpha=0.7,
                     s=[20 + 400 * m[4] for m in mine], linewidths=0, label=labels[what],
                     )  # fmt: skip
    for i, mark in enumerate(sorted(marks, key=lambda m: -m[4])[:NAMED], 1):
        axes.annotate(str(i), mark[2:4], fontsize=7, ha="center", va="center")
        axes.plot([], [], " ", label=f"{i}  {mark[0]} ({mark[4]:.0%} of its pass)")
    axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte moved",
             ylabel="FLOPs a second", xlim=(left, right))  # fmt: skip
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, loc="lower right", handlelength=1, framealpha=0.6)
    axes.set_title(f"{name} on {found['chip']}, {found['dtype']}, {found['batch']} × "
                   f"{found['context']:,} tokens: peak {flops_text(peak)}/s, ridge at {ridge:.0f}",
                   fontsize=9)  # fmt: skip
    figure.savefig(path)
    return path
