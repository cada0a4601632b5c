"""Depth, width and feed-forward: priors with their spread, never errors (SC601 to SC609)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from scantling.costs.depth import published_depths, width_law
from scantling.laws import bounds
from scantling.quantity import Quantity
from scantling.rules.price import loss_at_aspect, prior_loss
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.setting import facts
from scantling.rules.subject import Subject
from scantling.sources import read_data
from scantling.spec import Dense


def _dense_ratios(s: Subject) -> list[tuple[str, int, bool]]:
    """Path, width and gating of the distinct dense feed-forwards."""
    return list({(int(n.d_ff), n.gated): (path, int(n.d_ff), n.gated)
                 for path, n in s.each(Dense) if not n.shared}.values())  # fmt: skip


@rule("SC601", "ffn-ratio", "shazeer2020", "bian2025")
def ffn_ratio(s: Subject) -> Iterator[Found]:
    """F/D lies between 2.5 and 6; with experts what a token passes does.

    Plain feed-forwards are 4 D; gated ones have three matrices and 8 D/3 of width at the same size,
    and span 2.57 to 6.0 in 26 recent models. With experts the sum k F_e + shared is compared. The
    valley is flat (SC602 prices it), so outside it is a warning only far away.

    Exceptions: Gemma 7B (8.0), Gemma 3 1B (6.0), Nemotron-H (plain, 5.25), MobileBERT (1.0).
    """
    width = int(s.legal.d_model)
    found: list[tuple[str, str, float, bool]] = []
    mixed = {p.rpartition(".")[0] for p, _ in s.experts}
    for path, d_ff, gated in _dense_ratios(s):
        if path.rpartition(".")[0] not in mixed and not s.experts:
            found.append((path, "d_ff", d_ff / width, gated))
    for path, e in s.experts:
        shared = 0 if e.shared is None else int(e.shared.d_shared)
        passed = int(e.top_k) * int(e.d_expert) + shared
        beside = [
            d for p, d, _ in _dense_ratios(s) if p.rpartition(".")[0] == path.rpartition(".")[0]
        ]
        found.append((path, "d_expert", (passed + sum(beside)) / width, e.gated))
    for path, field, ratio, gated in found:
        prior = facts()["prior"]["ffn_gated" if gated else "ffn_plain"]
        (low, high), (least, most) = prior["inner"], prior["outer"]
        if low <= ratio <= high:
            continue
        level: Level = "info" if least <= ratio <= most else "warning"
        kind = "gated" if gated else "plain"
        near = round((8 / 3 if gated else 4) * width / 128) * 128 or 128
        fix = Fix(text=f"{s.key(field)} {near} is the usual one") if field == "d_ff" else None
        yield Found(level, s.key(field), f"{path}: the {kind} feed-forward of a token is "
                    f"{ratio:.2f}"
                    f" times the width; released models have {low:g} to {high:g}", fix,
                    _ratio_price(s))  # fmt: skip
        return


def _ratio_price(s: Subject) -> Quantity | None:
    return prior_loss(s.features) if s.features.mlp_attention_ratio is not None else None


@rule("SC602", "ffn-attention-ratio", "bian2025", "mlra2026")
def ffn_attention_ratio(s: Subject) -> Iterator[Found]:
    """Parameters of the feed-forward are 1 to 5 times those of attention.

    The loss of Bian et al. (2025) has its minimum at 1.2 and grows by b (ln x + 1/x − 1) of itself,
    x = r/1.22: 0.008 nats at 3, 0.017 at 4.8, 0.028 at 8 (1B). The fit breaks outside 0.5 to 5.
    Half of the term is taken, since three tables disagree.

    Exceptions: models with few heads for speed (Gemma 3 1B), MQA.
    """
    ratio, limit = s.features.mlp_attention_ratio, bounds()["mlp_attention_ratio"]
    if ratio is None or limit.holds(ratio):
        return
    yield Found("info", s.key("d_ff"), f"feed-forward over attention parameters is "
                f"{float(ratio):.2f}; losses were fitted from 1 to 5", None, prior_loss(s.features)
    )  # fmt: skip


@rule("SC603", "aspect-ratio", "gemstones2025", "kaplan2020")
def aspect_ratio(s: Subject) -> Iterator[Found]:
    """Width over depth lies between 30 and 150; far outside it loses loss or time.

    Kaplan et al. saw a few percent over a 40-fold range; the Gemstones have their least loss at 30
    to 50 and lose 0.005 to 0.015 nats at 100. Wider is faster, deeper is better at equal size. 26
    recent models: median 80, 37 to 128. A prior with its spread, never an error. The gain is the
    loss against the same body at D/L = 64, from the default law, with its interval.

    Exceptions: GPT-3's 128, BERT and small encoders; recurrent stacks that count blocks as layers.
    """
    width, layers = int(s.legal.d_model), int(s.legal.n_layer)
    aspect = width / layers
    prior = facts()["prior"]["aspect"]
    (low, high), (least, most) = prior["inner"], prior["outer"]
    if low <= aspect <= high or s.legal.encoder is not None:
        return
    level: Level = "info" if least <= aspect <= most else "warning"
    yield Found(level, s.key("n_layer"), f"width over depth is {aspect:.1f} ({width} / {layers}); "
                f"released models have {low:g} to {high:g}",
                Fix(text=f"about {max(1, round(width / 64))} layers at this width"),
                loss_at_aspect(s, 64.0))  # fmt: skip


@rule("SC604", "depth-limits", "depth-delusion", "gemstones2025")
def depth_limits(s: Subject) -> Iterator[Found]:
    """Two published depth limits, both shown: 16 (D/512)^0.44 and 5 log2 D.

    A single preprint of 30 runs (2601.20994) says that loss rises beyond a depth that grows with
    width; read as ln it is another number, and its own figure recovers. The Gemstones contradict
    it: at fixed width loss falls past both. Told when both are exceeded by 1.3.

    Exceptions: Qwen3-235B (1.57 times), GLM-4.5 (1.49), on purpose.
    """
    width, layers = int(s.legal.d_model), int(s.legal.n_layer)
    power, logarithm, _ = published_depths(width)
    if layers > facts()["depth"]["beyond"] * max(power, logarithm):
        yield Found("info", s.key("n_layer"), f"{layers} layers exceed both published depth limits "
                    f"for width {width}: {power:.0f} and {logarithm:.0f}; runs at fixed width "
                    "contradict them")  # fmt: skip


@rule("SC605", "depth-guide", "levine2020")
def depth_guide(s: Subject) -> Iterator[Found]:
    """Levine et al.: depth beyond (ln D − 5.039)/0.0555 is better spent on width.

    ln W = a + b L with a = 5.039 ± 0.030 and b = 0.0555 ± 0.0013: decoders of up to 600 M and 6 to
    48 layers. The range follows from the errors; depths beyond 48 are extrapolated.

    Exceptions: deep and thin models on purpose (MobileLLM, SmolLM).
    """
    f = width_law()
    width, layers = int(s.legal.d_model), int(s.legal.n_layer)
    guide = (math.log(width) - f["a"]) / f["b"]
    high = (math.log(width) - f["a"] + f["a_error"]) / (f["b"] - f["b_error"])
    if layers > 1.5 * max(high, f["shallowest"]) and s.legal.encoder is None:
        beyond = ", extrapolated" if guide > f["deepest"] else ""
        yield Found("info", s.key("n_layer"), f"{layers} layers at width {width}: the depth "
                    "guide of "
                    f"Levine et al. says {max(guide, 0):.0f} (to "
                                f"{max(high, 0):.0f}){beyond}")  # fmt: skip


@rule("SC606", "few-layers", "kaplan2020")
def few_layers(s: Subject) -> Iterator[Found]:
    """A model has at least two layers, and six once it is large.

    Of Kaplan et al.'s shapes only those of fewer than two layers left the trend; one layer cannot
    compose what another finds (no induction heads).

    Exceptions: toys and drafters for speculative decoding.
    """
    layers, size = int(s.legal.n_layer), float(s.counted.total)
    if layers < 2 or (layers < 6 and size > 1e9):
        yield Found("warning" if layers < 2 else "info", s.key("n_layer"),
                    f"{layers} layer{'s' if layers > 1 else ''} for {size / 1e6:,.0f} M "
                    "parameters: layers are what composes",
                    Fix(text="two or more" if layers < 2 else "more"),
        )  # fmt: skip


@rule("SC607", "gated-width", "shazeer2020", "megatron-2026")
def gated_width(s: Subject) -> Iterator[Found]:
    """A gated feed-forward of 4 D has half as many parameters again as a plain one of 4 D.

    Three matrices of D × F against two: 8 D/3 keeps the count (Shazeer 2020); Megatron's default
    rounds it down to 64. Told where F is exactly 4 D and gated, in a model that calls itself by the
    plain count.

    Exceptions: Gemma 3 (4.0, gated) and Mistral-like 3.5, on purpose.
    """
    width = int(s.legal.d_model)
    for path, d_ff, gated in _dense_ratios(s):
        if gated and d_ff == 4 * width and not s.experts:
            near = round(8 * width / 3 / 128) * 128
            yield Found("info", s.key("d_ff"), f"{path}: gated and 4 times the width: 1.5 times "
                        "the "
                        "parameters of a plain one", Fix(text=f"{s.key('d_ff')} {near} keeps the "
                        "count of a plain feed-forward"))  # fmt: skip
            return


@rule("SC608", "ffn-narrower-than-model", "bian2025")
def ffn_narrow(s: Subject) -> Iterator[Found]:
    """A feed-forward is wider than the model it serves.

    F < D is a bottleneck: the block cannot keep the stream's rank. Low-rank feed-forwards save
    parameters only where r < D F/(D + F).

    Exceptions: MobileBERT, whose stacks of four are 512 at 128 inside.
    """
    width = int(s.legal.d_model)
    for path, n in s.each(Dense):
        if int(n.d_ff) < width and not s.experts and not n.shared:
            yield Found("warning", s.key("d_ff"), f"{path}: a feed-forward of {int(n.d_ff)} is "
                        f"narrower than the model ({width})", Fix(text=f"{s.key('d_ff')} "
                        f"{round(8 * width / 3 / 128) * 128 or 128}"))  # fmt: skip
            return


@rule("SC609", "size-seed", "founding-documents", "gemstones2025")
def size_seed(s: Subject) -> Iterator[Found]:
    """Depth lies within a factor of two of 22.4 P^0.2, P the parameters of the body in billions.

    A seed for a search, no law: with D = 1929 P^0.4 it makes 12 L D² the size, since
    12 · 22.4 · 1929² = 1.0e9 and P^0.2 · (P^0.4)² = P. With 0.7 and 0.9, as printed, it is no size
    (claim A130). The exponents come without a fit; those fitted to the Gemstones, 0.15 to
    0.31 of compute, lie around them. Read of dense decoders of 0.1 B to 1 T.

    Exceptions: deep and thin models on purpose (MobileLLM); experts and recurrent layers, whose
    size is not 12 L D².
    """
    f, seed = s.features, _seed()
    body, layers = float(f.body), int(s.legal.n_layer)
    low, high = seed["body"]
    if s.experts or s.legal.encoder is not None or not s.attentions or not low <= body <= high:
        return
    depth = seed["constants"]["a"] * (body / 1e9) ** seed["constants"]["b"]
    if not depth / 2 <= layers <= 2 * depth:
        yield Found("info", s.key("n_layer"), f"{layers} layers for a body of {body / 1e9:.3g} B: "
                    f"the power law seeds a search at {depth:.0f} ({depth / 2:.0f} to "
                    f"{2 * depth:.0f})",
                    Fix(text=f"{s.key('n_layer')} about {depth:.0f}"))  # fmt: skip


@functools.cache
def _seed() -> dict[str, Any]:
    found: dict[str, Any] = read_data("shape_priors.toml")["depth-power"]
    return found
