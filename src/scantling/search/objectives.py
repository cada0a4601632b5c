"""What a search weighs: the objectives of a shape or a column of shapes, and limits on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scantling.costs.count import Parameters
from scantling.costs.estimate import DAY_S, decode_time, training_time
from scantling.costs.features import features
from scantling.laws import Features, law, prior_terms
from scantling.search.budget import Budget
from scantling.spec import Spec


def measured(spec: Spec, b: Budget, counted: Parameters) -> Features:
    """What the laws are told of a column of shapes, or of one, under a budget."""
    return features(spec, float(b.tokens), counted, b.train_context, b.unique_tokens)


def objectives(
    spec: Spec, known: Features, loss: Any, kv_bytes_per_token: Any, b: Budget
) -> dict[str, Any]:
    """The objectives of a column, or of one shape: smaller is better.

    ``loss`` is the law's, with the upper end of the prior terms: a shape that an unpriced axis
    makes cheaper has to beat that.
    """
    chip = b.hardware
    one = law(b.law)
    loss = loss + prior_terms(known, loss, one.reference_ratio, one.form_name).upper
    train = training_time(spec, b.tokens, chip, b.n_gpu, b.train_context, b.dtype)
    decode = decode_time(spec, chip, b.serve_batch, b.serve_context, b.dtype, b.kv_dtype, b.tp)
    return {
        "loss": loss, "training_days": train.value_s / DAY_S,
        "kv_bytes_per_token": kv_bytes_per_token, "decode_s": decode.value_s,
    }  # fmt: skip


def limited(found: dict[str, Any], b: Budget) -> Iterator[tuple[str, Any, float]]:
    """The hard limits on costs: name, the values, and the most allowed."""
    hours = found["training_days"] * 24 * b.n_gpu
    for name, value, most in (
        ("training days", found["training_days"], b.days),
        ("GPU-hours", hours, b.gpu_hours),
        ("time per token", found["decode_s"], b.tpot_s),
    ):
        if most is not None:
            yield name, value, most
