"""Two models together, as text."""

from __future__ import annotations

from typing import Any

from scantling.report.text import show_table, table
from scantling.units import bytes_text, count_text

FATES = {
    "loads": "same name, same shape",
    "renames": "same role and shape, another name, or fused in one of the two",
    "resizes": "only rows of the vocabulary or of positions differ: cut or add them",
    "cannot": "another shape",
    "no place": "the other model has no such tensor",
}
LITTLE = 0.2
"""Share of the second model that must load for a list of what does not to be of use."""
BY_ROLE = {"loads": "same role, same shape; names are not known of one of the two"}


def print_pair(out: Any, found: dict[str, Any]) -> None:
    """What of the first model the second can use."""
    out.print(f"\n[bold]{found['from']} → {found['to']}[/bold]")
    _print_load(out, found)
    _print_merge(out, found)
    _print_adapters(out, found["adapters"])
    _print_distil(out, found["distil"])
    _print_draft(out, found["draft"])


def _print_load(out: Any, found: dict[str, Any]) -> None:
    load, same = found["load"], FATES
    if load["method"] == "roles":
        same = FATES | BY_ROLE
    shown = table(("weights", "left"), ("tensors", "right"), ("parameters", "right"),
                  (found["dtype"], "right"), ("", "left"))  # fmt: skip
    for status, why in same.items():
        n = load[status]
        if n["tensors"]:
            shown.add_row(status, f"{n['tensors']:,}", count_text(n["parameters"]),
                          bytes_text(n["bytes"]), why)  # fmt: skip
    n = load["unfilled"]
    shown.add_section()
    shown.add_row("starts anew", f"{n['tensors']:,}", count_text(n["parameters"]),
                  bytes_text(n["bytes"]),
                  f"{1 - load['filled_share']:.1%} of {found['to']}")  # fmt: skip
    show_table(out, shown)
    if load["filled_share"] > LITTLE:
        for line in (line for line in load["lines"] if line["status"] not in {"loads", "renames"}):
            name = line["name"] or line["role"]
            other = "" if line["other"] is None else f" → {_shape(line['other'])}"
            text = f"  {line['status']}: {name} {_shape(line['shape'])}{other}"
            out.print(f"{text} ({line['tensors']})", markup=False)


def _shape(shape: list[int]) -> str:
    return " × ".join(f"{n}" for n in shape)


def _print_merge(out: Any, found: dict[str, Any]) -> None:
    merge = found["merge"]
    verdict = "the shapes allow it" if merge["possible"] else "no"
    kin = f", both come from {merge['common_ancestor']}" if merge["common_ancestor"] else ""
    out.print(f"[bold]merge[/bold] (average the weights): {verdict}{kin}")
    for text in merge["blocked_by"]:
        out.print(f"  blocks: {text}", markup=False)
    for text in merge["doubts"]:
        out.print(f"  doubt: {text}", markup=False, style="dim")


def _print_adapters(out: Any, found: dict[str, Any]) -> None:
    out.print(f"[bold]LoRA transfer[/bold]: {found['fits']} of {found['of']} matrices have the "
              f"same shape")  # fmt: skip
    if 0 < found["fits"] < found["of"]:
        for row in found["targets"]:
            name = row["module"] or row["role"]
            out.print(f"  {name}: {row['fits']} of {row['layers']} layers", markup=False)
    if found["fits"]:
        out.print(f"  {found['why']}", style="dim", markup=False)


def _print_distil(out: Any, found: dict[str, Any]) -> None:
    out.print(f"[bold]distil[/bold] {found['teacher']} → {found['student']}")
    yes = "yes" if found["logits"]["possible"] else "no"
    sizes = " and ".join(f"{n:,}" for n in found["logits"]["vocab_sizes"])
    out.print(f"  logits: {yes}, vocabularies {sizes}: {found['logits']['why']}", markup=False)
    hidden = found["hidden"]
    if hidden["projection"] is None:
        out.print("  hidden states: yes, of one width")
    else:
        out.print(f"  hidden states: with a projection {_shape(hidden['projection']['shape'])} "
                  f"({count_text(hidden['projection']['parameters'])} parameters)")  # fmt: skip
    maps = found["attention_maps"]
    if None not in maps["heads"]:
        word = "yes, head by head" if maps["possible"] else "no, heads differ"
        out.print(f"  attention maps: {word} ({maps['heads'][0]} and {maps['heads'][1]})")
    layers = ", ".join(str(i) for i in found["layers"])
    out.print(f"  student's layers match the teacher's {layers}", markup=False, style="dim")


def _print_draft(out: Any, found: dict[str, Any]) -> None:
    out.print(f"[bold]draft[/bold] with {found['draft']} for {found['target']}: "
              f"{'yes' if found['possible'] else 'no'}")  # fmt: skip
    if "cost_ratio" in found:
        c = found["cost_ratio"]
        at = f"batch {found['batch']}, context {found['context']:,}"
        out.print(f"  a step of the draft costs ×{c['value']:.2f} ({c['low']:.2f} to "
                  f"{c['high']:.2f}) of one of the target: draft on 1 × {found['gpu']}, target "
                  f"on {found['gpus']}; {at}")  # fmt: skip
    for row in found.get("lengths", ()):
        text = f"  acceptance {row['accept']:g}: guess {row['guesses']}, ×{row['speedup']:.2f}"
        out.print(text if row["guesses"] else f"  acceptance {row['accept']:g}: do not draft")
    out.print(f"  {found['why']}", markup=False, style="dim")


__all__ = ["print_pair"]
