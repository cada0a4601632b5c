"""What flows through a model that is really run: mean, spread and largest value of each stage."""

from __future__ import annotations

import math
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from scantling import catalog
from scantling.errors import FieldError
from scantling.lab.model import Decoder
from scantling.lab.shrink import FITS, changes, shrink
from scantling.report.trace import trace

MOST_PAIRS = 2**28
"""Attention logits of one layer that fit in memory at once: 1 GB in fp32."""


class Sums(Struct):
    """Sums over all layers that share a stage."""

    shape: tuple[int, ...]
    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    max_abs: float = 0.0

    def add(self, value: Tensor) -> None:
        """Count another tensor in."""
        x = value.detach().double()
        self.n += x.numel()
        self.total += float(x.sum())
        self.squares += float(x.square().sum())
        self.max_abs = max(self.max_abs, float(x.abs().max()))

    def to_json(self) -> dict[str, Any]:
        """Mean, standard deviation and largest absolute value, with the shape that was seen."""
        mean = self.total / self.n
        return {
            "shape": list(self.shape), "mean": mean,
            "std": math.sqrt(max(self.squares / self.n - mean * mean, 0.0)),
            "max_abs": self.max_abs,
        }  # fmt: skip


def measure(model: Decoder, batch: int, context: int, seed: int = 0) -> dict[str, Sums]:
    """Run random tokens through a model and sum up every stage."""
    found: dict[str, Sums] = {}

    def watch(name: str, value: Tensor) -> None:
        found.setdefault(name, Sums(tuple(value.shape))).add(value)

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(int(model.spec.vocab_size), (batch, context), generator=generator)
    with torch.no_grad():
        model(tokens, watch)
    return found


def run(
    given: Any, *, batch: int = 1, context: int = 128, limit: int = FITS, seed: int = 0
) -> dict[str, Any]:
    """The trace of a model made small enough to run, with measured statistics beside the shapes.

    The weights are random (variance 1 / inputs, biases zero), so the numbers show how the
    structure scales what flows through it, not what a trained model does.

    Args:
        given: A model, as for ``trace``.
        batch: Sequences.
        context: Tokens of each.
        limit: Parameters at most; a larger model is made smaller (see ``shrink``).
        seed: Of the weights and of the tokens.

    Raises:
        FieldError: If the lab does not run some part of the model, or it does not fit.

    Example:
        >>> stages = run("gpt2", context=16, limit=2_000_000)["stages"]
        >>> all(s["statistics"]["shape"] == s["out_shape"] for s in stages[1:])
        True
    """
    one = catalog.load(given)
    spec = shrink(one.spec, limit, context)
    heads = changes(one.spec, spec).get("n_head", (0, 0))[1] or 1
    if batch * heads * context**2 > MOST_PAIRS:
        raise FieldError("context", context, "is too long to run here", "use a few hundred tokens")
    model = Decoder(spec, seed=seed)
    measured = measure(model, batch, context, seed)
    found = trace(spec, batch=batch, context=context)
    for stage in found["stages"]:
        sums = measured.get(stage["name"])
        stage["statistics"] = None if sums is None else sums.to_json()
    found["model"] = one.name
    found["run"] = {
        "device": "cpu", "dtype": "fp32", "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "changes": {k: list(v) for k, v in changes(one.spec, spec).items()},
    }  # fmt: skip
    return found
