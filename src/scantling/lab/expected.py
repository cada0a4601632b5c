"""What a step should take and need: the costs' own prediction, to set beside what is measured."""

from __future__ import annotations

import functools
from importlib.resources import as_file, files

import torch

from scantling.calibrate.predict import recipe_of
from scantling.costs.memory import training_memory
from scantling.costs.train import Estimate, training_step
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import Chip, chip, cluster
from scantling.hardware.chip_file import read_chip
from scantling.spec import Spec
from scantling.spec.plan import Plan
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


def check_memory(spec: Spec, batch: int, context: int, dtype: str, device: torch.device) -> None:
    """Refuse what cannot fit before it is built.

    Raises:
        FieldError: If the low end of the predicted memory is above what is free.
    """
    need = training_memory(spec, Plan(micro_batch=batch), recipe_of(dtype), context)
    free = free_bytes(device)
    if free is not None and float(need.total) > free:
        raise FieldError("memory", None, f"training needs about {bytes_text(float(need.total))}, "
                         f"{bytes_text(free)} are free", "train a smaller shape, or lower batch "
                         "or context")  # fmt: skip


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
