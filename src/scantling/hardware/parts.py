"""What hardware is to a cost: rates, memory, links, and how much of them kernels reach."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scantling.errors import FieldError
from scantling.hardware.constants import Constants
from scantling.spec.workload import plain_dtype


class Rates(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak dense rates in FLOPs per second (operations for INT8); None where there is none."""

    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    int8: float | None = None


class Error(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far predictions were from measurements of one kind.

    Args:
        kind: ``gemm``, ``attention``, …
        fitted: Mean absolute relative error on what was fitted; None where nothing was.
        held: On what was held out; None where nothing was.
        inside: Share of what was held out within its 90 % interval.
        n_fitted: How many were fitted.
        n_held: How many were held out.
    """

    kind: str
    fitted: float | None = None
    held: float | None = None
    inside: float | None = None
    n_fitted: int = 0
    n_held: int = 0


class Measured(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When, with what and how well a machine was measured.

    Args:
        when: Date and time, ISO 8601, UTC.
        device: ``cpu`` or ``cuda``.
        threads: Threads of the CPU; predictions hold for as many.
        clock: ``thread`` is the time one thread ran, whatever else did; ``wall`` is time passed.
        software: (name, version) of what was measured with.
        quick: Whether a third of the cases was measured.
        seconds: What it took.
        load: Programs that wanted to run meanwhile, per core: above 1 the machine was shared.
        spread: Median over cases of median visit over fastest, less one.
        errors: By kind of case.
        alignment: (power of two, ratio): time per operation of a product whose widths no larger
            power divides, over that of a neighbour that 64 divides.
    """

    when: str
    device: str
    threads: int
    clock: str
    software: tuple[tuple[str, str], ...]
    quick: bool
    seconds: float
    load: float
    spread: float
    errors: tuple[Error, ...]
    alignment: tuple[tuple[int, float], ...] = ()


class Chip(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, as software sees it: rates, memory and links in base units.

    Args:
        key: Its name in the catalogue: ``h100-sxm``.
        name: Its name for people: ``H100 SXM``.
        vendor: Who makes it.
        architecture: Hopper, CDNA3, …
        constants: How much of it kernels reach.
        memory_bytes: What the printed capacity means: GiB, but for B300 and GB300.
        memory_usable_bytes: The total the driver reports, where known.
        memory_bytes_per_s: Peak bandwidth.
        link_bytes_per_s: One direction, all links of the chip together.
        sm_count: SMs, compute units, cores, or matrix engines.
        shared_bytes: L1 and shared memory of one SM together.
        shared_max_bytes: The most of it that can be shared memory.
        measured_best_bf16_flops_per_s: The best matmul found by search over shapes.
        devices: How many devices software sees; the numbers are of all together.
        datasheet_only: No measurement stands behind it.
        sources: Keys of the bibliography that cover its numbers.
        source_of: (field, key) where a field has a better one.
        measured: How it was measured, for a chip of ``scantling calibrate``.
        unverified: Fields typed from memory or derived by the rule in ``notes``; ``*`` is all.

    Example:
        >>> from scantling.hardware import chip
        >>> chip("H100").rate("bf16") / 1e12, chip("H100").memory_bytes_per_s / 1e9
        (989.0, 3350.0)
    """

    key: str
    name: str
    vendor: str
    architecture: str
    rates: Rates
    constants: Constants
    memory_bytes: int
    memory_kind: str
    memory_bytes_per_s: float
    sources: tuple[str, ...]
    compute_capability: str | None = None
    sm_count: int | None = None
    clock_hz: float | None = None
    memory_usable_bytes: int | None = None
    l2_bytes: int | None = None
    shared_bytes: int | None = None
    shared_max_bytes: int | None = None
    link_kind: str | None = None
    link_bytes_per_s: float | None = None
    tdp_w: float | None = None
    measured_best_bf16_flops_per_s: float | None = None
    devices: int = 1
    datasheet_only: bool = False
    confidence: Literal["high", "medium", "low"] = "medium"
    aliases: tuple[str, ...] = ()
    source_of: tuple[tuple[str, str], ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str = ""
    measured: Measured | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it has a rate for."""
        return tuple(d for d in Rates.__struct_fields__ if getattr(self.rates, d) is not None)

    @property
    def usable_bytes(self) -> int:
        """The memory a program can count on: the driver's total, or the printed capacity."""
        return self.memory_usable_bytes or self.memory_bytes

    def rate(self, dtype: str) -> float:
        """The peak dense rate at a dtype, in FLOPs per second.

        A dtype without a rate is an error, not a slower dtype: whether FP8 weights run on the
        BF16 units, and at what cost, is a kernel's choice that the caller has to make.

        Args:
            dtype: ``bf16``, ``bfloat16``, ``torch.bfloat16``, ``fp8_e4m3``, …

        Raises:
            FieldError: If the chip has no rate for it; the hint names a near one it has.

        Example:
            >>> from scantling.hardware import chip
            >>> chip("v100").rate("bf16")
            Traceback (most recent call last):
            ...
            scantling.errors.FieldError: dtype bf16 has no rate on v100-sxm2-32gb (it has fp32, fp16); use fp16
        """  # noqa: E501 - a doctest compares the message as one line
        name = plain_dtype(dtype)
        value = getattr(self.rates, name, None)
        if value is None:
            near = {"bf16": ["fp16"], "fp16": ["bf16"], "tf32": ["fp32"], "fp4": ["fp8"]}
            wanted = [*near.get(name, []), "bf16", "fp16", "int8", "fp32"]
            use = next((d for d in wanted if d in self.dtypes), "")
            has = f"it has {', '.join(self.dtypes)}" if self.dtypes else "none is published"
            rule = f"has no rate on {self.key} ({has})"
            raise FieldError("dtype", dtype, rule, f"use {use}" if use else "")
        return float(value)

    def sources_of(self, field: str) -> tuple[str, ...]:
        """The bibliography keys behind a field; none if it is unverified.

        Example:
            >>> from scantling.hardware import chip
            >>> chip("h100-sxm").sources_of("measured_best_bf16_flops_per_s")
            ('mleng-mamf',)
            >>> chip("h100-sxm").sources_of("shared_max_bytes")
            ()
        """
        own = tuple(key for name, key in self.source_of if name == field)
        if own:
            return own
        return () if field in self.unverified or "*" in self.unverified else self.sources


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way between chips: bandwidth per GPU in one direction, and what a small message costs."""

    bytes_per_s: float
    latency_s: float


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal chips in one machine, and the link between them (None: they have none)."""

    chip: Chip
    n_gpu: int
    link: Network | None


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal machines and the network between them.

    Args:
        node: One machine.
        n_gpu: Chips in all; more than a node holds fill several.
        network: The way between nodes, per chip and direction.
        oversubscription: How many times more the leaves of the network may ask than its spine
            carries; 1 is a full fat tree.
    """

    node: Node
    n_gpu: int
    network: Network
    oversubscription: float = 1.0

    @property
    def chip(self) -> Chip:
        """The chip all of it is made of."""
        return self.node.chip
