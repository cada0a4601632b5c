"""One calibration from first product to chip: measure, fit, and tell the error on what was held."""

from __future__ import annotations

import datetime as dt
import math
import statistics
import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from scantling.calibrate.cases import ACCELERATOR, FORMS, Case, aligned, kernels, models
from scantling.calibrate.fit import (
    LIGHT,
    as_training,
    changed,
    errors,
    fit_attention,
    fit_forward,
    fit_gemm,
    fit_light,
    fit_step,
    half_width,
    inside,
    mean_error,
    of_kind,
)
from scantling.calibrate.machine import (
    ASSUMED_BYTES,
    first_chip,
    load_per_core,
    memory_bytes,
    software,
)
from scantling.calibrate.run import Builder
from scantling.calibrate.timing import Clock, Progress, Sample, clock, measure
from scantling.hardware import Chip, Error, Measured, Rates

PROBE = {"cpu": (512, 512, 512), "cuda": (4096, 4096, 4096)}
"""A first product on each device: its rate sets how large the others get."""
MOST_BYTES = 64e9
"""Of a device's memory no more is counted on: a hundredth of it is the largest case."""
WORTH = 0.5
"""A narrower dtype at less than this share of the first one's rate has no units of its own."""
KERNELS_S, ALL_S = 40.0, 75.0
"""When the last round of kernels begins, and when the last of whole models does; a quick
calibration takes a third. On a busy machine fewer rounds are made."""
ROUNDS = 6
LARGE_COPY = 5_000_000
"""Elements of a copy that does not fit in a cache twice."""


class Calibration(Struct, frozen=True, kw_only=True):
    """A machine as measured.

    Args:
        chip: What every verb accepts, with its constants and its errors.
        samples: Every measurement.
    """

    chip: Chip
    samples: tuple[Sample, ...]

    @property
    def measured(self) -> Measured:
        """When, with what and how well."""
        assert self.chip.measured is not None, "a calibration says how it was made"
        return self.chip.measured


def calibration(
    device: str, threads: int, *, begun: float, load: float, quick: bool, progress: Progress
) -> Calibration:
    """Measure and fit.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: Of the CPU, set before.
        begun: ``time.monotonic()`` at the start.
        load: What the machine was doing before.
        quick: A third of the cases.
        progress: Told after each case.
    """
    by, build = clock(device, threads), Builder(device)
    rate, dtypes = _probe(device, by, build)
    part = 1 / 3 if quick else 1.0
    room = min(memory_bytes(device) or ASSUMED_BYTES, MOST_BYTES)
    parts = (kernels(rate, room, dtypes, quick=quick),
             models(rate, dtypes[0], quick=quick))  # fmt: skip
    samples: list[Sample] = []
    total = sum(len(p) for p in parts) * ROUNDS
    for i, (cases, until) in enumerate(zip(parts, (KERNELS_S, ALL_S), strict=True)):
        left = begun + part * until - time.monotonic()
        past = i * len(parts[0]) * ROUNDS

        def told(done: int, _of: int, kind: str, past: int = past) -> None:
            progress(past + done, total, kind)

        samples += measure(cases, Builder(device), by, rounds=ROUNDS, seconds=left,
                           progress=told)  # fmt: skip
    progress(total, total, "fit")
    blank = first_chip(device, threads, _rates(samples, dtypes), _bandwidth(samples))
    one, left_out = fitted(blank, samples)
    measured = Measured(
        when=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), device=device,
        threads=threads, clock=by.name, software=software(), quick=quick,
        seconds=round(time.monotonic() - begun, 1), load=round(max(load, load_per_core()), 2),
        spread=round(statistics.median(s.spread for s in samples), 4),
        errors=told_errors(one, samples, dtypes, left_out),
        alignment=alignment(samples, rate, dtypes[0]),
    )  # fmt: skip
    return Calibration(chip=replace(one, measured=measured), samples=tuple(samples))


def _probe(device: str, by: Clock, build: Builder) -> tuple[float, tuple[str, ...]]:
    """The rate of a first product, and the dtypes that are worth measuring."""
    found: dict[str, float] = {}
    for dtype in ("fp32", "bf16"):
        case = Case(kind="gemm", shape=PROBE[device], dtype=dtype, form=FORMS[0])
        sample = measure([case], build, by, rounds=3, seconds=3.0, progress=lambda *_: None)[0]
        found[dtype] = case.flops / sample.seconds
    first, second = ("fp32", "bf16") if device == "cpu" else ("bf16", "fp32")
    if device == "cpu" and found[second] < WORTH * found[first]:
        return found[first], (first,)
    return found[first], (first, second)


def _rates(samples: Sequence[Sample], dtypes: Sequence[str]) -> Rates:
    """The fastest products seen."""
    best = {
        dtype: max(s.case.flops / s.seconds for s in samples
                   if s.case.kind == "gemm" and s.case.dtype == dtype)
        for dtype in dtypes
    }  # fmt: skip
    return Rates(**best)


