"""Rotary positions: scalings that are illegal, do nothing, contradict themselves (SC701 on)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scantling.costs.rope import smallest_base
from scantling.errors import ScantlingError, nearest
from scantling.formats.hf.partial import Partial
from scantling.formats.hf.types import model_types
from scantling.formats.scaling import WIDTH, Verdict, judge, scaling_kinds
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject
from scantling.spec import Chunk, Full, GroupedAttention, LearnedPosition, Rope, Window

FIELD = "rope_scaling"


def _settings(part: Partial) -> dict[str, Any]:
    found = part.config.get(FIELD)
    return found if isinstance(found, dict) else {}


def _plain_head(part: Partial) -> int | None:
    """The head width of types that have one for each kind of layer: as said, else D/H."""
    said, width, heads = (part.values.get(k) for k in
                          ("head_dim", "hidden_size", "num_attention_heads"))  # fmt: skip
    if isinstance(said, int):
        return said
    whole = isinstance(width, int) and isinstance(heads, int) and heads > 0
    return int(width) // int(heads) if whole else None  # type: ignore[arg-type]


def _name(s: Subject) -> str:
    """The key that holds the scaling, as this config spells it."""
    outer = s.config or {}
    inner = outer.get("text_config")
    places = (outer, inner) if isinstance(inner, dict) else (outer,)
    nested = any("rope_parameters" in p and FIELD not in p for p in places)
    return "rope_parameters" if nested else FIELD


def _by_layer(s: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that stand by kind of layer, but for those that are read as the model's."""
    outer = s.config or {}
    inner = outer.get("text_config")
    nested = (inner if isinstance(inner, dict) else outer).get("rope_parameters")
    for name, one in nested.items() if isinstance(nested, dict) else ():
        if isinstance(one, dict) and name != "full_attention" and one.get("rope_type") not in {
            None, "default", "mrope", "proportional", "longrope"
        }:  # fmt: skip
            yield name, one


def _kind(settings: dict[str, Any]) -> str:
    kind = settings.get("rope_type", settings.get("type", "default"))
    return {"su": "longrope", "mrope": "default"}.get(str(kind), str(kind))


def _limit(part: Partial) -> int | None:
    return part.whole("max_context")


def _given_limit(part: Partial) -> int | None:
    """The length in the config itself; a class default is no word of its author."""
    return _limit(part) if part.says("max_position_embeddings") else None


def _original(part: Partial) -> int | None:
    found = _settings(part).get("original_max_position_embeddings",
                                part.config.get("original_max_position_embeddings"))  # fmt: skip
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return int(found)


def _factor(part: Partial) -> float | None:
    found = _settings(part).get("factor")
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def _head(part: Partial) -> tuple[int, float] | None:
    """Numbers of a head that may turn, and the share that does."""
    if part.field("kv_rank") is not None:
        rope = part.whole("d_rope")
        return None if rope is None else (rope, 1.0)
    head, share = part.whole("d_head") or _plain_head(part), part.field("rope_fraction")
    share = 1.0 if "rope_fraction" not in part.kind.expressions else share
    if head is None or not isinstance(share, int | float) or not 0 < share <= 1:
        return None
    return head, float(share)


def _turns(part: Partial) -> bool:
    """Whether positions turn; a type that does not say how has rotary ones if it has the key."""
    if "position" not in part.kind.expressions:
        return FIELD in part.kind.keys
    return "rope" in str(part.field("position"))


def _judged(part: Partial) -> Verdict | None:
    """What ``formats.scaling`` says of the scaling as written."""
    settings, head = _settings(part), _head(part)
    if not settings or not _turns(part):
        return None
    if any(isinstance(v, dict) for v in settings.values()):
        return None  # by kind of layer: each is told apart by the reader
    width, share = (WIDTH, 1.0) if head is None else head
    return _judge(settings, _limit(part), width, share)


