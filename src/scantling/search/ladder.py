"""The same recipe at several sizes: ratios kept, roundings legal, learning rates by muP.

A ladder of small models says what a large one will reach only if they are the same model at
another size: width over depth, attention width, group, feed-forward and vocabulary alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import round_up
from scantling.costs.count import WidthLine, parameters, width_line
from scantling.errors import FieldError
from scantling.laws.hyperparameters import advice, batch_tokens
from scantling.search.budget import Budget
from scantling.search.candidate import Candidate, candidate
from scantling.search.space import TIE_ABOVE
from scantling.spec import Spec, divisors, has, read, vary
from scantling.units import count_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SOLVED = ("d_expert", "d_ff")
"""The width that takes up the size: that of an expert where there are experts."""
WITH_WIDTH = ("d_expert", "d_ff", "d_shared", "kv_rank", "q_rank")
"""Widths that grow with the model width."""
REACH = 2.0
"""How far a ratio may leave the recipe's, as a factor, before a size has no rung."""
FAR = 1.25
"""From which factor on a rung says that it is not quite the recipe."""
WEIGHTS = {"H/K": 0.25}
"""KV heads are nearly free in loss (0.004 nats for a doubled group), so they give way first."""
INIT_STD = 0.02
"""Standard deviation of the smallest rung's matrices (GPT-2; assumed)."""


class Rung(Struct, frozen=True):
    """One size of a ladder."""

    size: int
    candidate: Candidate | None
    """None where no legal shape of this size keeps the ratios."""
    advice: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """An entry of ``ladder`` of ``design --json``."""
        from scantling.search.candidate import hf_config

        c = self.candidate
        if c is None:
            return {"size": self.size, "feasible": False, **self.advice}
        return {
            "size": self.size, "feasible": True, "name": c.name, "dims": c.dims(),
            "shape": c.shape(), "tied": c.spec.tied, "params": int(c.counted.total),
            "active": int(c.counted.active), "hf_config": hf_config(c.spec), "days": c.days,
            "tokens": c.budget.tokens, "kv_bytes_per_token": c.kv_growth, **self.advice,
        }  # fmt: skip


def ladder(c: Candidate, sizes: Sequence[int]) -> tuple[Rung, ...]:
    """A recipe at several sizes.

    Of the shapes whose total is within the budget's tolerance the one is taken whose ratios D/L,
    H h/D, H/K and F/D lie nearest to the recipe's, by the sum of squared logarithms, the group
    counted a quarter. Head width, numbers of experts and vocabulary stay. Widths are multiples of
    128, of 64 below 1 B and of experts; heads split over a node from 1 B up. Embeddings are tied by
    the rule unless the budget says; tokens a parameter stay, those that the shape itself is given.

    Learning rates: the smallest rung has the rate that laws and practice give its size
    (``laws.hyperparameters.advice``). Going wider, matrices inside take it times D_0/D and
    embeddings keep it, as muP has it for Adam (``mup2022``), so that one rate tuned on the smallest
    rung is right for all. That needs the output times D_0/D, initial deviations of matrices times
    sqrt(D_0/D), and scores of heads over sqrt(h_0)/h, which stays since heads keep their width. It
    says nothing of depth, whose ratio stands beside it. What the same advice says at each size, of
    ordinary parametrisation, is ``without_mup``.

    Args:
        c: The shape to scale.
        sizes: Total parameters of each rung.

    Example:
        >>> from scantling import catalog
        >>> from scantling.search.budget import budget
        >>> base = candidate(catalog.model("llama-3.1-8b"), budget(params="8B"))
        >>> [r.candidate.dims()["n_layer"] for r in ladder(base, (10**9, 8 * 10**9))]
        [14, 32]
    """
    if not sizes:
        raise FieldError("--ladder", None, "has no sizes", "write --ladder 125M,350M,1B")
    field = next((f for f in SOLVED if has(c.spec, f)), None)
    if field is None or not has(c.spec, "n_head"):
        raise FieldError("--ladder", c.name, "needs attention and a feed-forward width to scale")
    shapes = {size: _shape(c, size, field) for size in sorted(set(sizes))}
    small = next((s for s in shapes.values() if s is not None), None)
    base = None if small is None else candidate(small, _budget(c, int(parameters(small).total)))
    rungs = []
    for size, spec in shapes.items():
        if spec is None:
            rungs.append(Rung(size, None, {"note": _why_not(c, size)}))
            continue
        one = candidate(spec, _budget(c, int(parameters(spec).total)))
        assert base is not None
        rungs.append(Rung(size, one, {"note": _note(c, one, field), **_advice(one, base)}))
    return tuple(rungs)


def _budget(c: Candidate, size: int) -> Budget:
    """The budget of the recipe at another size: tokens a parameter stay, of each rung alike."""
    tokens = round(float(c.features.tokens) / float(c.counted.total) * size)
    return replace(c.budget, params=size, tokens=max(1, tokens), flops=None, equal="tokens",
                   alike=None)  # fmt: skip


