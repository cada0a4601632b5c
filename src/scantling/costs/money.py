"""What a run costs: GPU-hours, energy, money, and calendar days beside ideal ones."""

from __future__ import annotations

from msgspec import Struct

from scantling.costs.estimate import DAY_S, Estimate
from scantling.hardware import Chip

HOUR_S = 3600
JOULES_PER_KWH = 3.6e6
POWER_SHARE = (0.6, 0.8, 1.0)
"""Power of a training chip over its TDP: low, middle, high. No public table measures it here, so
the range is assumed: a chip that waits draws little more than half, none draws more than its TDP
for long."""


class Bill(Struct, frozen=True, kw_only=True):
    """What a run takes.

    Args:
        ideal_s: Seconds without a stop.
        calendar_s: Seconds with the stops that the goodput stands for.
        gpu_hours: Chip-hours without a stop.
        calendar_gpu_hours: Chip-hours that are paid for.
        energy_kwh: Of the chips alone, without hosts, network and cooling; None where the chip's
            power is unknown.
        cost: At the price given, of the calendar hours; None without a price.
    """

    ideal_s: Estimate
    calendar_s: Estimate
    gpu_hours: Estimate
    calendar_gpu_hours: Estimate
    energy_kwh: Estimate | None
    cost: Estimate | None

    @property
    def days(self) -> Estimate:
        """Days without a stop."""
        return self.ideal_s.times(1 / DAY_S)

    @property
    def calendar_days(self) -> Estimate:
        """Days with stops."""
        return self.calendar_s.times(1 / DAY_S)


def bill(
    run_s: Estimate, n_gpu: int, chip: Chip, goodput: float = 1.0, price: float | None = None
) -> Bill:
    """What a run of so many ideal seconds takes.

        calendar = ideal / goodput
        GPU-hours = seconds × chips / 3600
        energy = TDP × share of it × chip-seconds
        cost = price × calendar GPU-hours

    Args:
        run_s: Seconds of the run without a stop.
        n_gpu: Chips.
        chip: Which.
        goodput: Share of the calendar time that is training, in (0, 1].
        price: Money for one chip for one hour.

    Example:
        >>> from scantling.hardware import chip
        >>> found = bill(Estimate(7200.0, 3600.0, 10800.0), 8, chip("h100-sxm"), 0.5, 2.0)
        >>> found.gpu_hours.value_s, found.calendar_gpu_hours.value_s, found.cost.value_s
        (16.0, 32.0, 64.0)
    """
    calendar = run_s.times(1 / goodput)
    hours, paid = run_s.times(n_gpu / HOUR_S), calendar.times(n_gpu / HOUR_S)
    energy = None
    if chip.tdp_w is not None:
        low, middle, high = POWER_SHARE
        kwh = run_s.times(n_gpu * chip.tdp_w / JOULES_PER_KWH)
        energy = Estimate(kwh.value_s * middle, kwh.low_s * low, kwh.high_s * high)
    return Bill(
        ideal_s=run_s, calendar_s=calendar, gpu_hours=hours, calendar_gpu_hours=paid,
        energy_kwh=energy, cost=None if price is None else paid.times(price),
    )  # fmt: skip


SERVING_POWER_SHARE = (0.4, 0.7, 1.0)
"""The same of a serving chip, which waits for memory more than it computes: assumed as well."""


class TokenBill(Struct, frozen=True, kw_only=True):
    """What a million tokens take.

    Args:
        cost: Money, at the price given; None without one.
        joules: Energy of the chips for one token; None where their power is unknown. The paid
            time in which they idle is left out.
    """

    cost: Estimate | None
    joules: Estimate | None


def token_bill(
    token_s: Estimate, n_gpu: float, chip: Chip, utilisation: float = 1.0,
    price: float | None = None,
) -> TokenBill:  # fmt: skip
    """What a million tokens take, of which each keeps so many chips busy for a time.

        cost   = price × chips × seconds × 10^6 / (3600 × utilisation)
        energy = TDP × share of it × chips × seconds

    Args:
        token_s: Seconds of all chips together that one token takes.
        n_gpu: Chips.
        chip: Which.
        utilisation: Share of the paid time at which they run like this, in (0, 1].
        price: Money for one chip for one hour.

    Example:
        >>> from scantling.hardware import chip
        >>> t = token_bill(Estimate(0.001, 0.0005, 0.001), 2, chip("h100-sxm"), 0.5, 3.6)
        >>> t.cost.value_s, round(t.joules.high_s, 6)
        (4.0, 1.4)
    """
    joules = None
    if chip.tdp_w is not None:
        low, middle, high = SERVING_POWER_SHARE
        most = token_s.times(chip.tdp_w * n_gpu)
        joules = Estimate(most.value_s * middle, most.low_s * low, most.high_s * high)
    cost = None
    if price is not None:
        cost = token_s.times(price * n_gpu * 1e6 / (HOUR_S * utilisation))
    return TokenBill(cost=cost, joules=joules)