def _judge(
    settings: dict[str, Any], limit: int | None, width: int = WIDTH, share: float = 1.0
) -> Verdict:
    try:
        return judge(settings, limit, head=width, fraction=share)
    except ScantlingError as error:
        problem = str(error)
    except (ArithmeticError, ValueError, TypeError) as error:
        problem = f"its numbers give no frequencies: {error}"
    return Verdict(valid=False, min_transformers="", problems=(problem,))


@rule("SC701", "rope-scaling-legal", "transformers", "yarn2023", reads="config")
def rope_scaling_legal(s: Subject) -> Iterator[Found]:
    """A rotary scaling is of a known kind, has what its kind needs, and numbers above zero.

    linear and dynamic need a factor; yarn a factor and the original length; llama3 two frequency
    factors beside; longrope two tables. Classes raise, or fall back to no scaling in silence.

    Exceptions: kinds of classes that come with their checkpoint; settings that are no scaling at
    all (``rope_type: gptj`` names how pairs are laid out, ``mrope`` sections of several axes);
    tables of settings by kind of layer are each told under their own name.
    """
    part = s.raw
    for name, own_settings in _by_layer(s):
        for problem in _judge(own_settings, _limit(part)).problems:
            yield Found("error", f"rope_parameters.{name}", f"{name}: {problem}")
    settings = _settings(part)
    kind = _kind(settings)
    if kind not in scaling_kinds() and kind in {"gptj", "neox", "interleaved"}:
        return
    found = _judged(part)
    if found is None or kind == "longrope":
        return  # tables of LongRoPE are SC705
    own = part.kind.remote or part.config.get("model_type") not in model_types()
    level: Level = "warning" if own and not nearest(kind, scaling_kinds()) else "error"
    for problem in found.problems:
        yield Found(level, _name(s), problem, _legal_fix(part, kind, problem))


def _legal_fix(part: Partial, kind: str, problem: str) -> Fix | None:
    limit, original, factor = _limit(part), _original(part), _factor(part)
    if "original_max_position_embeddings is missing" in problem and factor and limit:
        value = int(limit / factor) if limit % factor == 0 else limit
        settings = {**_settings(part), "original_max_position_embeddings": value}
        return Fix(text=f"original_max_position_embeddings {value}", config={FIELD: settings})
    if problem.startswith("factor is missing") and original and limit and limit > original:
        settings = {**_settings(part), "factor": limit / original}
        return Fix(text=f"factor {limit / original:g}", config={FIELD: settings})
    if kind not in scaling_kinds():
        return Fix(text=f"rope_type: one of {', '.join(scaling_kinds())}")
    needs = ", ".join(scaling_kinds()[kind].needs)
    return Fix(text=f"{kind} needs {needs}") if needs else None


@rule("SC702", "rope-scaling-keys", "transformers", reads="config")
def rope_scaling_keys(s: Subject) -> Iterator[Found]:
    """Every key of a scaling means something to its kind.

    ``beta_fast`` belongs to yarn, frequency factors to llama3; beside another kind they are read by
    nobody. ``type`` beside another ``rope_type`` is not read either.

    Exceptions: keys of multimodal positions (mrope_section).
    """
    found = _judged(s.raw)
    for warning in () if found is None else found.warnings:
        if "has no effect on" in warning or "is not read" in warning:
            key = warning.partition(" ")[0]
            settings = {k: v for k, v in _settings(s.raw).items() if k != key}
            yield Found("warning", _name(s), warning,
                        Fix(text=f"take {key} away", config={FIELD: settings}))  # fmt: skip


