"""Constants from samples: least squares on logarithms, through the costs' own functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.calibrate.cases import Case
from scantling.calibrate.predict import (
    Steps,
    alone,
    interval,
    predicted,
    step_of,
)
from scantling.calibrate.timing import Sample
from scantling.hardware import Chip
from scantling.hardware.curve import Points

LOOSE = 0.05
"""Relative error beyond which a sample pulls only by its sign: a disturbed one does not bend the
rest."""
LIGHT_LOOSE = 0.3
"""Light work of one kind differs so much: a norm of torch is one kernel or six."""
Z90 = 1.645
"""Half-width of a 90 % interval in standard deviations of a normal."""


Predict = Callable[[Chip, Sequence[Case]], list[float]]


class Free(Struct, frozen=True):
    """A constant that is fitted, between bounds that physics gives; on a logarithmic scale.

    Args:
        name: Its field.
        start: Where the fit starts.
        low: The least it may be.
        high: The most.
        prior: Standard deviation of its logarithm around the start; None leaves it free.
    """

    name: str
    start: float
    low: float
    high: float
    prior: float | None = None


def changed(chip: Chip, table: str, **values: Any) -> Chip:
    """A chip with some constants of one table replaced.

    Example:
        >>> from scantling.hardware import chip
        >>> changed(chip("h100"), "gemm", matmul=0.5).constants.gemm.matmul
        0.5
    """
    constants = chip.constants
    return replace(
        chip, constants=replace(constants, **{table: replace(getattr(constants, table), **values)})
    )


def fit(
    chip: Chip, samples: Sequence[Sample], free: Sequence[Free],
    apply: Callable[[Chip, dict[str, float]], Chip], loose: float = LOOSE,
    predict: Predict = predicted,
) -> Chip:  # fmt: skip
    """The chip whose constants fit the samples best.

    Args:
        chip: What is known so far.
        samples: What was measured.
        free: What may change.
        apply: Puts values into a chip.
        loose: Relative error beyond which a sample pulls only by its sign.
        predict: Seconds of cases on a chip.
    """
    if not samples:
        return chip
    import numpy as np
    from scipy.optimize import least_squares

    actual = np.log([s.seconds for s in samples])
    cases = [s.case for s in samples]
    start = np.log([f.start for f in free])

    # Unknowns start at 1, so that one relative step suits the derivative of them all.
    def residuals(z: Any) -> Any:
        x = z - 1 + start
        one = apply(chip, values(x))
        off = np.log(predict(one, cases)) - actual
        pulls = [(a - b) / f.prior * loose for a, b, f in zip(x, start, free, strict=True)
                 if f.prior is not None]  # fmt: skip
        return np.concatenate((off, pulls))

    def values(x: Any) -> dict[str, float]:
        return {f.name: float(math.exp(v)) for f, v in zip(free, x, strict=True)}

    low, high = (1 - start + np.log([getattr(f, end) for f in free]) for end in ("low", "high"))
    found = least_squares(residuals, 1 + 0 * start, bounds=(low, high), loss="soft_l1",
                          f_scale=loose, diff_step=1e-3, max_nfev=60)  # fmt: skip
    return apply(chip, values(found.x - 1 + start))


def errors(chip: Chip, samples: Sequence[Sample]) -> list[float]:
    """Logarithms of predicted over measured.

    Example:
        >>> from scantling.hardware import chip
        >>> errors(chip("h100"), [])
        []
    """
    guesses = predicted(chip, [s.case for s in samples])
    return [math.log(p / s.seconds) for p, s in zip(guesses, samples, strict=True)]


def mean_error(logs: Sequence[float]) -> float:
    """Mean absolute relative error.

    Example:
        >>> round(mean_error([math.log(1.1), math.log(0.9)]), 6)
        0.1
    """
    return statistics.fmean(abs(math.exp(x) - 1) for x in logs) if logs else 0.0


def half_width(logs: Sequence[float], least: float = 0.02) -> float:
    """The logarithm that 90 % of the errors stay within, were they normal around zero.

    The root of the mean square, with one degree of freedom less for a short list, times 1.645.

    Example:
        >>> round(half_width([0.1, -0.1]), 4)
        0.2326
    """
    n = len(logs)
    if not n:
        return 0.5
    square = sum(x * x for x in logs) / max(n - 1, 1)
    return max(least, Z90 * math.sqrt(square))


def inside(chip: Chip, samples: Sequence[Sample]) -> float:
    """Share of samples within their 90 % interval."""
    if not samples:
        return 1.0
    found = [interval(chip, s.case) for s in samples]
    return statistics.fmean(
        low <= s.seconds <= high for (low, high), s in zip(found, samples, strict=True)
    )


def of_kind(samples: Sequence[Sample], *kinds: str, held: bool | None = False,
            backward: bool = False) -> list[Sample]:  # fmt: skip
    """The samples of some kinds; ``held`` of None takes both parts."""
    return [s for s in samples if s.case.kind in kinds and s.case.backward == backward
            and (held is None or s.case.held == held)]  # fmt: skip


# ---------------------------------------------------------------- the kinds of kernels


def fit_gemm(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """Products, and what widths cost them that do not fill a load."""
    launch = _launch(samples)
    free = (
        Free("matmul", 0.9, 0.2, 1.0), Free("k_half", 10.0, 0.1, 2000.0),
        Free("wave_half", 0.01, 1e-4, 2.0), Free("bandwidth_factor", 0.8, 0.02, 1.2),
        Free("sharpness", 3.0, 1.0, 6.0), Free("launch_s", launch, launch / 4, launch * 30),
    )  # fmt: skip
    widths = tuple(Free(f, 1.1, 1.0, 3.0) for f in ("single", "pair", "load"))

    def apply(c: Chip, v: dict[str, float]) -> Chip:
        c = changed(c, "gemm", **{f.name: v[f.name] for f in free})
        return changed(c, "alignment", **{f.name: (v[f.name], 1.0, v[f.name]) for f in widths})

    mine, held = of_kind(samples, "gemm"), of_kind(samples, "gemm", held=True)
    blank = changed(chip, "gemm", tiles=(), waste=0.0, droop=0.0, step_s=0.0,
                    spread_rows=((1.0, 0.0),), spread_s=((1e-4, 0.0),))  # fmt: skip
    found = fit(blank, mine, (*free, *widths), apply)
    wide = half_width(errors(found, held or mine))
    large, small = (
        [abs(math.expm1(e)) for e in errors(found, part)]
        for part in (
            [s for s in held if s.case.shape[0] > 256],
            [s for s in held if s.case.shape[0] <= 256],
        )
    )
    return changed(
        found, "gemm", below=wide, above=wide,
        matmul_error=statistics.median(large or [0.1]),
        small_error=statistics.median(small or [0.15]),
    )  # fmt: skip


def _launch(samples: Sequence[Sample]) -> float:
    """What the smallest kernel takes."""
    return min(s.seconds for s in samples if s.case.kind == "launch")


FUSED = ("flash", "flash2", "flash3", "cudnn")
"""Torch has one fused attention on a device: whichever a recipe names, this is what runs."""


def fit_attention(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """Attention: of a prompt, and the two passes of training with the kernel torch has."""
    launch = _launch(samples)
    mine, held = of_kind(samples, "attention"), of_kind(samples, "attention", held=True)
    widths = sorted({float(s.case.shape[-1]) for s in mine})
    curve = tuple(Free(str(w), 0.5, 0.02, 1.0) for w in widths)
    rest = (
        Free("prefill_block_s", 3 * launch, launch / 10, 1000 * launch),
        Free("prefill_launch_s", 3 * launch, launch / 2, 100 * launch),
    )

    def points(v: dict[str, float]) -> Points:
        return tuple((w, v[str(w)]) for w in widths)

    def prompt(c: Chip, v: dict[str, float]) -> Chip:
        own = {f.name: v[f.name] for f in rest}
        return changed(c, "attention", prefill=points(v), **own)

    blank = changed(chip, "attention", prefill_tail=0.0, prefill_query_passes=1.0,
                    prefill_kv_passes=1.0, prefill_token_s=0.0)  # fmt: skip
    found = fit(blank, mine, (*curve, *rest), prompt)
    for field, back in (("forward", False), ("backward", True)):

        def trained(c: Chip, v: dict[str, float], field: str = field) -> Chip:
            return _kernels(c, FUSED, **{field: points(v)})

        part = as_training(of_kind(samples, "attention", backward=back))
        found = fit(found, part, curve, trained)
    found = _fit_unfused(found, samples)
    off = mean_error(errors(found, held or mine))
    wide = half_width(errors(found, held or mine))
    found = _kernels(found, FUSED, error=off)
    return changed(found, "attention", prefill_error=off, prefill_spread=(wide,) * 5)


def _fit_unfused(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """Attention of products, a mask and a softmax: a fraction, and bytes for each score."""
    free = (Free("fraction", 0.6, 0.02, 1.0), Free("scores", 20.0, 1.0, 1000.0))

    def apply(c: Chip, v: dict[str, float]) -> Chip:
        points = ((64.0, v["fraction"]),)
        return _kernels(
            c, ("unfused",), forward=points, backward=points, scores=v["scores"], mask=0.0
        )

    mine, held = (
        [s for back in (False, True)
         for s in as_training(of_kind(samples, "unfused", held=part, backward=back))]
        for part in (False, True)
    )  # fmt: skip
    if not mine:
        return chip
    found = fit(chip, mine, free, apply, LIGHT_LOOSE)
    return _kernels(found, ("unfused",), error=mean_error(errors(found, held or mine)))


def as_training(samples: Sequence[Sample]) -> list[Sample]:
    """Samples of attention as passes of training, whose constants are their own."""
    return [
        replace(s, case=replace(s.case, kind="trained",
                                form="unfused" if s.case.kind == "unfused" else ""))
        for s in samples
    ]  # fmt: skip


def _kernels(chip: Chip, names: Sequence[str], **values: Any) -> Chip:
    """A chip with some training kernels changed."""
    made = tuple(
        replace(k, tail=0.0, launches=1.0, passes=1.0, kind="fitted", **values)
        if k.name in names else k
        for k in chip.constants.attention.training
    )  # fmt: skip
    return changed(chip, "attention", training=made)


LIGHT = ("norm", "activation", "add")
SIZES = (19.0, 22.0, 24.0, 25.6, 26.6)
"""log2 of the bytes at which the curve of light work has its corners."""


def fit_light(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """Work that moves bytes; the factor of the smallest size is one.

    The fold counts additions with activations, so all but norms share a fraction.
    """
    launch = _launch(samples)
    free = (
        *(Free(f, 0.5, 0.005, 8.0) for f in ("norm", "activation")),
        *(Free(f, launch, launch / 4, launch * 10, 1.0) for f in ("norm_s", "activation_s")),
        *(Free(str(x), 1.0, 0.2, 30.0, 1.0) for x in SIZES[1:]),
    )

    def apply(c: Chip, v: dict[str, float]) -> Chip:
        curve = ((SIZES[0], 1.0), *((x, v[str(x)]) for x in SIZES[1:]))
        own = {f.name: v[f.name] for f in free[:4]}
        return changed(c, "elementwise", **own, bandwidth_factor=v["activation"],
                       launch_s=v["activation_s"], rotary=v["activation"],
                       rotary_s=v["activation_s"], slower=curve)  # fmt: skip

    mine, held = of_kind(samples, *LIGHT), of_kind(samples, *LIGHT, held=True)
    rows = dict.fromkeys(("row_s", "norm_row_s", "activation_row_s", "rotary_row_s"), 0.0)
    blank = changed(chip, "elementwise", **rows, sharpness=1.0, copy_spread=1.0, norm_spread=1.0,
                    activation_spread=1.0, rotary_spread=1.0, spread_rows=((1.0, 0.0),),
                    spread_s=((1e-4, 0.0),))  # fmt: skip
    found = fit(blank, mine, free, apply, LIGHT_LOOSE)
    wide = half_width(errors(found, held or mine))
    return changed(found, "elementwise", error=mean_error(errors(found, held or mine)),
                   below=wide, above=wide)  # fmt: skip


def fit_forward(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """Light work as it is in whole forward passes.

    Alone it finds its input in a cache, and a model does more of it than the fold counts: it turns
    queries and keys, and copies what it transposed. So one factor on all of it is fitted to half
    of the whole models.
    """
    e = chip.constants.elementwise
    names = ("bandwidth_factor", "norm", "activation", "rotary")

    def apply(c: Chip, v: dict[str, float]) -> Chip:
        own = {name: getattr(e, name) * v["light"] for name in names}
        return changed(c, "elementwise", **own)

    return fit(chip, of_kind(samples, "forward"), (Free("light", 1.0, 0.1, 2.0, 0.7),), apply)


def fit_step(chip: Chip, samples: Sequence[Sample]) -> Chip:
    """What kernels take inside a step over what they take alone, from whole models.

    Optimizer and loss start at what they took alone, the rest at what kernels alone say, and all
    are held near it, as few models tell few factors apart.
    """
    # Compiled code is not measured: it keeps the ratio that it has to eager code elsewhere.
    compiled = chip.constants.step.fused / chip.constants.step.eager
    starts = {
        kind: statistics.median(
            [s.seconds / alone(chip, s.case) for s in samples if s.case.kind == kind] or [1.0]
        )
        for kind in ("optimizer", "loss")
    }
    free = (
        Free("matmul", 1.0, 0.7, 1.6, 0.1), Free("flash2", 1.0, 0.3, 4.0, 0.3),
        Free("eager", 1.5, 0.2, 30.0, 0.7), Free("cold", 0.1, 0.001, 3.0, 1.0),
        Free("loss", starts["loss"] / 1.5, 0.001, 100.0, 0.3),
        Free("optimizer", starts["optimizer"], 0.001, 100.0, 0.3),
    )  # fmt: skip

    def apply(c: Chip, v: dict[str, float]) -> Chip:
        flash = v["flash2"]
        return changed(c, "step", **v, flash=flash, flash3=flash, fused=compiled * v["eager"])

    mine = of_kind(samples, "step")
    launch = _launch(samples)
    blank = changed(chip, "step", gap_eager_s=launch, gap_fused_s=launch,
                    flash_width=((64, 1.0),))  # fmt: skip
    steps = Steps(blank, [s.case for s in mine])
    return fit(blank, mine, free, apply, predict=steps)


__all__ = [
    "Case", "Free", "as_training", "changed", "errors", "fit", "fit_attention", "fit_forward",
    "fit_gemm", "fit_light", "fit_step", "half_width", "inside", "mean_error", "of_kind",
    "step_of",
]  # fmt: skip
