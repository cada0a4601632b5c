"""Claims of rotary positions and longer contexts."""

from __future__ import annotations

from scantling.claims.plain import named
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, check, decide, judge
from scantling.costs.rope import pairs_of
from scantling.formats.context import extend
from scantling.spec import Rope
from scantling.spec.rotation import frequencies, rotations


@check("frequencies")
def frequency_count(one: Claim) -> Checked:
    """How many frequencies a head has."""
    found = frequencies(Rope(one.given["base"]), one.given["d_head"])
    return judge(one, {"count": float(len(found.inverse))})


@check("rotation-and-width")
def rotation_and_width(one: Claim) -> Checked:
    """Frequencies of models of two widths and one head width: wrong if they are the same."""
    found = {}
    numbers = {}
    for name, model in one.given.items():
        spec = named(model)
        turning = rotations(spec)[0]
        found[name] = frequencies(turning.rope, turning.head).inverse
        numbers[f"{name}_width"] = float(spec.d_model)
    first, *rest = found.values()
    numbers["pairs"] = float(len(first))
    return decide("wrong", numbers, holds=all(other == first for other in rest))


@check("dynamic-no-op")
def dynamic_no_op(one: Claim) -> Checked:
    """The lowest frequency under dynamic scaling at the target: with it as the limit, and right.

    Wrong if the setting leaves every frequency as it was.
    """
    g = one.given
    rope = Rope(g["base"], scaling=(("factor", g["factor"]), ("rope_type", "dynamic")))
    before = frequencies(Rope(g["base"]), g["d_head"]).inverse
    after, meant = (
        frequencies(rope, g["d_head"], limit, g["target"]).inverse
        for limit in (g["target"], g["trained"])
    )
    numbers = {"plain": before[-1], "as_written": after[-1], "as_meant": meant[-1]}
    return decide("wrong", numbers, holds=before == after != meant)


@check("extension-factor")
def extension_factor(one: Claim) -> Checked:
    """The factor that a longer context needs."""
    g = one.given
    found = extend(named(g["model"]), g["target"], "linear", g["trained"])
    return judge(one, {"factor": float(found.factor)})


@check("unseen-pairs")
def unseen_pairs(one: Claim) -> Checked:
    """Pairs that meet new angles at a longer context: wrong if all are slower than those seen."""
    g = one.given
    turning = rotations(named(g["model"]))[0]
    plain = frequencies(turning.rope, turning.head)
    pairs = pairs_of(turning, g["trained"], g["target"], plain, plain)
    unseen = [p.wavelength for p in pairs if p.unseen]
    seen = [p.wavelength for p in pairs if not p.unseen]
    numbers = {"unseen": float(len(unseen)), "seen": float(len(seen))}
    return decide("wrong", numbers, holds=min(unseen) > max(seen))


@check("narrow-heads-far")
def narrow_heads_far(one: Claim) -> Checked:
    """Wrong if a model with narrow heads reads a long context."""
    spec = named(one.given["model"])
    numbers = {"d_head": float(spec.d_head), "context": float(spec.max_context or 0)}
    holds = numbers["d_head"] <= one.said["d_head"] and numbers["context"] >= 100_000
    return decide("wrong", numbers, holds=holds)