def _why_not(c: Candidate, size: int) -> str:
    table = int(c.spec.vocab_size) * 64
    text = f"no shape of {count_text(size)} keeps D/L, H h/D and F/D within ×{REACH:g}"
    if size < 100 * table:
        text += (f"; a vocabulary of {int(c.spec.vocab_size):,} takes "
                 f"{count_text(table)} parameters for every 64 of width")  # fmt: skip
    return text


def _note(c: Candidate, one: Candidate, field: str) -> str:
    """What of a rung is not quite the recipe."""
    pairs = [
        _ratios({**x.dims(), field: int(read(x.spec, field))}, c.spec, field) for x in (c, one)
    ]
    off = [f"{k} {pairs[0][k]:.3g} to {v:.3g}" for k, v in pairs[1].items()
           if abs(math.log(v / pairs[0][k])) > math.log(FAR)]  # fmt: skip
    if one.spec.tied != c.spec.tied:
        off.append("tied" if one.spec.tied else "untied")
    return ", ".join(off)


def _ratios(dims: Any, spec: Spec, field: str) -> dict[str, Any]:
    """The ratios of a recipe, of one shape or of columns."""
    found = {
        "D/L": dims["d_model"] / dims["n_layer"],
        "Hh/D": dims["n_head"] * int(read(spec, "d_head")) / dims["d_model"],
        "F/D": dims[field] / dims["d_model"],
    }
    if "n_kv_head" in dims:
        found["H/K"] = dims["n_head"] / dims["n_kv_head"]
    return found


def _shape(c: Candidate, size: int, field: str) -> Spec | None:
    """The shape of a size whose ratios are nearest to the recipe's."""
    import numpy as np

    given = {**c.dims(), field: int(read(c.spec, field))}
    wanted = _ratios(given, c.spec, field)
    columns = _grid(c.spec, size, given, wanted)
    columns |= _with_width(c.spec, columns["d_model"], given["d_model"], field)
    best: tuple[float, Spec] | None = None
    for tied in (False, True) if c.budget.tied is None else (c.budget.tied,):
        line = width_line(vary(replace(c.spec, tied=tied), **columns), field)
        keep, columns[field] = _width(
            line, columns["d_model"] * wanted["F/D"], size, c.budget.tolerance, _step(size, field)
        )
        if c.budget.tied is None:
            keep &= (columns["d_model"] * int(c.spec.vocab_size) > TIE_ABOVE * size) == tied
        if keep.any():
            ratios = _ratios({k: v[keep] for k, v in columns.items()}, c.spec, field)
            score = sum(WEIGHTS.get(k, 1.0) * np.log(v / wanted[k]) ** 2 for k, v in ratios.items())
            at = int(score.argmin())
            if best is None or score[at] < best[0]:
                one = {k: int(v[keep][at]) for k, v in columns.items()}
                best = (float(score[at]), vary(replace(c.spec, tied=tied), **one))
    return None if best is None else best[1]


def _step(size: int, field: str) -> int:
    """What widths of a feed-forward are multiples of."""
    return 128 if size >= 10**9 and field == "d_ff" else 64


def _width(
    line: WidthLine, wanted: Any, size: int, tolerance: float, step: int
) -> tuple[Any, Any]:  # fmt: skip
    """Which rows have a width within the tolerance of a size, and the one nearest to the recipe's.

    Between the widths of both ends of the tolerance the recipe's own is taken, else the nearer end.
    """
    import numpy as np

    free = np.asarray(line.slope) > 0  # of few layers all may be dense
    first, last = ((size * share - line.base) / np.where(free, line.slope, 1) / step
                   for share in (1 - tolerance, 1 + tolerance))  # fmt: skip
    first, last = np.ceil(first) * step, np.floor(last) * step
    width = np.clip(np.round(wanted / step) * step, first, last)
    keep = free & (first <= last) & (wanted / REACH <= width) & (width <= wanted * REACH)
    return keep, np.where(keep, width, step).astype(np.int64)


def _grid(
    spec: Spec, size: int, given: dict[str, int], wanted: dict[str, float]
) -> dict[str, NDArray[np.int64]]:  # fmt: skip
    """Columns of D, L, H and K, with every ratio within reach of the recipe's."""
    import numpy as np

    large = size >= 10**9
    step, even, over = (128 if large else 64), (2 if large else 1), (
        8 if large and given["n_head"] % 8 == 0 else 1)  # fmt: skip
    # the body grows with D³ at one D/L; what the table takes of a small model moves it
    middle = given["d_model"] * (size / float(parameters(spec).total)) ** (1 / 3)
    names = ["d_model", "n_layer", "n_head", "n_kv_head"]
    rows = [np.empty((0, 4), dtype=np.int64)]
    for d in range(max(64, round_up(int(middle / 2), step)), int(middle * 1.5) + 64, step):
        layers = np.arange(*_reach(d / wanted["D/L"], even), even)
        for heads, groups in _heads(wanted["Hh/D"] * d / int(read(spec, "d_head")), over, given):
            mesh = np.meshgrid([d], layers, [heads], [groups], indexing="ij")
            rows.append(np.stack([m.ravel() for m in mesh], axis=1))
    table = np.concatenate(rows).astype(np.int64)
    if "n_kv_head" not in given:
        names[3] = ""
    return {name: table[:, i] for i, name in enumerate(names) if name}


