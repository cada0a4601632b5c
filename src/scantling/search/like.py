"""``design --like MODEL``: another shape at the same cost, and whether any beats it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.costs.count import parameters
from scantling.costs.deployment import valid_tp
from scantling.errors import FieldError, ScantlingError
from scantling.search.budget import Budget, budget
from scantling.search.candidate import Candidate, candidate, difference
from scantling.search.legal import legal_heads
from scantling.spec import (
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Mamba2,
    Spec,
    Window,
    has,
)
from scantling.spec.vary import nodes

if TYPE_CHECKING:
    from scantling.search import Front

COST_TOLERANCE = 0.02
"""Costs within 2 % count as the same: steps of alignment move them by as much."""
LONGEST = 8192
"""The context in training where a model says it can read more: what it was trained on first."""
COSTS = ("days", "kv_bytes_per_token", "tpot_s")


def like_budget(
    model: catalog.Loaded, given: Mapping[str, Any], tolerance: float = COST_TOLERANCE
) -> Budget:
    """The budget a model stands for: its size, vocabulary and context, its costs as limits.

    What is given beside it wins: ``--like llama-3.1-8b --tokens 15T --gpus 64``. Of the costs,
    one that is given as a limit is that limit, and the model's own is no other.

    Args:
        model: The model.
        given: Limits of a budget under the names of ``budget``.
        tolerance: By how much a cost may exceed the model's.

    Example:
        >>> b = like_budget(catalog.load("llama-3.1-8b"), {})
        >>> b.params, b.vocab_size, b.kv_bytes_per_token
        (8030261248, 128256, 133693)
    """
    spec, known = model.spec, dict(given)
    counted = parameters(spec)
    if spec.encoder is not None or spec.head is None:
        raise FieldError("--like", model.name, "is no decoder")
    known.setdefault("params", int(counted.total))
    if counted.active != counted.total and has(spec, "n_expert"):
        known.setdefault("active", int(counted.active))
        known["moe"] = True
    known.setdefault("vocab_size", int(spec.vocab_size))
    longest = min(int(spec.max_context or LONGEST), LONGEST)
    known.setdefault("train_context", longest)
    known.setdefault("serve_context", known["train_context"])
    for field, value in _kinds(spec).items():
        known.setdefault(field, value)
    free = {k: v for k, v in known.items() if k not in COSTS}
    own = candidate(spec, budget(**free), model.name)
    costs = {
        "days": own.days * (1 + tolerance),
        "kv_bytes_per_token": int(own.kv_bytes_per_token * (1 + tolerance)) or None,
        "tpot_s": float(own.decode.value_s) * (1 + tolerance),
    }
    b = budget(**{**{k: v for k, v in costs.items() if v is not None}, **known})
    notes = tuple(
        f"{name}: at most that of {model.name}, within {tolerance:.0%}"
        for name in COSTS if name not in known
    )  # fmt: skip
    return replace(b, assumed=b.assumed + notes)


def _kinds(spec: Spec) -> dict[str, Any]:
    """The kinds of a budget that a model is of: its mixer, and windows among whole layers."""
    from scantling.search.tasks import RECURRENT

    found: dict[str, Any] = {}
    parts = [node for _, node in nodes(spec.decoder)]
    if any(isinstance(node, RECURRENT) for node in parts):
        delta, mamba = (any(isinstance(n, kind) for n in parts) for kind in (GatedDelta, Mamba2))
        return {"mixer": "gated-delta" if delta else "mamba2" if mamba else "hybrid"}
    if any(isinstance(node, LatentAttention) for node in parts):
        return {"mixer": "mla"}
    windows = {int(n.window) for n in parts if isinstance(n, Window)}
    if len(windows) == 1:
        local = {
            kind.name for kind in spec.decoder.kinds
            if any(isinstance(n, Window) for _, n in nodes(kind))
        }  # fmt: skip
        pattern = max(spec.decoder.layout, key=lambda run: run.n).pattern
        near = sum(name in local for name in pattern)
        if 0 < near < len(pattern):
            ratio = max(1, round(near / (len(pattern) - near)))
            found = {"layout": f"{ratio}:1", "window": windows.pop()}
    return found


class Likeness(Struct, frozen=True):
    """A model beside the shapes at no more cost."""

    model: Candidate
    beyond: tuple[Candidate, ...]
    """Shapes whose loss is below the model's by more than the interval of the difference."""
    lower: int
    """Shapes of lower expected loss."""
    shapes: int
    cheaper: Candidate | None
    """The fastest to train of those the law cannot tell from the model and no dearer in any cost;
    of lower expected loss where there is one."""
    heads: tuple[dict[str, Any], ...]
    """Legal head layouts of its own width at the TP asked for, where its own is not."""
    valid_tp: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The object ``like`` of ``design --json``."""
        best = self.beyond[0] if self.beyond else None
        return {
            "model": self.model.name, "shapes": self.shapes, "lower_loss": self.lower,
            "beyond_noise": [self._row(c) for c in self.beyond],
            "better": None if best is None else best.name,
            "within_noise_and_cheaper": None if self.cheaper is None else self._row(self.cheaper),
            "valid_tp": list(self.valid_tp), "legal_heads": list(self.heads),
        }  # fmt: skip

    def _row(self, c: Candidate) -> dict[str, Any]:
        m = self.model
        return {
            "name": c.name, "dims": c.dims(), "loss": difference(c, m).to_json(),
            "days": c.days / m.days - 1,
            "kv_bytes_per_token": c.kv_bytes_per_token / m.kv_bytes_per_token - 1
            if m.kv_bytes_per_token else 0.0,
            "tpot_seconds": float(c.decode.value_s / m.decode.value_s) - 1,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The same in words."""
        name, found = self.model.name, self.to_json()
        told = [
            f"like {name}: {self.lower} of {self.shapes} shapes at no more cost have a lower loss"
        ]
        if not self.shapes:
            told = [f"like {name}: no other shape keeps its size, its costs and the other limits"]
        elif self.beyond:
            told[0] += f", {len(self.beyond)} beyond what the law can tell"
            told.append("  better: " + _text(found["beyond_noise"][0]))
        else:
            told[0] += ", none beyond what the law can tell: nothing here is surely better"
        if self.cheaper is not None:
            told.append("  cheaper, its loss within the noise: "
                        + _text(found["within_noise_and_cheaper"]))  # fmt: skip
        if self.heads:
            sizes = ", ".join(map(str, self.valid_tp))
            told.append(f"  its own heads split over TP {sizes} alone; at its width these would:")
        for row in self.heads:
            explicit = ", with head_dim in the config" if row["explicit_head_dim"] else ""
            told.append(
                f"      {row['n_head']} query heads, {row['n_kv_head']} KV heads of "
                f"{row['d_head']}: {row['difference']:+,} parameters{explicit}"
            )
        return told


