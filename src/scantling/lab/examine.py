"""One trained model under a probe: what it reads, and what it loses by an intervention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from scantling.calibrate.timing import clock, visit
from scantling.costs.count import forward_flops, parameters
from scantling.errors import FieldError
from scantling.lab import probes
from scantling.lab.interventions import Intervention, applied, materialise
from scantling.lab.model import Decoder
from scantling.lab.tasks import Task
from scantling.ops import operators
from scantling.spec import Workload

ROUNDS = 11
"""Of timing, the models of a comparison by turns."""


def compare(
    model: Decoder, task: Task, interventions: Sequence[Intervention],
    heard: Callable[[Decoder], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """A model as it is, changed in place, and built for real.

    Args:
        model: Left as it is.
        task: Judged on its slice ``report``.
        interventions: What changes.
        heard: Called with the model while it is changed, and with the one that is built.

    Returns:
        ``rows`` with loss, bits_per_byte, accuracy, parameters, FLOPs of a forward pass of one
        sequence, bytes of weights, and seconds of that pass as measured; ``not_built`` says why
        there is no third row.
    """
    rows = [{"model": "as it is", **task.evaluate(model), **sizes(model, task)}]
    with applied(model, *interventions):
        rows.append({"model": "changed in place", **task.evaluate(model)})
        heard(model)
    why, models = None, [model]
    try:
        built = materialise(model, *interventions)
    except FieldError as error:
        why = str(error)
    else:
        models.append(built)
        rows.append({"model": "built", **task.evaluate(built), **sizes(built, task)})
        heard(built)
    tokens = task.batch(0, 0)[0][:1].to(model.table.weight.device)
    for row, seconds in zip(rows[::2], latencies(models, tokens), strict=True):
        row["forward_s"] = seconds
    return {"context": task.context, "rows": rows, "not_built": why}


def sizes(model: Decoder, task: Task) -> dict[str, Any]:
    """Parameters, FLOPs of a forward pass of one sequence, and bytes of the weights."""
    total = int(parameters(model.spec).total)
    ops = operators(model.spec, Workload("prefill", 1, task.context))
    return {"parameters": total, "forward_flops": int(forward_flops(ops)),
            "weight_bytes": total * model.table.weight.element_size()}  # fmt: skip


@torch.no_grad()
def latencies(models: Sequence[Decoder], tokens_BT: Tensor) -> list[float]:
    """Seconds of one forward pass of each model: the fastest of eleven rounds taken by turns.

    What disturbs the machine for a moment hits different models in different rounds.
    """
    by = clock(tokens_BT.device.type, torch.get_num_threads())
    times: list[list[float]] = [[] for _ in models]
    for one in models:
        one(tokens_BT)  # tables and memory are made once
    for _ in range(ROUNDS):
        for found, one in zip(times, models, strict=True):
            found.append(visit(partial(one, tokens_BT), by))
    return [min(found) for found in times]


def readings(model: Decoder, task: Task, batches: int = 1) -> dict[str, Any]:
    """Gradients, activations, attention and the heads' weight in the loss, layer by layer.

    Args:
        model: Left as it is.
        task: Its first batches are read, which are training data.
        batches: How many; gradients and sensitivities are of their mean loss.
    """
    device = model.table.weight.device
    pairs = [task.batch(step, 0) for step in range(batches)]
    tokens, targets = (torch.cat(side).to(device) for side in zip(*pairs, strict=True))
    try:
        sensitivity = probes.head_sensitivity(model, tokens, targets)
    except FieldError:  # a model without attention
        sensitivity = {}
    return {
        "tokens": tokens.numel(),
        "gradient_norm": probes.gradient_norms(model, tokens, targets),
        "activations": msgspec.to_builtins(probes.activations(model, tokens)),
        "attention": msgspec.to_builtins(probes.attention(model, tokens)),
        "head_sensitivity": {str(at): list(row) for at, row in sensitivity.items()},
    }
