"""Claims of work: FLOPs of training, of attention, and the bubble of a pipeline."""

from __future__ import annotations

import math

from scantling.claims.plain import named, plain
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, by_convention, check, decide, judge
from scantling.costs.count import flops
from scantling.costs.kernels.attention import Shape
from scantling.costs.pipeline import schedule
from scantling.laws.optimum import compute_optimal


def _per_token(layers: int, width: int, context: int, *, train: bool = False) -> float:
    """FLOPs a token of a plain body, embedding and head of one row left out."""
    found = flops(plain(layers, width, heads=width // 128), 1, context)
    head = 2 * width * (3 if train else 1)
    return float(found.train if train else found.forward) / found.tokens - head


def _scores(heads: int, d_head: int, context: int) -> float:
    """FLOPs of one layer's scores and values over all pairs."""
    shape = Shape(batch=1, queries=context, keys=context, n_head=heads, n_kv_head=heads,
                  d_key=d_head)  # fmt: skip
    return float(shape.flops)


@check("backward")
def backward(one: Claim) -> Checked:
    """Training over forward."""
    found = flops(named(one.given["model"]), 1, 2048)
    return judge(one, {"ratio": float(found.train) / float(found.forward)})


@check("flops-per-token")
def flops_per_token(one: Claim) -> Checked:
    """Factors of L D² a token: forward and training at a context of 1, and of L D S scores."""
    layers, width, context = 32, 4096, 4096
    square = layers * width**2
    forward, train = (_per_token(layers, width, 1, train=t) / square for t in (False, True))
    scores = _per_token(layers, width, context, train=True) - _per_token(
        layers, width, 1, train=True
    )
    numbers = {
        "forward": forward, "train": train,
        "scores": scores / (layers * width * (context - 1)),
    }  # fmt: skip
    return judge(one, numbers)


@check("doubled-width-flops")
def doubled_width_flops(one: Claim) -> Checked:
    """Training at twice the width: with the same tokens, and with tokens as parameters."""
    ratio = _per_token(32, 8192, 1, train=True) / _per_token(32, 4096, 1, train=True)
    return by_convention(one, {"ratio": ratio}, {"ratio": ratio**2})


@check("equal-exponents")
def equal_exponents(one: Claim) -> Checked:
    """Exponents of compute of the size and the tokens of least loss."""
    ends = (1e20, 1e22)
    found = [compute_optimal(one.given["law"], c) for c in ends]
    size = math.log(found[1].size / found[0].size) / math.log(ends[1] / ends[0])
    tokens = math.log(found[1].tokens / found[0].tokens) / math.log(ends[1] / ends[0])
    near = abs(size - 0.5) < 0.05 and abs(tokens - 0.5) < 0.05
    return decide("correct", {"size": size, "tokens": tokens}, holds=near)


@check("attention-growth")
def attention_growth(_: Claim) -> Checked:
    """What doubling the context multiplies the scores' FLOPs by, twice: 4 is a square."""
    numbers = {
        f"at_{s // 1024}k": _scores(32, 128, 2 * s) / _scores(32, 128, s) for s in (4096, 65_536)
    }
    return decide("wrong", numbers, holds=len(set(numbers.values())) == 1)


@check("attention-head-width")
def attention_head_width(one: Claim) -> Checked:
    """FLOPs of scores at one H h, over head widths: the same."""
    s = 4096
    found = {h: _scores(4096 // h, h, s) for h in (64, 128, 256)}
    return judge(one, {"ratio": max(found.values()) / min(found.values())})


@check("attention-flops-said")
def attention_flops_said(one: Claim) -> Checked:
    """2 S² D h, as said, against the FLOPs of scores and values, at S = D = 4096 and h = 128."""
    s, d, h = 4096, 4096, 128
    right = _scores(d // h, h, s)
    return judge(one, {"flops": right, "over": 2 * s * s * d * h / right})


@check("bubble")
def bubble(_: Claim) -> Checked:
    """The share of a step that a pipeline waits, at two depths and two splits into chunks.

    Approximate if the formula holds and depth is not in it, though it is said to be.
    """
    stages, batches = 4, 16

    def share(layers: int, chunks: int) -> float:
        busy, idle = schedule(layers, 1.0, 0.0, 0.0, stages, chunks, batches)
        return float(idle) / float(busy + idle)

    numbers = {
        "share": share(32, 1), "deeper": share(64, 1), "interleaved": share(32, 2),
        "formula": (stages - 1) / (batches + stages - 1),
    }  # fmt: skip
    right = math.isclose(numbers["share"], numbers["formula"])
    return decide(
        "approximate", numbers, holds=right and math.isclose(numbers["share"], numbers["deeper"])
    )