def _text(row: dict[str, Any]) -> str:
    loss = row["loss"]
    half = (loss["high"] - loss["low"]) / 2
    return (f"{row['name']}: loss {loss['value']:+.4f} ± {half:.4f}, days {row['days']:+.1%}, KV "
            f"{row['kv_bytes_per_token']:+.1%}, ms/token {row['tpot_seconds']:+.1%}")  # fmt: skip


def likeness(front: Front, model: catalog.Loaded) -> Likeness:
    """Whether any shape of a front beats the model whose costs bound it.

    A shape is better only where the upper end of the interval of the difference lies below zero.
    Of those the law cannot tell from the model and no dearer in any cost, the one of fewest
    training days is named, of lower expected loss where there is one.
    """
    own = candidate(model.spec, front.budget, model.name)
    shapes = front.candidates
    gaps = [(difference(c, own), c) for c in shapes]
    beyond = sorted(
        ((g.value, c) for g, c in gaps if g.high is not None and g.high < 0),
        key=lambda pair: pair[0],
    )
    level = [c for g, c in gaps if g.low is not None and g.low <= 0 and _no_dearer(c, own)]
    sure = [c for c in level if difference(c, own).value <= 0] or level
    cheapest = min(sure, key=lambda c: (c.days, c.name), default=None)
    sizes, heads = _heads(model.spec, front.budget.tp)
    return Likeness(
        own, tuple(c for _, c in beyond), sum(g.value < 0 for g, _ in gaps), len(shapes),
        cheapest, heads, sizes,
    )  # fmt: skip


def _no_dearer(c: Candidate, own: Candidate) -> bool:
    pairs = ((c.days, own.days), (c.kv_bytes_per_token, own.kv_bytes_per_token),
             (float(c.decode.value_s), float(own.decode.value_s)))  # fmt: skip
    return all(x <= y for x, y in pairs) and any(x < 0.995 * y for x, y in pairs)


def _heads(spec: Spec, tp: int) -> tuple[tuple[int, ...], tuple[dict[str, Any], ...]]:
    """Degrees a model's heads split over, and legal layouts where ``tp`` is none of them."""
    sizes = tuple(valid_tp(spec, most=max(16, tp)))
    grouped = any(isinstance(n, GroupedAttention) for _, n in nodes(spec))
    if tp in sizes or not grouped:
        return sizes, ()
    try:
        return sizes, tuple(legal_heads(spec, tp)[:6])
    except ScantlingError:
        return sizes, ()