@rule("SC703", "rope-dynamic-length", "transformers", "yarn2023", reads="config")
def rope_dynamic_length(s: Subject) -> Iterator[Found]:
    """With dynamic scaling ``max_position_embeddings`` stays the trained length.

    base' = base · (factor · s/M − (factor − 1))^(d/(d − 2)) with s = max(length, M) and M the
    config's max_position_embeddings (transformers 5.24): at s = M it is the old base. A config
    that raises M to the target has told the class that nothing needs stretching, and the scaling
    never acts within the length it promises.

    Exceptions: none where the original length is written; where it is not, a length of exactly
    factor × 2048 or × 4096 is a warning.
    """
    part = s.raw
    if _kind(_settings(part)) != "dynamic":
        return
    limit, original, factor = _given_limit(part), _original(part), _factor(part)
    if limit is None or factor is None:
        return
    key = part.key("max_context")
    if original is not None and limit > original:
        yield Found("error", key, f"dynamic scaling acts beyond {limit} tokens only: raised from "
                    f"{original}, it does nothing up to there", Fix(text=f"{key} {original}",
                    config={key: original}))  # fmt: skip
    elif original is None and factor > 1 and limit in {int(factor * n) for n in (2048, 4096, 8192)}:
        yield Found("warning", key, f"dynamic scaling acts beyond {limit} tokens only; if the "
                    "model "
                    f"was trained at {limit / factor:g}, that is what must stand here",
                    Fix(text=f"{key} {limit / factor:g}"))  # fmt: skip


@rule("SC704", "rope-factor-ratio", "transformers", "yarn2023", reads="config")
def rope_factor_ratio(s: Subject) -> Iterator[Found]:
    """The factor of a scaling is the ratio of the lengths, or one of them is wrong.

    An explicit factor wins: frequencies are divided by it whatever the lengths say. 40960/32768 is
    1.25 and the factor 4: the model is stretched four times for a quarter of the use.

    Exceptions: llama3 (Llama 3.2 has 32 where the lengths say 16); a length that is still the
    original one, stretched at run time.
    """
    part = s.raw
    settings, limit, original, factor = (
        _settings(part), _given_limit(part), _original(part), _factor(part))  # fmt: skip
    kind = _kind(settings)
    if factor is None or not original or limit is None or kind not in {"yarn", "longrope"}:
        return
    ratio = limit / original
    if ratio != 1 and abs(factor / ratio - 1) > 1e-6:
        fix = Fix(text=f"factor {ratio:g}, or {part.key('max_context')} {int(original * factor)}")
        if ratio > 1:
            fix = Fix(text=fix.text, config={FIELD: {**settings, "factor": ratio}})
        yield Found("warning", _name(s), f"factor {factor:g} is used, but {limit} / {original} = "
                    f"{ratio:g}", fix)  # fmt: skip


@rule("SC705", "longrope-tables", "longrope2024", "transformers", reads="config")
def longrope_tables(s: Subject) -> Iterator[Found]:
    """LongRoPE's tables have one factor for each pair that turns: h × share / 2.

    short_factor is used up to the original length, long_factor beyond. Under partial rotary
    (Phi-4 mini: 0.75 of 128) they have 48 entries, not 64.

    Exceptions: none.
    """
    part = s.raw
    settings, head = _settings(part), _head(part)
    if _kind(settings) != "longrope" or head is None:
        return
    pairs = int(head[0] * head[1]) // 2
    for key in ("short_factor", "long_factor"):
        table = settings.get(key)
        if not isinstance(table, list):
            yield Found("error", _name(s), f"{key} is missing, which longrope needs",
                        Fix(text=f"{pairs} factors"))  # fmt: skip
        elif len(table) != pairs:
            yield Found("error", _name(s), f"{key} has {len(table)} factors for {pairs} pairs that "
                        f"turn ({head[0]} × {head[1]:g} / 2)", Fix(text=f"{pairs} "
                                    "factors"))  # fmt: skip
        elif not all(isinstance(x, int | float) and x > 0 for x in table):
            yield Found("error", _name(s), f"{key} holds factors that are not above zero")
    if _original(part) is None:
        yield Found("error", _name(s), "original_max_position_embeddings is missing: nothing says "
                    "where the long table begins", Fix(text="the trained length"))  # fmt: skip