def _reach(centre: float, step: int) -> tuple[int, int]:
    """The first multiple of a step within reach of a value, and the end of them."""
    return int(round_up(max(1, math.ceil(centre / REACH)), step)), int(centre * REACH) + 1


def _heads(centre: float, over: int, given: dict[str, int]) -> list[tuple[int, int]]:
    """Query and KV heads near a number of heads; both split over a node or are copied to it."""
    found = []
    least = min(4, given.get("n_kv_head", 1))
    most = max(8, given["n_head"] // given.get("n_kv_head", given["n_head"]))
    for heads in {max(1, math.floor(centre / over)) * over, math.ceil(centre / over) * over}:
        groups = [1] if "n_kv_head" not in given else [
            k for k in divisors(heads) if (k % over == 0 or over % k == 0)
            and k >= min(least, heads) and heads // k <= most
        ]  # fmt: skip
        found += [(heads, k) for k in groups]
    return sorted(found)


def _with_width(spec: Spec, d_model: Any, before: int, solved: str) -> dict[str, Any]:
    """The other widths of a recipe, in proportion to the model width, in steps of 64."""
    return {
        name: round_up((d_model * int(read(spec, name))) // before, 64)
        for name in WITH_WIDTH if name != solved and has(spec, name)
    }  # fmt: skip


def _advice(c: Candidate, base: Candidate) -> dict[str, Any]:
    """Learning rates, initial deviations, batch and tokens of a rung."""
    wider = c.dims()["d_model"] / base.dims()["d_model"]
    rate = _advised(base)["learning_rate"]
    own = _advised(c)
    why = (f"muP from {base.name}: matrices × D_0/D = 1/{wider:.3g}, embeddings × 1", "mup2022")
    return {
        "hyperparameters": {
            "learning_rate_matrices": _scaled(rate, 1 / wider, why),
            "learning_rate_embeddings": _scaled(rate, 1.0, why),
            "init_std_matrices": INIT_STD / math.sqrt(wider), "init_std_embeddings": INIT_STD,
            "output_multiplier": 1 / wider, "depth_ratio": c.spec.n_layer / base.spec.n_layer,
            "batch_tokens": own["batch_tokens"], "steps": own["steps"],
            "warmup_steps": own["warmup_steps"],
            "without_mup": {"learning_rate": own["learning_rate"]}, "base": base.name,
        }
    }  # fmt: skip


def _advised(c: Candidate) -> dict[str, Any]:
    """What laws and practice say of a rung, with steps of the batch they say."""
    body, tokens = float(c.features.body), float(c.budget.tokens)
    batch = advice(body, tokens, batch_tokens(tokens))["batch_tokens"]["value"]
    return advice(body, tokens, batch)


def _scaled(entry: dict[str, Any], by: float, why: tuple[str, ...]) -> dict[str, Any]:
    return {**entry, **{k: entry[k] * by for k in ("value", "low", "high")},
            "why": [*entry["why"], *why]}  # fmt: skip


def ladder_lines(rungs: Sequence[Rung]) -> list[str]:
    """A ladder in words: a line a rung, and what the rates are relative to."""
    lines = []
    for r in rungs:
        c = r.candidate
        if c is None:
            lines.append(f"  {count_text(r.size)}: {r.advice['note']}")
            continue
        h, d = r.advice["hyperparameters"], c.dims()
        kv = f"/{d['n_kv_head']}" if "n_kv_head" in d else ""
        width = f", FFN {d['d_ff']:,}" if "d_ff" in d else ""
        lines.append(
            f"  {count_text(r.size)}: {d['n_layer']} × {d['d_model']}, {d['n_head']}{kv} heads"
            f"{width}, {int(c.counted.total):,} parameters; {count_text(c.budget.tokens)} tokens, "
            f"{c.days:.3g} days; rate {h['learning_rate_matrices']['value']:.2e} for matrices, "
            f"{h['learning_rate_embeddings']['value']:.2e} for embeddings, batch "
            f"{count_text(h['batch_tokens']['value'])}"
            + (f" ({r.advice['note']})" if r.advice["note"] else "")
        )
    base = next((r.advice["hyperparameters"]["base"] for r in rungs if r.candidate), None)
    if base:
        lines.insert(0, f"ladder: the same ratios at each size; rates by muP from {base}, the rung "
                        "to tune one on [mup2022]")  # fmt: skip
    return lines
