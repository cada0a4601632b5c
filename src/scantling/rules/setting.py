"""Where a model is to run: what rules need to know beside it."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

from msgspec import Struct

from scantling.arith import LARGEST
from scantling.costs.quantize import scheme
from scantling.costs.runtimes import runtime
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import MOST_GPUS, Chip, chip
from scantling.sources import read_data
from scantling.spec.plan import Plan
from scantling.spec.workload import plain_dtype

Phase = Literal["train", "serve"]


class Setting(Struct, frozen=True, kw_only=True):
    """What was asked; None and 1 mean that it was not, and rules about it are silent.

    Args:
        chip: The chip.
        gpus: How many.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree.
        cp: Context-parallel degree.
        virtual: Chunks of layers a pipeline stage holds; above 1 stages are interleaved.
        dcp: Ranks of a tensor group that share the cache of a sequence when decoding.
        runtime: A key of ``runtimes``.
        quant: A quantisation scheme of the weights.
        dtype: What products are computed in: ``bf16``, ``fp8``, ``mxfp8``, ``nvfp4``, …
        context: Tokens of a sequence.
        batch: Sequences; of a training step, micro-batches of one.
        phase: ``train`` or ``serve``.
    """

    chip: Chip | None = None
    gpus: int | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    virtual: int = 1
    dcp: int = 1
    runtime: str | None = None
    quant: str | None = None
    dtype: str | None = None
    context: int | None = None
    batch: int | None = None
    phase: Phase | None = None

    @property
    def plan(self) -> Plan:
        """The degrees as a plan, data parallelism taking what the chips leave."""
        whole = self.ep > 1
        least = self.ep // math.gcd(self.ep, self.tp * self.cp)
        dp = max(1, self.gpus // (self.tp * self.pp * self.cp)) if self.gpus else least
        return Plan(tp=self.tp, pp=self.pp, dp=dp, cp=self.cp, ep=self.ep,
                    expert_tp=1 if whole else None, sequence_parallel=False)  # fmt: skip

    @property
    def words(self) -> str:
        """How many chips of which kind."""
        if self.chip is None:
            return ""
        return f"{self.gpus} × {self.chip.key}" if self.gpus else self.chip.key

    def in_phase(self, phase: Phase) -> bool:
        """Whether a phase may be meant: it was asked for, or none was."""
        return self.phase in {None, phase}


@functools.cache
def facts() -> dict[str, Any]:
    """The limits of rules that are in no other table, from ``data/rules.toml``."""
    return read_data("rules.toml")


def setting(**given: Any) -> Setting:
    """A setting from what a user writes: names of chips, runtimes, dtypes and schemes.

    Raises:
        FieldError: If a name is not known or a degree is below one.

    Example:
        >>> setting(gpu="h100", tp=8, runtime="vLLM").runtime
        'vllm'
    """
    asked = {k: v for k, v in given.items() if v is not None}
    for field in ("gpus", "tp", "pp", "ep", "cp", "virtual", "dcp", "context", "batch"):
        most = LARGEST if field in {"context", "batch"} else MOST_GPUS
        if field in asked and (isinstance(asked[field], bool) or not isinstance(asked[field], int)
                               or not 1 <= asked[field] <= most):  # fmt: skip
            rule = f"must be a whole number of at least 1 and at most {most}"
            raise FieldError(field, asked[field], rule)
    name = asked.pop("gpu", None)
    if name is not None:
        asked["chip"] = name if isinstance(name, Chip) else chip(str(name))
    if "runtime" in asked:
        asked["runtime"] = runtime(str(asked["runtime"])).name
    if "quant" in asked:
        asked["quant"] = scheme(str(asked["quant"])).name
    if "dtype" in asked:
        asked["dtype"] = _dtype(str(asked["dtype"]))
    if asked.get("phase", "train") not in {"train", "serve"}:
        raise FieldError("phase", asked["phase"], "must be train or serve")
    unknown = set(asked) - set(Setting.__struct_fields__)
    if unknown:
        raise UnknownNameError("setting", min(unknown), [*Setting.__struct_fields__, "gpu"])
    return Setting(**asked)


def _dtype(name: str) -> str:
    plain = name.strip().lower().removeprefix("torch.")
    return plain if plain in facts()["multiples"] else _known(plain)


def _known(name: str) -> str:
    found = plain_dtype(name)
    known = facts()["multiples"]
    if found not in known:
        raise UnknownNameError("dtype", name, known)
    return found
