"""Measures the machine at hand, fits the constants of its kernels, and writes a chip file.

The kernels are those a plain model in torch calls; the constants are those of every chip, fitted
through the functions that will predict with them; a part of the measurements is held out and
tells the error. ``import scantling; scantling.calibrate()`` is the verb.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from scantling.calibrate.fitted import Calibration, calibration
from scantling.calibrate.machine import check_device, load_per_core, need_software
from scantling.calibrate.timing import Progress
from scantling.errors import FieldError
from scantling.hardware import write_chip

__all__ = ["Calibration", "calibrate"]


def calibrate(
    device: str = "cpu", *, threads: int | None = None, quick: bool = False,
    out: str | Path | None = None, progress: Progress | None = None,
) -> Calibration:  # fmt: skip
    """Measure this machine and fit the constants of a chip to it; takes one to two minutes.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: Threads of the CPU; what torch takes by default. With one, the clock counts only
            the time the thread runs, so that a shared machine can be measured.
        quick: A third of the cases, in a third of the time.
        out: A file to write; nothing is written before all is measured.
        progress: Called with cases done, cases in all and the kind at hand.

    Raises:
        FieldError: If torch or scipy is missing, the device is not here, or the file cannot be
            written.

    Example:
        >>> import scantling
        >>> scantling.calibrate("tpu")
        Traceback (most recent call last):
        ...
        scantling.errors.FieldError: device tpu is not known; use cpu or cuda
    """
    need_software()
    check_device(device)
    if threads is not None and threads < 1:
        raise FieldError("threads", threads, "must be at least 1")
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise FieldError("threads", threads, f"is more than the {cores} cores of this machine")
    if out is not None:
        _check_out(Path(out))
    import torch

    before = torch.get_num_threads()
    begun, load = time.monotonic(), load_per_core()
    try:
        torch.set_num_threads(threads or before)
        found = calibration(device, threads or before, begun=begun, load=load, quick=quick,
                            progress=progress or _silent)  # fmt: skip
    finally:
        torch.set_num_threads(before)
    if out is not None:
        write_chip(found.chip, out)
    return found


def _check_out(out: Path) -> None:
    """Refuse before two minutes of measuring what could not be written after them."""
    folder = out.absolute().parent
    if not folder.is_dir():
        raise FieldError("out", out, "is in a folder that is not there")
    if out.is_dir():
        raise FieldError("out", out, "is a folder", "name a file in it")
    if not os.access(folder, os.W_OK):
        raise FieldError("out", out, "is in a folder that cannot be written")


def _silent(_done: int, _total: int, _kind: str) -> None:
    """Nobody watches."""


class _Verb(ModuleType):
    """The verb has its package's name: the package can be called."""

    def __call__(self, *given: Any, **named: Any) -> Calibration:
        return calibrate(*given, **named)


sys.modules[__name__].__class__ = _Verb