def _bandwidth(samples: Sequence[Sample]) -> float:
    """Bytes per second of the fastest copy too large for a cache."""
    copies = [s for s in samples if s.case.kind == "copy"]
    large = [s for s in copies if s.case.shape[0] > LARGE_COPY] or copies
    size = 4 if large[0].case.dtype == "fp32" else 2
    return max(2 * size * s.case.shape[0] / s.seconds for s in large)


def fitted(chip: Chip, samples: Sequence[Sample]) -> tuple[Chip, list[float]]:
    """A chip with constants fitted to what was not held out.

    Returns:
        The chip, and the error of each whole model's step with step constants from the others.
    """
    first = next(s.case.dtype for s in samples if s.case.kind == "launch")
    main = [s for s in samples if s.case.dtype == first]
    for step in (fit_gemm, fit_attention, fit_light, fit_forward):
        chip = step(chip, main)
    chip = _other_rates(chip, samples, first)
    off = _left_out(chip, main)
    # The one error is that of whole steps, so no kind of work adds to it.
    wide = {"error": half_width(off, 0.05), "error_light": 0.0, "error_attention": 0.0}
    return changed(fit_step(chip, main), "step", **wide), off


def _other_rates(chip: Chip, samples: Sequence[Sample], first: str) -> Chip:
    """Rates of other dtypes on a CPU: those with which the same constants are right by the median.

    A catalogue chip keeps the rates of its datasheet.
    """
    for dtype in chip.dtypes if chip.measured is None and chip.rates.fp32 else ():
        mine = [s for s in of_kind(samples, "gemm") if s.case.dtype == dtype]
        if dtype == first or not mine or chip.rate(dtype) > ACCELERATOR:
            continue
        for _ in range(3):
            off = statistics.median(errors(chip, mine))
            rates = replace(chip.rates, **{dtype: chip.rate(dtype) * math.exp(off)})
            chip = replace(chip, rates=rates)
    return chip


def _left_out(chip: Chip, samples: Sequence[Sample]) -> list[float]:
    """The error of each whole model's step with step constants from the others."""
    steps = of_kind(samples, "step")
    found = []
    for one in steps:
        others = [s for s in samples if s is not one]
        found += errors(fit_step(chip, others), [one])
    return found


def told_errors(
    chip: Chip, samples: Sequence[Sample], dtypes: Sequence[str], left_out: Sequence[float]
) -> tuple[Error, ...]:
    """The errors by kind; those of steps left out are given."""
    main = [s for s in samples if s.case.dtype == dtypes[0]]
    by_dtype = [(d, [s for s in samples if s.case.dtype == d]) for d in dtypes]
    unfused = [s for back in (False, True) for s in _both(main, "unfused", backward=back)]
    found = [
        *(_error(chip, f"gemm {d}", _both(mine, "gemm")) for d, mine in by_dtype),
        _error(chip, "attention", _both(main, "attention")),
        _error(chip, "unfused attention", as_training(unfused)),
        # Alone it takes less than in a model, so this is the error before ``fit_forward``.
        _error(fit_light(chip, main), "light, alone", _both(main, *LIGHT)),
        _error(chip, "forward", _both(main, "forward")),
    ]
    steps = of_kind(main, "step")
    wide = chip.constants.step.error
    found.append(Error(
        kind="step", fitted=_rounded(errors(chip, steps)), held=_rounded(left_out),
        inside=statistics.fmean(abs(x) <= wide for x in left_out) if left_out else None,
        n_fitted=len(steps), n_held=len(left_out),
    ))  # fmt: skip
    return tuple(found)


def _both(samples: Sequence[Sample], *kinds: str, backward: bool = False) -> list[Sample]:
    """What was fitted of some kinds, and what was held out."""
    return of_kind(samples, *kinds, held=None, backward=backward)


def _error(chip: Chip, name: str, samples: Sequence[Sample]) -> Error:
    used, held = ([s for s in samples if s.case.held == h] for h in (False, True))
    return Error(
        kind=name, fitted=_rounded(errors(chip, used)) if used else None,
        held=_rounded(errors(chip, held)) if held else None,
        inside=round(inside(chip, held), 3) if held else None, n_fitted=len(used),
        n_held=len(held),
    )  # fmt: skip


def _rounded(logs: Sequence[float]) -> float:
    return round(mean_error(logs), 4)


def alignment(samples: Sequence[Sample], rate: float, dtype: str) -> tuple[tuple[int, float], ...]:
    """Time an operation by the largest power of two that divides the widths, over that at 64."""
    at = {s.case: s.seconds / s.case.flops for s in samples if s.case.kind == "gemm"}
    found = {divisor: at[case] for divisor, case in aligned(rate, dtype).items()}
    return tuple((n, round(one / found[64], 3)) for n, one in found.items() if n != 64)
