"""What a step should take and need: the costs' own prediction, to set beside what is measured."""

from __future__ import annotations

import functools
import os
import sys
from importlib.resources import as_file, files

import torch

from scantling.calibrate.predict import RECIPE_ATTENTION, recipe_of
from scantling.costs.memory import TrainingMemory, training_memory
from scantling.costs.plain import unmodelled
from scantling.costs.train import Estimate, training_step
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import Chip, chip, cluster
from scantling.hardware.chip_file import read_chip
from scantling.spec import Spec
from scantling.spec.plan import Plan, Recipe
from scantling.units import bytes_text


@functools.cache
def reference() -> Chip:
    """One thread of the server processor that ``calibrate`` was run on for this purpose.

    Example:
        >>> reference().rate("fp32") > 1e9
        True
    """
    with as_file(files("scantling.data") / "reference_cpu.toml") as path:
        return read_chip(path)


def chip_of(device: torch.device, named: str | None = None) -> Chip | None:
    """The chip that predictions are made for.

    Args:
        device: Where the run is; a GPU tells its name, one thread of a CPU is taken for the
            reference, of several nothing is known.
        named: A chip's name or its file, as ``calibrate`` writes it.
    """
    if named is not None:
        return chip(named)
    if device.type != "cuda":
        return reference() if torch.get_num_threads() == 1 else None
    try:
        return chip(torch.cuda.get_device_name(device))
    except UnknownNameError:
        return None


def step_seconds(
    spec: Spec, batch: int, context: int, dtype: str, on: Chip, ranks: int = 1
) -> Estimate:
    """The predicted time of a training step, with its interval.

    Example:
        >>> from scantling import catalog
        >>> found = step_seconds(catalog.model("gpt2"), 4, 256, "fp32", reference())
        >>> 1 < found.low_s < found.value_s < found.high_s < 100
        True
    """
    plan = Plan(dp=ranks, zero=3 if ranks > 1 else 0, micro_batch=-(-batch // ranks))
    place = cluster(on, ranks, ranks)
    return training_step(spec, plan, recipe_of(dtype), context, place).step


def recipe(dtype: str, optimizer: str = "adamw", *, plain: bool = True) -> Recipe:
    """How the lab's loop keeps its numbers: weights, gradients and moments in fp32.

    ``plain`` predicts its own operations one by one; else those of other software are taken.

    Example:
        >>> recipe("bf16").weights, recipe("bf16").dtype
        ('fp32', 'bf16')
    """
    return Recipe(
        dtype=dtype, weights="fp32", gradients="fp32", master=None, reduce="fp32",
        optimizer="muon" if optimizer == "muon" else "adamw", attention=RECIPE_ATTENTION,
        fused=False, plain=plain,
    )  # fmt: skip


def memory(
    spec: Spec, batch: int, context: int, dtype: str, optimizer: str = "adamw", *,
    micro_batch: int | None = None, ranks: int = 1,
) -> TrainingMemory:  # fmt: skip
    """The predicted peak of a training step on one device, by what tensors need.

    Example:
        >>> from scantling import catalog
        >>> found = memory(catalog.model("gpt2"), 4, 256, "fp32")
        >>> 2e9 < found.low < found.total < found.high < 4e9
        True
    """
    each = -(-batch // ranks)
    one = min(micro_batch or each, each)
    plan = Plan(
        dp=ranks, zero=3 if ranks > 1 else 0, micro_batch=one, n_micro_batch=-(-each // one)
    )
    known = unmodelled(spec) is None
    return training_memory(spec, plan, recipe(dtype, optimizer, plain=known), context)


def check_memory(need: TrainingMemory, device: torch.device, members: int = 1) -> None:
    """Refuse what cannot fit before it is built.

    Args:
        need: Of one model.
        device: That holds it.
        members: Models that are trained at once.

    Raises:
        FieldError: If the predicted memory is above what is free.
    """
    free = free_bytes(device)
    if free is not None and members * float(need.low) > free:
        whole = bytes_text(members * float(need.total))
        raise FieldError("memory", None, f"training needs about {whole}, "
                         f"{bytes_text(free)} are free", "train a smaller shape, or lower batch "
                         "or context")  # fmt: skip


class Watched:
    """The most memory a device held for tensors since a moment, as far as the system tells.

    Of a GPU what its allocator gave out. Of a CPU how far the process grew beyond what it held:
    libraries that were loaded meanwhile are in it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.before = 0 if device.type == "cuda" else resident_bytes()

    def peak(self) -> int | None:
        """Bytes; None where the system does not say."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        if self.before is None:
            return None
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - self.before
        return max(0, grown)


def resident_bytes() -> int | None:
    """Memory this process holds now; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no path of ours
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - no path of ours
            rows = dict(line.split(":") for line in file)
    except OSError:
        return None
    return int(rows["MemAvailable"].split()[0]) * 1024
