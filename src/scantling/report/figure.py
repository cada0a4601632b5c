"""Figures as files, with matplotlib (extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scantling.errors import FieldError
from scantling.search import Front
from scantling.search.axis import AxisRow
from scantling.units import count_text


def need_matplotlib() -> Any:
    """Matplotlib's figure class, or an error that says what to install."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install 'scantling[plot]'"
        raise FieldError("plot", None, "needs matplotlib", hint) from None
    return Figure


def check_path(path: Path) -> Path:
    """A path a figure can be written to, checked before any long work.

    Raises:
        FieldError: If matplotlib is missing, the folder does not exist, or the format is unknown.
    """
    need_matplotlib()
    if path.suffix not in {".svg", ".png", ".pdf"}:
        raise FieldError("--plot", str(path), "is no picture", "write a .svg, .png or .pdf")
    if not path.parent.is_dir():
        raise FieldError("--plot", str(path), "lies in a folder that does not exist")
    return path


def save_front(front: Front, path: Path) -> Path:
    """The front as two scatter plots: loss against days, and KV bytes against time per token."""
    figure = need_matplotlib()(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    chosen = front.chosen
    equal = set(front.equal)
    for i, c in enumerate(front.candidates):
        color = "#2c7fb8" if i in equal else "#bdbdbd"
        left.scatter(c.days, c.loss - chosen.loss, s=14, color=color, linewidths=0)
        right.scatter(c.decode.value_s * 1e3, c.kv_bytes_per_token / 1024, s=14, color=color,
                      linewidths=0)  # fmt: skip
    marked = [(chosen, f"choice {chosen.dims()['n_layer']} × {chosen.dims()['d_model']}", "*")]
    marked += [(c, c.name, "D") for c in front.baselines]
    slowest = max((c.days for c in front.baselines), default=0)
    for c, name, marker in marked:
        after = marker == "*" or c.days >= slowest  # labels of neighbours go apart
        size, color = (170, "#d95f0e") if marker == "*" else (34, "#31a354")
        places = ((left, c.days, c.loss - chosen.loss),
                  (right, c.decode.value_s * 1e3, c.kv_bytes_per_token / 1024))  # fmt: skip
        for axes, x, y in places:
            axes.scatter(x, y, s=size, marker=marker, color=color, zorder=3)
            axes.annotate(name, (x, y), xytext=(7, 5) if after else (-7, -10), fontsize=8,
                          textcoords="offset points", ha="left" if after else "right")  # fmt: skip
    b = front.budget
    left.set_xlabel(f"training days on {b.n_gpu} × {b.chip}")
    left.set_ylabel("loss − loss of the choice, nats/token")
    left.axhspan(min(c.loss for c in front.candidates) - chosen.loss,
                 min(c.loss for c in front.candidates) - chosen.loss + front.equal_within,
                 color="#2c7fb8", alpha=0.08, label="the law cannot tell these apart")  # fmt: skip
    left.legend(fontsize=8, loc="upper right")
    right.set_xlabel(f"ms per token, batch {b.serve_batch}, context {b.serve_context}")
    right.set_ylabel("KV cache per token, KiB")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{count_text(b.params)} parameters, {count_text(b.tokens)} tokens, law {b.law}"
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)
    return path


def save_varied(rows: list[dict[str, Any]], path: Path) -> Path:
    """A varied field against loss, days, KV and time per token."""
    figure = need_matplotlib()(figsize=(11, 2.8), layout="constrained")
    panels = figure.subplots(1, 4)
    values = [row["value"] for row in rows]
    series = {
        "Δ loss, nats": [(r["loss_difference"] or {"value": 0.0})["value"] for r in rows],
        "training days": [r["days"]["value"] for r in rows],
        "KV per token, KiB": [r["kv_bytes_per_token"] / 1024 for r in rows],
        "ms per token": [r["tpot_seconds"]["value"] * 1e3 for r in rows],
    }
    for axes, (name, line) in zip(panels, series.items(), strict=True):
        axes.plot(values, line, marker=".", color="#2c7fb8")
        for row, y in zip(rows, line, strict=True):
            if row["given"]:
                axes.scatter([row["value"]], [y], color="#d95f0e", zorder=3)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(rows[0]["field"])
        axes.grid(alpha=0.25)
    figure.savefig(path)
    return path


def save_axis(rows: tuple[AxisRow, ...], field: str, path: Path) -> Path:
    """A field across its axis: loss, days, KV and time per token of the choice at each value."""
    figure = need_matplotlib()(figsize=(11, 2.8), layout="constrained")
    panels = figure.subplots(1, 4)
    known = [(r, r.choice) for r in rows if r.choice is not None]
    series: dict[str, list[tuple[AxisRow, float]]] = {
        "Δ loss, nats": [(r, r.loss.value) for r, _ in known if r.loss is not None],
        "training days": [(r, c.days) for r, c in known],
        "KV per token, KiB": [(r, c.kv_bytes_per_token / 1024) for r, c in known],
        "ms per token": [(r, float(c.decode.value_s) * 1e3) for r, c in known],
    }
    for axes, (name, line) in zip(panels, series.items(), strict=True):
        axes.plot([int(r.value) for r, _ in line], [y for _, y in line], marker=".",
                  color="#2c7fb8")  # fmt: skip
        if name.startswith("Δ"):
            axes.fill_between([int(r.value) for r, _ in line],
                              [r.loss.low for r, _ in line if r.loss is not None],
                              [r.loss.high for r, _ in line if r.loss is not None],
                              color="#2c7fb8", alpha=0.15, linewidth=0)  # fmt: skip
        for r, y in line:
            if r.given:
                axes.scatter([int(r.value)], [y], color="#d95f0e", zorder=3)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(field)
        axes.grid(alpha=0.25)
    figure.savefig(path)
    return path
