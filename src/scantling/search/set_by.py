"""What set each field of a shape: a rule, a bound, or the weighing of the objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scantling.costs.alignment import power_of_two
from scantling.laws import bounds, head_width_excess, law
from scantling.search.axes import DEEP_ENCODER, OWN_HEAD, STATES
from scantling.search.candidate import Candidate, ffn_widths
from scantling.search.forms import width_multiple
from scantling.search.shape_findings import axis_value, binding
from scantling.search.space import TIE_ABOVE, limit, limits, split, unpriced
from scantling.spec import divisors
from scantling.units import bytes_text, count_text


def _depth(c: Candidate, value: int) -> tuple[str, str]:
    one = law(c.budget.law)
    if not c.priced:
        return (
            f"of the decoder, which alone is run for every new token; {DEEP_ENCODER}",
            "kasai2020",
        )
    text = f"depth against width: D/L {c.features.aspect:.0f}"
    best = one.facts.constants.get("r0")
    if best:
        text += f", where the loss alone would take {best:.0f} and time alone a wider shape"
    stages = ", ".join(map(str, divisors(value)))
    return f"{text}; pipeline stages that divide it: {stages}", one.source


def _encoder_depth(c: Candidate, value: int) -> tuple[str, str]:
    ratio = value / c.dims()["n_layer"]
    return f"{ratio:g} to one of the decoder, run once a text, and loss is not priced", "kasai2020"


def _width(c: Candidate, value: int) -> tuple[str, str]:
    step = power_of_two(value)
    tiles = "GEMM tiles of 128 are full" if step >= 128 else "GEMM tiles of 128 are cut"
    text = f"the width that leaves D/L {c.shape()['D/L']:.0f}; a multiple of {step}, so {tiles}"
    return text, "nvidia-matmul-guide"


def _heads(c: Candidate, value: int) -> tuple[str, str]:
    ratio = axis_value(c.dims(), c.features, "attention_width_ratio")
    text = "attention width" if ratio is None else f"attention width H h/D {ratio:.2f}"
    over = split(c.budget)
    if over > 1 and value % over == 0:
        text += f"; a multiple of {over}, so heads split over a node"
    return text + _on_axis(c, "attention_width_ratio"), "bian2025"


def _kv_heads(c: Candidate, value: int) -> tuple[str, str]:
    group = c.features.kv_group
    text = f"KV cache {bytes_text(c.kv_bytes_per_token)} a token"
    if c.kv_growth != c.kv_bytes_per_token:
        windows = c.kv_growth > c.kv_bytes_per_token
        rest = "states" if c.spec.encoder is None else "of the encoder's output"
        more = "until windows are full" if windows else f"a new token, the rest {rest}"
        text += f" at {c.budget.serve_context:,} ({bytes_text(c.kv_growth)} {more})"
    if group is not None:
        text += f", group {group:g}{_at_bound('kv_group', group)}"
    return text + _at_bound("n_kv_head", value), "ainslie2023"


def _head_width(_: Candidate, value: int) -> tuple[str, str]:
    excess = float(head_width_excess(value))
    return (
        f"head-width excess {excess:.3f} nats at {value}{_at_bound('d_head', value)}",
        "gadre2024",
    )


def _ffn_width(c: Candidate, _: int) -> tuple[str, str]:
    b, ratio = c.budget, c.features.mlp_attention_ratio
    if "n_expert" in c.dims():
        why = "of the first layers, which have no experts: as wide as the experts a token passes"
        return why, "deepseekv2"
    if b.schedule is not None:
        widths = ", ".join(f"{n:,}" for n in ffn_widths(c.spec))
        size = f"solved so that the total is {count_text(_total(c))}"
        return f"the mean of {widths}, by --schedule; {size}", "you"
    step = width_multiple(b, "d_ff")
    text = f"solved so that the total is {count_text(_total(c))}, in steps of {step}"
    if ratio is not None:
        text += f"; MLP/attention {float(ratio):.2f}{_at_bound('mlp_attention_ratio', ratio)}"
    return text, "bian2025"


def _vocabulary(c: Candidate, value: int) -> tuple[str, str]:
    share = value * c.dims()["d_model"] / _total(c)
    how = "one of those listed" if "vocab_size" in c.budget.listed else "given"
    return f"{how}; the table is {share:.1%} of the parameters", "you"


def _tied(c: Candidate, _: bool) -> tuple[str, str]:
    if c.budget.tied is not None:
        return "asked for", "you"
    if not c.priced:
        return OWN_HEAD, "t5-configs"
    share = c.dims()["vocab_size"] * c.dims()["d_model"] / _total(c)
    return f"table {share:.1%} of the parameters; rule: tie above {TIE_ABOVE:.0%}", "press2017"


def _experts(c: Candidate, value: int) -> tuple[str, str]:
    share = c.dims()["top_k"] / value
    text = (
        f"a token passes {share:.1%} of the experts, {count_text(float(c.counted.active))} in all"
    )
    return text + _on_axis(c, "active_share"), "abnar2025"


def _top_k(c: Candidate, value: int) -> tuple[str, str]:
    return f"{value} of {c.dims()['n_expert']} experts a token; one or two are of coarse experts", \
        "krajewski2024"  # fmt: skip


def _expert_width(c: Candidate, value: int) -> tuple[str, str]:
    b, d = c.budget, c.dims()
    size = f"the total is {count_text(_total(c))}"
    step = width_multiple(b, "d_expert")
    text = f"solved so that {size}, in steps of {step}; {value / d['d_model']:.3g} of D"
    return text + _on_axis(c, "expert_width_ratio"), "krajewski2024"


def _shared(c: Candidate, value: int) -> tuple[str, str]:
    return f"experts every token passes, {value / c.dims()['d_expert']:g} of an expert's width", \
        "marin-experiments"  # fmt: skip


def _by_rule(name: str, of: str) -> Callable[[Candidate, int], tuple[str, str]]:
    """A dimension of latent attention that is set by rule, and its ratio to another."""

    def told(c: Candidate, value: int) -> tuple[str, str]:
        rules = [a.why for a in unpriced(c.budget) if a.name == name]
        text = f"{value / c.dims()[of]:.3g} of {'D' if of == 'd_model' else of}"
        return "; by rule: ".join([text, *rules]), "deepseekv2"

    return told


def _window(c: Candidate, value: int) -> tuple[str, str]:
    text = f"{value / c.budget.train_context:.3g} of a training sequence, in {c.budget.layout}"
    return f"{text} local to global layers", "gemma3"


def _state(name: str) -> Callable[[Candidate, int], tuple[str, str]]:
    """A dimension of a mixer with a state, which the width decides by rule."""

    def told(c: Candidate, value: int) -> tuple[str, str]:
        return f"{value / c.dims()['d_model']:.3g} of D; by rule: {STATES[name]}", STATE_OF[name]

    return told


STATE_OF = {"gated-delta": "qwen3-next", "mamba2": "nemotron-h"}
"""Whose rule it is."""


def _on_axis(c: Candidate, axis: str) -> str:
    """What to add where a shape lies on the bound of an axis that known models set."""
    value, one = axis_value(c.dims(), c.features, axis), limit(c.budget, axis)
    if value is None or one.opened or not binding(axis, value, one.low, one.high):
        return ""
    return f"; on the bound of {axis} ({limits(one.low, one.high)}): {one.why}"


SET_BY: dict[str, Callable[[Candidate, Any], tuple[str, str]]] = {
    "n_layer": _depth, "n_encoder_layer": _encoder_depth, "d_model": _width, "n_head": _heads,
    "n_kv_head": _kv_heads,
    "d_head": _head_width, "d_ff": _ffn_width, "vocab_size": _vocabulary, "tied": _tied,
    "n_expert": _experts, "top_k": _top_k, "d_expert": _expert_width, "d_shared": _shared,
    "kv_rank": _by_rule("kv_rank", "d_model"), "q_rank": _by_rule("q_rank", "d_model"),
    "d_nope": _by_rule("d_nope", "d_model"), "d_rope": _by_rule("d_rope", "d_nope"),
    "d_value": _by_rule("d_value", "d_nope"), "window": _window,
    **dict.fromkeys(("n_key_head", "n_value_head"), _state("gated-delta")),
    **dict.fromkeys(("d_inner", "n_ssm_head", "d_state"), _state("mamba2")),
}  # fmt: skip


def _total(c: Candidate) -> int:
    return int(c.counted.total)


def _at_bound(axis: str, value: Any) -> str:
    """What to add where a value lies on the bound of its axis."""
    one = bounds()[axis]
    if value is None or not binding(axis, float(value), one.low, one.high):
        return ""
    return f"; on the bound of {axis} ({limits(one.low, one.high)}): {one.reason}"
