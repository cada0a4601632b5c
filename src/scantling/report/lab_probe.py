"""What a probe of a trained model found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scantling.report.text import show_table, table
from scantling.units import bytes_text, flops_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

MOST_HEADS = 8
"""Heads that are named."""


def print_comparison(out: Console, found: dict[str, Any]) -> None:
    """As it is, changed in place, built for real."""
    bits = any(r["bits_per_byte"] is not None for r in found["rows"])
    in_bytes = (("bits/byte", "right"),) if bits else ()
    shown = table(("model", "left"), ("loss", "right"), *in_bytes,
                  ("accuracy", "right"), ("parameters", "right"), ("FLOPs", "right"),
                  ("weights", "right"), ("forward", "right"))  # fmt: skip
    first = found["rows"][0]
    for row in found["rows"]:
        has = "parameters" in row
        off = "" if row is first else f" ({row['loss'] - first['loss']:+.4f})"
        in_bits = row["bits_per_byte"]
        shown.add_row(
            row["model"], f"{row['loss']:.4f}{off}",
            *(("" if in_bits is None else f"{in_bits:.4f}",) if bits else ()),
            f"{row['accuracy']:.1%}", f"{row['parameters']:,}" if has else "",
            flops_text(row["forward_flops"]) if has else "",
            bytes_text(row["weight_bytes"]) if has else "",
            _time(row, first) if has else "",
        )  # fmt: skip
    show_table(out, shown)
    out.print(f"loss in nats a token, held back; forward: one sequence of {found['context']} "
              "tokens, as measured here", markup=False)  # fmt: skip
    if found["not_built"]:
        out.print(f"not built: {found['not_built']}", markup=False)


def _time(row: dict[str, Any], first: dict[str, Any]) -> str:
    told = seconds_text(row["forward_s"])
    if row is first:
        return told
    return f"{told} (×{row['forward_s'] / first['forward_s']:.2f})"


def print_readings(out: Console, read: dict[str, Any], title: str = "") -> None:
    """A line a layer: heads by their mean; and the heads that the loss hangs on least."""
    shown = table(
        ("layer", "left"), ("gradient", "right"), ("kurtosis", "right"), ("> 0", "right"),
        ("> 10 %", "right"), ("entropy", "right"), ("even", "right"), ("span", "right"),
        ("logit var", "right"), ("QK rank", "right"), ("path", "right"), ("cluster", "right"),
        title=title,
    )  # fmt: skip
    for at, norm in enumerate(read["gradient_norm"]):
        feeds = [r for r in read["activations"] if r["layer"] == at] or [None]
        mixers = [r for r in read["attention"] if r["layer"] == at] or [None]
        for i in range(max(len(feeds), len(mixers))):
            feed = feeds[i] if i < len(feeds) else None
            heads = mixers[i] if i < len(mixers) else None
            shown.add_row(str(at) if i == 0 else "", f"{norm:.3g}" if i == 0 else "",
                          *_feed(feed), *_attention(heads))  # fmt: skip
    show_table(out, shown)
    out.print(
        f"read on {read['tokens']:,} tokens; gradient: norm over a layer's weights; "
        "kurtosis: 3 is normal; > 10 %: of the token's largest unit",
        markup=False,
    )
    out.print("entropy in nats, even: if all keys counted alike; span in tokens; QK rank: "
              "effective; path and cluster: of the graph of more than even shares",
              markup=False)  # fmt: skip
    ranked = sorted((value, int(at), head) for at, row in read["head_sensitivity"].items()
                    for head, value in enumerate(row))  # fmt: skip
    if ranked:
        least = ", ".join(f"{at}:{head} {v:.2g}" for v, at, head in ranked[:MOST_HEADS])
        most = ", ".join(f"{at}:{head} {v:.2g}" for v, at, head in ranked[::-1][:3])
        out.print(f"heads the loss hangs on least (layer:head |d loss|): {least}", markup=False)
        out.print(f"and most: {most}", markup=False)


def _feed(r: dict[str, Any] | None) -> tuple[str, ...]:
    if r is None:
        return ("",) * 3
    return f"{r['kurtosis']:.1f}", f"{r['positive']:.0%}", f"{r['active']:.0%}"


def _attention(r: dict[str, Any] | None) -> tuple[str, ...]:
    if r is None:
        return ("",) * 7
    graph = [("" if r[k] is None else f"{r[k]:.2f}") for k in ("path_length", "clustering")]
    return (
        f"{_mean(r['entropy']):.2f}", f"{r['even']:.2f}",
        "" if r["span"] is None else f"{_mean(r['span']):.1f}",
        f"{_mean(r['logit_variance']):.2f}", f"{_mean(r['effective_rank']):.1f}", *graph,
    )  # fmt: skip


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
