"""Claims of chips and kernels: multiples, SMs, memory on chip, widths of heads."""

from __future__ import annotations

from scantling.arith import round_up
from scantling.claims.plain import named, slot
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, check, decide, judge
from scantling.costs.alignment import recommended_multiple
from scantling.costs.backends import backends
from scantling.costs.flash import fused_kernels, prefill_fill, tile
from scantling.costs.kernels.attention import Shape
from scantling.costs.roofline import wave_waste
from scantling.hardware import chip
from scantling.spec import dtype_bytes


@check("multiples")
def multiples(one: Claim) -> Checked:
    """The multiple that fills a line of 128 bytes, and the one of a load of 16 bytes.

    A convention if what is said is the load's: the least for speed, not for use.
    """
    on = chip(one.given["chip"])
    load = on.constants.alignment.load_bytes
    numbers: dict[str, float] = {f"{d}_load": load / dtype_bytes(d) for d in ("fp16", "int8")}
    numbers |= {f"{d}_line": float(recommended_multiple(on, d)) for d in ("fp16", "int8")}
    said = all(numbers[d] == value for d, value in one.said.items())
    return decide("convention", numbers, holds=said)


@check("line-multiple")
def line_multiple(one: Claim) -> Checked:
    """The multiple a 16-bit width should be on two chips."""
    return judge(
        one,
        {
            "multiple": float(recommended_multiple(chip("a100"), "bf16")),
            "newer": float(recommended_multiple(chip("h100"), "bf16")),
        },
    )


@check("tail-wave")
def tail_wave(one: Claim) -> Checked:
    """SMs of chips, and what one block too many leaves of a wave.

    Approximate if the SMs are right but a chip takes more than one block an SM.
    """
    numbers = {slot(name): float(chip(name).sm_count or 0) for name in one.given["chips"]}
    first = int(numbers[slot(one.given["chips"][0])])
    held = tile(chip(one.given["chips"][0]), 64)
    assert held is not None
    numbers["one_more"] = wave_waste(first + 1, first).efficiency
    numbers["blocks_per_sm"] = float(held.blocks_per_sm)
    right = judge(one, numbers).verdict == "correct" and held.blocks_per_sm > 1
    return decide("approximate", numbers, holds=right)


@check("tiles-and-width")
def tiles_and_width(one: Claim) -> Checked:
    """Shared memory of an attention tile at models of different widths: wrong if it is the same."""
    numbers = {}
    for name in one.given["models"]:
        spec = named(name)
        held = tile(chip(one.given["chip"]), int(spec.d_head))
        assert held is not None
        numbers[f"{slot(name)}_width"] = float(spec.d_model)
        numbers[f"{slot(name)}_kib"] = held.shared_bytes / 1024
    kib = {value for name, value in numbers.items() if name.endswith("_kib")}
    return decide("wrong", numbers, holds=len(kib) == 1)


@check("shared-memory")
def shared_memory(one: Claim) -> Checked:
    """Memory of an SM, all and the share that can be shared, in KiB: approximate if they mix."""
    numbers = {}
    for name in one.given["chips"]:
        on = chip(name)
        assert on.shared_bytes is not None
        assert on.shared_max_bytes is not None
        numbers[f"{slot(name)}_all"] = on.shared_bytes / 1024
        numbers[f"{slot(name)}_shared"] = on.shared_max_bytes / 1024
    columns = [
        {name: numbers[f"{name}_{column}"] for name in one.said} for column in ("all", "shared")
    ]
    each = all(any(c[name] == value for c in columns) for name, value in one.said.items())
    mixed = each and dict(one.said) not in columns
    return decide("approximate", numbers, holds=mixed)


@check("head-limit")
def head_limit(one: Claim) -> Checked:
    """The widest head a fused kernel takes."""
    return judge(one, {"widest": float(fused_kernels()[one.given["kernel"]].most or 0)})


@check("idle-sms")
def idle_sms(one: Claim) -> Checked:
    """Blocks of a prompt over SMs at 8 wide heads: one short prompt, and a usual batch.

    Approximate if the first leaves SMs idle and the second does not.
    """
    numbers = {}
    for name, batch, context in (("short", 1, 256), ("usual", 8, 4096)):
        shape = Shape(batch=batch, queries=context, keys=context, n_head=8, n_kv_head=8, d_key=256)
        found = prefill_fill(chip(one.given["chip"]), shape)
        assert found is not None
        numbers[name] = float(found.efficiency)
    return decide("approximate", numbers, holds=numbers["short"] < 0.5 and numbers["usual"] > 0.9)


@check("matrix-unit")
def matrix_unit(one: Claim) -> Checked:
    """What a head width leaves idle of a square matrix unit of 128 and of 256."""
    width = one.given["width"]
    numbers = {f"unit_{n}": 1 - width / float(round_up(width, n)) for n in (128, 256)}
    return decide("wrong", numbers, holds=min(numbers.values()) > 0.2)


@check("rounded-heads")
def rounded_heads(one: Claim) -> Checked:
    """Head widths as FlashAttention 2 computes them: to 32 up to 128, above it to 64.

    A convention if widths of the sweep cost what others of it do.
    """
    flash2 = backends()["flash2"]
    numbers = {f"at_{h}": float(flash2.takes(h, h).width or 0) for h in one.given["widths"]}
    return decide("convention", numbers, holds=len(set(numbers.values())) < len(numbers))
