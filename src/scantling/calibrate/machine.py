"""The machine at hand: what it is called, and the chip that a calibration starts from."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scantling.costs.kernels.attention import CACHE_TILE
from scantling.errors import FieldError, UnknownNameError
from scantling.hardware import Chip, Rates, chip
from scantling.hardware.constants import Constants, constants

SOURCE = "calibrate"
"""Key of the bibliography for what was measured at hand."""


ASSUMED_BYTES = 8 * 2**30
"""Memory of a machine that does not say how much it has."""


def need_software() -> None:
    """Raise one line that says what to install where torch or scipy is missing.

    Raises:
        FieldError: If one of them cannot be found.
    """
    for module, extras in (("torch", "lab,fit"), ("scipy", "fit")):
        if find_spec(module) is None:
            hint = f"pip install 'scantling[{extras}]'"
            raise FieldError("calibrate", None, f"needs {module}", hint)


def check_device(device: str) -> None:
    """Raise one line where a device is not one, or is not here.

    Raises:
        FieldError: If it is none of ``cpu`` and ``cuda``, or torch finds no such.
    """
    if device not in {"cpu", "cuda"}:
        raise FieldError("device", device, "is not known", "use cpu or cuda")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise FieldError("device", device, "is not here: torch finds no CUDA device", "use cpu")


def software() -> tuple[tuple[str, str], ...]:
    """What measures: Python, torch, scantling."""
    return (
        ("scantling", version("scantling")), ("torch", version("torch")),
        ("python", platform.python_version()), ("system", platform.platform(terse=True)),
    )  # fmt: skip


def load_per_core() -> float:
    """Programs that want to run, per core, in the last minute; 0 where none says."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # not everywhere
        return 0.0


def cpu_name(text: str) -> tuple[str, str]:
    r"""Vendor and name in the text of ``/proc/cpuinfo``; empty where it does not say.

    Example:
        >>> cpu_name("vendor_id : AuthenticAMD\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
        ('AMD', 'AMD EPYC 9654 96-Core Processor')
    """
    found = dict(re.findall(r"^(vendor_id|model name)\s*:\s*(.*)$", text, re.MULTILINE))
    vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(found.get("vendor_id", ""), "")
    return vendor, re.sub(r"\s+", " ", found.get("model name", "")).strip()


def first_chip(device: str, threads: int, rates: Rates, bandwidth: float) -> Chip:
    """The chip before its constants are fitted.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: Of the CPU.
        rates: The fastest products seen.
        bandwidth: Bytes per second of a large copy, read and written.
    """
    return _cuda(rates, bandwidth) if device == "cuda" else _cpu(threads, rates, bandwidth)


def _cpu(threads: int, rates: Rates, bandwidth: float) -> Chip:
    info = Path("/proc/cpuinfo")
    vendor, name = cpu_name(info.read_text("utf-8", "replace")) if info.exists() else ("", "")
    name = name or platform.processor() or platform.machine()
    ram = memory_bytes("cpu")
    return Chip(
        key=_slug(f"{name} {threads} threads"), name=f"{name}, {threads} threads",
        vendor=vendor or "unknown", architecture=platform.machine(), rates=rates,
        constants=_unpadded(_measured(constants((platform.machine(),), ""))),
        memory_bytes=ram or ASSUMED_BYTES, memory_kind="RAM",
        memory_bytes_per_s=bandwidth,
        unverified=() if ram else ("memory_bytes",), sm_count=threads, sources=(SOURCE,),
        notes="Rates are those of the fastest products seen, the bandwidth that of a large copy; "
        "what fits in a cache can be faster than the bandwidth.",
    )  # fmt: skip


def memory_bytes(device: str) -> int | None:
    """Bytes of memory of a device; None where the system does not say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return None


def _cuda(rates: Rates, bandwidth: float) -> Chip:
    """The chip of the catalogue with that name, or one made of what the driver says."""
    import torch

    found = torch.cuda.get_device_properties(0)
    family = f"{found.major}.{found.minor}"
    try:
        known = chip(found.name)
    except UnknownNameError:
        return Chip(
            key=_slug(found.name), name=found.name, vendor="NVIDIA", architecture=family,
            compute_capability=family, rates=rates, constants=_measured(constants((family,), "")),
            memory_bytes=found.total_memory, memory_kind="device", memory_bytes_per_s=bandwidth,
            sm_count=found.multi_processor_count, sources=(SOURCE,),
            notes="Rates are those of the fastest products seen, the bandwidth that of a copy.",
        )  # fmt: skip
    return replace(known, key=f"{known.key}-calibrated", constants=_measured(known.constants),
                   sources=(*known.sources, SOURCE))  # fmt: skip


def _measured(c: Constants) -> Constants:
    """The constants that will be fitted, marked as measured; what nobody measures stays assumed."""
    made: dict[str, Any] = {
        name: replace(getattr(c, name), kind="measured", widen=1.0, sources=(SOURCE,),
                      note="Measured on this machine.")
        for name in ("gemm", "attention", "elementwise", "step", "alignment")
    }  # fmt: skip
    return replace(c, **made)


def _unpadded(c: Constants) -> Constants:
    """Constants whose decoding works out no padded queries: a CPU has no tiles of 64 rows to fill.

    ``decode_compute`` is a fraction over padded queries, so with one row of 64 it is 64 times as
    much. Decoding itself is not measured.
    """
    a = c.attention
    return replace(c, attention=replace(a, decode_compute=CACHE_TILE * a.decode_compute))


def _slug(name: str) -> str:
    """A name as a key.

    Example:
        >>> _slug("AMD EPYC, 2 threads")
        'amd-epyc-2-threads'
    """
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))
