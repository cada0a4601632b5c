"""In what numbers a model is served: bytes of a packed weight, and what its products run in."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from scantling.arith import product
from scantling.costs.ranks import placed_operators
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import Chip
from scantling.spec import Spec
from scantling.spec.plan import Plan

KEPT = 2
"""Bytes of what is not packed: embeddings, head, norms, routers."""
PACKED = {"attention", "mixer", "ffn", "shared_experts", "experts"}


class Scheme(Struct, frozen=True, kw_only=True):
    """A quantisation.

    Args:
        name: As users say it.
        dtype: Of the weights, as the times of serving know it.
        packed: Bytes of one packed weight, its share of the scales included.
        needs: The rate a chip must have; None where weights are widened as they are read.
        experts_only: Whether only routed experts are packed.
    """

    name: str
    dtype: str
    packed: float
    needs: str | None = None
    experts_only: bool = False

    @property
    def dense(self) -> str:
        """Dtype of what is no expert."""
        return "bf16" if self.experts_only else self.dtype

    def rank_bytes(self, spec: Spec, plan: Plan, stage: int = 0) -> Any:
        """Bytes of weights that one rank of a stage holds; columns too.

        Example:
            >>> from scantling import catalog
            >>> scheme("bf16").rank_bytes(catalog.model("llama-2-7b"), Plan()) / 1e9
            13.476831232
        """
        total: Any = 0
        for placed in placed_operators(spec, plan, 1, stage):
            op = placed.op
            for t in op.tensors:
                if t.alias is not None:
                    continue
                shrunk = op.part in PACKED and op.kind == "matmul" and len(t.shape) == 2
                if self.experts_only:
                    shrunk = shrunk and t.experts is not None
                total = total + product(t.size(), self.packed if shrunk else KEPT)
        return total

    def bytes(self, spec: Spec) -> Any:
        """Bytes of all weights."""
        return self.rank_bytes(spec, Plan())

    def on(self, chip: Chip) -> None:
        """Check that a chip can run it.

        Raises:
            FieldError: If it has no rate for what the products need.

        Example:
            >>> from scantling.hardware import chip
            >>> scheme("fp8").on(chip("a100-sxm-80gb"))
            Traceback (most recent call last):
            ...
            scantling.errors.FieldError: quant fp8 has no rate on a100-sxm-80gb (it has fp32, tf32, fp16, bf16, int8); use int8 or awq-int4
        """  # noqa: E501 - a doctest compares the message as one line
        if self.needs is None or self.needs in chip.dtypes:
            return
        has = ", ".join(chip.dtypes) or "none that is published"
        near = [d for d in ("fp8", "int8") if d in chip.dtypes and d != self.needs]
        hint = f"use {near[0]} or awq-int4" if near else "use awq-int4"
        raise FieldError("quant", self.name, f"has no rate on {chip.key} (it has {has})", hint)


SCHEMES = {s.name: s for s in (
    Scheme(name="bf16", dtype="bf16", packed=2),
    Scheme(name="fp16", dtype="fp16", packed=2),
    Scheme(name="fp8", dtype="fp8", packed=1, needs="fp8"),
    Scheme(name="fp8-block", dtype="fp8", packed=1 + 4 / 128**2, needs="fp8"),
    Scheme(name="int8", dtype="int8", packed=1, needs="int8"),
    Scheme(name="awq-int4", dtype="int4", packed=(4 + 20 / 128) / 8),
    Scheme(name="gptq-int4", dtype="int4", packed=(4 + 20 / 128) / 8),
    Scheme(name="nvfp4", dtype="fp4", packed=(4 + 8 / 16) / 8, needs="fp4"),
    Scheme(name="mxfp4", dtype="fp4", packed=(4 + 8 / 32) / 8, experts_only=True),
)}  # fmt: skip
ALIASES = {"int4": "awq-int4", "awq": "awq-int4", "gptq": "gptq-int4", "w4a16": "gptq-int4",
           "w8a8": "int8", "fp4": "nvfp4", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
           "none": "bf16"}  # fmt: skip


def scheme(name: str) -> Scheme:
    """A quantisation by its name.

    Raises:
        UnknownNameError: If there is none of that name; it names the nearest.

    Example:
        >>> scheme("AWQ").name, scheme("fp8").packed
        ('awq-int4', 1)
    """
    plain = re.sub(r"[\s_]+", "-", str(name).strip().lower())
    plain = ALIASES.get(plain, plain)
    if plain not in SCHEMES:
        raise UnknownNameError("quant", name, SCHEMES)
    return SCHEMES[plain]