@rule("SC706", "rope-theta-dropped", "megatron-bridge", "transformers", reads="config")
def rope_theta_dropped(s: Subject) -> Iterator[Found]:
    """A config that scales its positions says their base as well.

    Overriding ``rope_scaling`` or ``rope_parameters`` as a whole drops ``rope_theta`` from them:
    the class then takes its default (10000), whatever the model was trained with. Merge, do not
    replace.

    Exceptions: models trained at the default (Llama 2 and its YaRN stretches write it all the
    same).
    """
    part = s.raw
    settings = _settings(part)
    given = part.says("rope_theta") or "rope_theta" in settings
    if not settings or given or _kind(settings) == "default" or not _turns(part):
        return
    if part.kind.keys.get("rope_theta") is None or not s.raw.says("max_position_embeddings"):
        return
    yield Found("warning", "rope_theta", f"positions are scaled and their base is not said: the "
                f"class takes {part.kind.keys['rope_theta']:g}",
                Fix(text="rope_theta as the model was trained"))  # fmt: skip


@rule("SC707", "rope-noop", "transformers", reads="config")
def rope_noop(s: Subject) -> Iterator[Found]:
    """A scaling changes something: positions turn, its factor is not 1, the length is beyond.

    Exceptions: default; llama3's and longrope's own ways.
    """
    part = s.raw
    settings = _settings(part)
    kind, factor = _kind(settings), _factor(part)
    if kind != "default" and not _turns(part):
        yield Found("warning", _name(s), f"{kind} scales rotary positions, and this model has none",
                    Fix(text="take rope_scaling away", config={FIELD: None}))  # fmt: skip
        return
    if kind == "default" or kind not in scaling_kinds():
        return
    limit, original = _given_limit(part), _original(part)
    if factor is not None and factor == 1:
        yield Found("warning", _name(s), f"{kind} with a factor of 1 changes nothing",
                    Fix(text="take rope_scaling away", config={FIELD: None}))  # fmt: skip
    elif factor is not None and 0 < factor < 1:
        yield Found("warning", _name(s), f"{kind} with a factor of {factor:g} shortens the context",
                    Fix(text=f"factor {1 / factor:g}"))  # fmt: skip
    if limit and original and original > limit:
        yield Found("warning", _name(s), f"original_max_position_embeddings {original} lies beyond "
                    f"max_position_embeddings {limit}",
                    Fix(text="max_position_embeddings "
                                f"{int(original * (factor or 1))}"))  # fmt: skip


