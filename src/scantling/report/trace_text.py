"""The trace as a tree for a terminal: a branch per layer kind, a leaf per stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from scantling.units import count_text, flops_text

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "token": "token", "embedding": "embedding", "norm": "norm", "qkv": "Q/K/V", "heads": "heads",
    "attention": "attention", "output": "output", "ffn": "FFN", "experts": "experts",
    "head": "head",
}  # fmt: skip


def print_trace(out: Console, found: dict[str, Any]) -> None:
    """The stages of a forward pass, each with shapes, weights, parameters and FLOPs."""
    from rich.tree import Tree

    order = ", ".join(f"{run['layers']} × ({' '.join(run['pattern'])})" for run in found["layout"])
    title = f"[bold]{escape(found['model'])}[/bold] at batch {found['batch']}, context "
    root = Tree(f"{title}{found['context']}: {order}")
    branch, layer = root, ""
    for stage in found["stages"]:
        if stage["layer"] != layer:
            layer = stage["layer"]
            branch = root.add(f"[bold]{layer}[/bold] × {stage['layers']}") if layer else root
        leaf = branch.add(_line(stage))
        for weight in stage["weights"]:
            leaf.add(_weight(weight))
        held = {weight["name"] for weight in stage["weights"]}
        if any(op["name"].endswith(".position") and op["name"] not in held
               for op in stage["operators"]):  # fmt: skip
            leaf.add("sine waves of the position, computed: no parameters", style="dim")
        if stage["statistics"] is not None:
            leaf.add(_statistics(stage["statistics"]))
    out.print(root)
    total = sum(float(s["flops"]) for s in found["stages"])
    params = sum(s["params"] for s in found["stages"])
    out.print(f"in all {params:,} parameters, {total:,.0f} FLOPs")
    if "run" in found:
        run = found["run"]
        changed = ", ".join(f"{k} {a} → {b}" for k, (a, b) in run["changes"].items())
        out.print(f"run in torch on {run['device']} with random weights"
                  + (f"; made smaller to fit: {changed}" if changed else ""))  # fmt: skip


def _line(stage: dict[str, Any]) -> str:
    into, result = (" × ".join(map(str, stage[key])) for key in ("in_shape", "out_shape"))
    flow = into if into == result else f"{into} → {result}"
    parts = [f"[bold]{TITLES[stage['stage']]}[/bold]  {flow}"]
    if stage["params"]:
        parts.append(f"{count_text(stage['params'])} parameters")
    if stage["flops"]:
        parts.append(flops_text(float(stage["flops"])))
    return "   ".join(parts)


def _weight(weight: dict[str, Any]) -> str:
    name = weight["name"].rsplit(".", 1)[-1]
    text = f"[dim]{escape(name)} {' × '.join(map(str, weight['shape']))}"
    if weight["experts"]:
        text += f", {weight['experts']} experts"
    return text + (" (the embedding's)" if weight["alias"] else "") + "[/dim]"


def _statistics(found: dict[str, Any]) -> str:
    return (
        f"[cyan]measured: mean {found['mean']:+.3g}, std {found['std']:.3g}, "
        f"max {found['max_abs']:.3g}[/cyan]"
    )
