"""A quantisation as serving sees it: bytes that a chip loads, and what its products run in."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from scantling.costs.adapters import unpacked_bytes
from scantling.costs.quantize import Flat, Grouped, Mixed, Scheme, require, schemes, support
from scantling.costs.quantize import scheme as named
from scantling.costs.ranks import placed_operators
from scantling.costs.serve import Deployment, weights_bytes
from scantling.costs.weights import weight_memory
from scantling.formats.checkpoint import Checkpoint
from scantling.hardware import Chip
from scantling.spec import Spec
from scantling.spec.plan import Adapter, Plan

NARROW = "int4"
"""The dtype of weights that are widened as they are read, whatever their own width."""


class Numbers(Struct, frozen=True):
    """What weights are kept in.

    Args:
        scheme: How they are packed.
        by: Bytes of a file over those that the scheme would take, where there is a file.
    """

    scheme: Scheme
    by: float = 1.0

    @property
    def name(self) -> str:
        """As users say it."""
        return self.scheme.name

    @property
    def dtype(self) -> str:
        """Of packed weights, as the times of serving know it.

        Example:
            >>> [numbers(n).dtype for n in ("bf16", "fp8-block", "awq", "q5_k_m", "nvfp4")]
            ['bf16', 'fp8', 'int4', 'int4', 'fp4']
        """
        one = self.scheme
        if not one.quantised:
            return one.name
        return one.rate or NARROW

    @property
    def dense(self) -> str:
        """Of what is no expert: 16 bits where experts alone are packed, FP8 in FP8 blocks."""
        if self.scheme.others is not None:
            return "fp8"
        return self.dtype if "ffn" in self.scheme.parts or not self.scheme.quantised else "bf16"

    @property
    def mixed(self) -> bool:
        """Whether it is one of llama.cpp's mixes."""
        return isinstance(self.scheme.packing, Mixed)

    @property
    def exact(self) -> bool:
        """Whether the times of serving know its bytes: 4 or 8 bits with common scales."""
        p = self.scheme.packing
        return not isinstance(p, Mixed | Flat) and not (
            isinstance(p, Grouped) and self.dtype == NARROW and p.bits != 4
        )

    def rank_bytes(self, spec: Spec, plan: Plan, stage: int = 0) -> Any:
        """Bytes of weights on one rank of a stage, as kernels pad them; columns too.

        Where a library unpacks a matrix before it multiplies, with room for the largest.

        Example:
            >>> from scantling import catalog
            >>> numbers("bf16").rank_bytes(catalog.model("llama-2-7b"), Plan()) / 1e9
            13.476831232
        """
        held: Any = weight_memory(spec, self.scheme, plan, stage).loaded_bytes
        if isinstance(self.scheme.packing, Flat):
            own = Adapter(rank=0, weights=self.scheme.packing.dtype)
            return held * self.by + unpacked_bytes(placed_operators(spec, plan, 1, stage), own)
        return held if self.by == 1 else held * self.by

    def read_share(self, spec: Spec, d: Deployment) -> Any:
        """Bytes read of the weights over those that the times of serving would take them for."""
        if self.exact:
            return self.by
        plan = Plan(tp=int(d.tp), sequence_parallel=False)
        held: Any = weight_memory(spec, self.scheme, plan).bytes
        return held * self.by / (weights_bytes(spec, d) * d.pp)

    def on(self, chip: Chip) -> None:
        """Check that a chip can run it.

        Raises:
            FieldError: If it has no kernel for it; it names schemes that it has.
        """
        require(self.scheme, chip)

    def runs_on(self, chip: Chip) -> bool:
        """Whether a chip has a kernel for it."""
        return support(self.scheme, chip).verdict != "no"


def numbers(name: str) -> Numbers:
    """What weights are kept in, by name.

    Raises:
        UnknownNameError: If no scheme has that name; it names the nearest.

    Example:
        >>> numbers("AWQ").name
        'awq-int4'
    """
    return Numbers(named(name))


def stored_in(spec: Spec, file: Checkpoint) -> Numbers:
    """What a checkpoint's weights are in: the scheme nearest in bytes, and the file's own bytes.

    Mixes of types differ from file to file, so the scheme says what products run in and how
    weights are cut, and the file how many bytes there are.
    """
    mixed = file.format == "gguf"
    sizes = {one: float(weight_memory(spec, one.scheme).bytes) for one in all_numbers()
             if one.mixed == mixed or not one.scheme.quantised}  # fmt: skip
    near = min(sizes, key=lambda one: abs(sizes[one] / file.tensor_bytes - 1))
    return Numbers(near.scheme, file.tensor_bytes / sizes[near])


def all_numbers() -> tuple[Numbers, ...]:
    """Every scheme, those of engines for servers first."""
    found = [Numbers(one) for one in schemes().values()]
    return tuple(sorted(found, key=lambda n: n.mixed))