@rule("SC708", "llama3-frequencies", "llama3-herd", "transformers", reads="config")
def llama3_frequencies(s: Subject) -> Iterator[Found]:
    """llama3's frequency factors leave a ramp between them: high above low, length above original.

    Wavelengths beyond original/low are scaled in full, below original/high not at all, and blended
    between. With high = low the ramp is a step; with high < low some pairs are in both ranges.

    Exceptions: Llama 4 Scout (1 and 1: a step), on purpose.
    """
    part = s.raw
    settings = _settings(part)
    if _kind(settings) != "llama3":
        return
    low, high = settings.get("low_freq_factor"), settings.get("high_freq_factor")
    if isinstance(low, int | float) and isinstance(high, int | float) and high <= low:
        level: Level = "info" if high == low else "warning"
        usual = {**settings, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        yield Found(level, _name(s), f"high_freq_factor {high:g} does not exceed low_freq_factor "
                    f"{low:g}", Fix(text="low 1, high 4",
                    config={FIELD: usual})
        )  # fmt: skip
    limit, original = _given_limit(part), _original(part)
    if limit and original and limit <= original and original == limit:
        yield Found("warning", _name(s), f"llama3 scaling, and the length {limit} is still the "
                    "original", Fix(text="max_position_embeddings "
                                f"{int(original * 8)}"))  # fmt: skip


@rule("SC709", "rope-base", "men2024")
def rope_base(s: Subject) -> Iterator[Found]:
    """The base grows with the context: at least 0.0424 C^1.63 for C tokens.

    Below it tokens alike attract each other at every distance, and models retrieve poorly though
    their perplexity is good (Men et al. 2024, a fit at heads of 128). Told where layers see the
    whole context, and no scaling slows the pairs; a note unless a hundred times below.

    Exceptions: Llama 2 (10000 at 4096, three times below); windows, which see no farther.
    """
    spec = s.legal
    context = s.context
    if context is None:
        return
    for path, a in s.each(GroupedAttention):
        rope = a.position
        if not isinstance(rope, Rope) or rope.scaling or not isinstance(a.span, Full):
            continue
        least = smallest_base(context)
        theta = float(rope.theta)
        if theta * 20 < least:
            wide = theta * 100 < least and not _mixed(s)
            nice = 10 ** math.ceil(math.log10(least))
            level: Level = "warning" if wide and spec.encoder is None and a.causal else "info"
            yield Found(level, s.key("theta"), f"{path}: a base of {theta:g} at {context} tokens; "
                        f"retrieval was poor below {least:.2g}",
                        Fix(text=f"rope_theta {nice:g} in training, or a scaling"))  # fmt: skip
            return


def _mixed(s: Subject) -> bool:
    """Whether other layers see a part of the context only."""
    return any(isinstance(a.span, Window | Chunk) for _, a in s.attentions)


@rule("SC710", "context-beyond-positions", "transformers")
def context_beyond_positions(s: Subject) -> Iterator[Found]:
    """The context asked for lies within the positions the model knows.

    A table of learned positions ends: a later row does not exist, and the lookup fails. Rotary
    positions go on, at angles the model never saw: scale them (``export --context --rope``). So do
    sine waves that are added (XGLM), which nothing scales.

    Exceptions: ALiBi and no positions at all go on; recurrent layers have none.
    """
    context = s.setting.context
    limit = s.legal.max_context
    table = s.legal.embeddings.position
    if context is None or limit is None or context <= int(limit):
        return
    if isinstance(table, LearnedPosition):
        yield Found("error", s.key("max_context"), f"{context} tokens, and {int(limit)} learned "
                    "positions: the rest has no row", Fix(text="--context "
                                f"{int(limit)}"))  # fmt: skip
    elif any(isinstance(a.position, Rope) for _, a in s.attentions) or s.latents:
        yield Found("warning", s.key("max_context"), f"{context} tokens are "
                    f"{context / int(limit):.3g}"
                    f" times the {int(limit)} the model was made for",
                    Fix(text="scale the positions: export --context --rope yarn"))  # fmt: skip
    elif s.legal.embeddings.sines:
        yield Found("warning", s.key("max_context"), f"{context} tokens, and sine waves of "
                    f"{int(limit)} positions seen: the rest are computed, and new to the model",
                    Fix(text=f"--context {int(limit)}"))  # fmt: skip


@rule("SC711", "window-noop", "transformers")
def window_noop(s: Subject) -> Iterator[Found]:
    """A window is shorter than the context, or it hides nothing.

    Engines that page windowed layers differently pay for a window that never cuts.

    Exceptions: Mistral 7B v0.2 and Phi-3, which switch theirs off or on by a longer context.
    """
    context = s.context
    for path, a in s.attentions:
        if isinstance(a.span, Window) and context is not None and int(a.span.window) >= context:
            yield Found("info", s.key("window"), f"{path}: a window of {int(a.span.window)} in a "
                        f"context of {context} hides nothing")  # fmt: skip
            return


@rule("SC712", "window-flags", "transformers", reads="config")
def window_flags(s: Subject) -> Iterator[Found]:
    """A window that is switched on has a size, and some layer to work in.

    Qwen's ``use_sliding_window`` needs ``sliding_window``, and works in layers from
    ``max_window_layers`` on: as many as there are layers leaves none.

    Exceptions: none; switched off, the keys may stand as they are.
    """
    part = s.raw
    if part.config.get("use_sliding_window") is not True:
        return
    layers, first = part.whole("n_layer"), part.config.get("max_window_layers")
    if "sliding_window" in part.config and not part.config["sliding_window"]:
        yield Found("warning", "sliding_window", "use_sliding_window is on, and sliding_window has "
                    "no size", Fix(text="use_sliding_window false",
                    config={"use_sliding_window": False}))  # fmt: skip
    elif isinstance(first, int) and layers and first >= layers and "layer_types" not in part.given:
        fix = Fix(text=f"max_window_layers below {layers}")
        yield Found("warning", "max_window_layers", f"use_sliding_window is on from layer {first} "
                    f"of {layers}: no layer has it", fix)  # fmt: skip
