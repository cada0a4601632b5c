"""Heads: what must divide what, and what turns in pairs (SC101 to SC104)."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.costs.parallel import near_kv
from scantling.errors import FieldError
from scantling.formats.hf.partial import Partial
from scantling.rules.registry import Fix, Found, rule
from scantling.rules.subject import Subject
from scantling.spec.relations import divisors, head_fit, near_divisors, swapped


@rule("SC101", "kv-heads-divide", "ainslie2023", "pytorch-sdpa", "flash-attention-2026",
      reads="config")  # fmt: skip
def kv_heads_divide(s: Subject) -> Iterator[Found]:
    """Query heads come in equal groups, one a KV head: H mod K = 0.

    H query heads share K KV heads, so each KV head serves g = H/K of them, a whole number: kernels
    take the KV head of query head i as i // g, and PyTorch's SDPA and every FlashAttention refuse
    anything else. K = H is multi-head, K = 1 multi-query attention; K > H is never possible.

    Exceptions: none. Latent attention (MLA) has no KV heads, and is not asked.
    """
    heads, kv = s.raw.whole("n_head"), s.raw.whole("n_kv_head")
    if heads is None or kv is None or s.raw.field("kv_rank") is not None or heads % kv == 0:
        return
    key = s.raw.key("n_kv_head")
    near = near_kv(kv, heads, s.setting.tp)
    left = f"{heads % kv} heads would have none" if kv < heads else "there are more than queries"
    text = near_divisors(heads, kv)
    fix = Fix(text=f"{key} {near} ({text})" if text else f"{key} {near}", config={key: near},
              keeps=("n_head", "d_model", "n_layer"))  # fmt: skip
    yield Found("error", key, f"{kv} KV heads do not divide {heads} query heads: {left}", fix)


@rule("SC102", "heads-divide-width", "transformers", reads="config")
def heads_divide_width(s: Subject) -> Iterator[Found]:
    """Without a head width of its own a model has h = D/H, a whole number.

    Software that floors it loses dimensions: 1024 over 12 heads is 85 each, and 12 × 85 = 1020.
    With ``head_dim`` there is no relation: D, H and h are three numbers, W_o is (H h) × D, and
    H h runs from 0.75 to 3 times D in released models. Some classes insist on the relation all the
    same: that is SC002.

    The fix is the nearest number of heads that divides the width, heads a multiple of 8 wide, or,
    where heads and layers fit only when exchanged, the exchange.

    Exceptions: none.
    """
    width, heads = s.raw.whole("d_model"), s.raw.whole("n_head")
    if width is None or heads is None or width % heads == 0 or not _derived(s.raw):
        return
    key = s.raw.key("n_head")
    fit = head_fit(width, heads)
    message = (
        f"{heads} heads do not divide the width {width}: heads of {fit.floor} would leave "
        f"{fit.lost} dimensions out"
    )
    layers = s.raw.whole("n_layer") or 1
    slip = swapped(width, heads, layers)
    sizes_given = all(s.raw.given.get(k, "") not in {"", *s.raw.refused}
                      for k in ("num_attention_heads", "num_hidden_layers"))  # fmt: skip
    if slip and sizes_given:
        depth = s.raw.key("n_layer")
        text = (f"heads and layers look swapped: {key} {slip['n_head']} of {slip['d_head']} and "
                f"{depth} {slip['n_layer']}")  # fmt: skip
        fix = Fix(text=text, config={key: slip["n_head"], depth: slip["n_layer"]})
    else:
        near = _near_heads(width, heads, 8) or _near_heads(width, heads, 2) or heads
        own = " or state head_dim" if "head_dim" in s.raw.kind.keys else ""
        hint = fit.hint(s.raw.key("d_model"))
        fix = Fix(text=f"{key} {near} ({hint}){own}", config=_with_kv(s.raw, near),
                  keeps=("d_model", "n_layer"))  # fmt: skip
    yield Found("error", key, message, fix)


def _derived(part: Partial) -> bool:
    """Whether the head width is D/H: no field says it, and the quotient is refused."""
    return part.field("d_head") is None and part.field("kv_rank") is None


def _near_heads(width: int, heads: int, step: int) -> int | None:
    """The number of heads nearest to one that gives heads of a multiple of ``step``."""
    fits = [n for n in divisors(width) if (width // n) % step == 0 and 16 <= width // n <= 256]
    return min(fits, key=lambda n: (abs(n - heads), n), default=None)


def _with_kv(part: Partial, heads: int) -> dict[str, int]:
    """A number of heads, with KV heads that divide it where they are given."""
    changes = {part.key("n_head"): heads}
    kv = part.whole("n_kv_head")
    if part.says("num_key_value_heads") and kv is not None and heads % kv:
        changes[part.key("n_kv_head")] = near_kv(kv, heads, 1)
    return changes


@rule("SC103", "rotary-even", "transformers", reads="config")
def rotary_even(s: Subject) -> Iterator[Found]:
    """Rotary positions turn pairs: the part of a head that turns is even, and no more than all.

    r = h × share (or the rotary width of latent attention) splits into r/2 planes, each turned by
    its own angle; an odd one is left over, and the halves that are exchanged do not match.

    Exceptions: none; heads that do not turn (ALiBi, learned, no positions) may be odd.
    """
    part = s.raw
    rope = part.whole("d_rope")
    if rope is not None and part.field("kv_rank") is not None:
        if rope % 2:
            key = part.key("d_rope")
            yield Found("error", key, f"{rope} rotary dimensions of a head are odd: they turn in "
                        "pairs", Fix(text=f"{key} {rope + 1}", config={key: rope + 1}))  # fmt: skip
        return
    refused = share_above_one(part)
    if refused is not None:
        yield Found("error", refused.path, f"{refused.value} of a head would turn: more than there "
                    "is", Fix(text=f"{refused.path} that is at most all of a head"))  # fmt: skip
        return
    head, share = part.whole("d_head"), part.field("rope_fraction")
    turns = "rope" in str(part.field("position")) and bool(part.field("roped"))
    if head is None or not turns or not isinstance(share, int | float):
        return
    width = int(head * share)
    if share > 1:
        key = _share_key(part)
        yield Found("error", key, f"{width} of {head} dimensions of a head would turn: more than "
                    "there are", Fix(text=f"{key} that is at most all of a head"))  # fmt: skip
    elif width % 2 or width < 2:
        yield _odd(part, head, width, float(share))


def share_above_one(part: Partial) -> FieldError | None:
    """What the reader says of a share of the head that is more than the head."""
    found = part.refused.get(part.given.get("partial_rotary_factor", ""))
    value = None if found is None else found.value
    return found if isinstance(value, int | float) and value > 1 else None


def _share_key(part: Partial) -> str:
    keys = ("partial_rotary_factor", "rotary_dim")
    return next((part.given[k] for k in keys if k in part.given), part.key("rope_fraction"))


def _odd(part: Partial, head: int, width: int, share: float) -> Found:
    said = part.values.get("head_dim") is not None and "head_dim" in part.given
    message = f"{width} of {head} dimensions of a head turn: they turn in pairs, and this is odd"
    if share < 1:
        key = _share_key(part)
        even = max(2, width + width % 2)
        value: int | float = even if key == "rotary_dim" else even / head
        return Found("error", key, message, Fix(text=f"{key} {value:g} turns {even}",
                                                config={key: value}))  # fmt: skip
    if said:
        key = part.given["head_dim"]
        near = round(head / 8) * 8 or 8
        return Found("error", key, message, Fix(text=f"{key} {near}", config={key: near}))
    key, model, heads = part.key("n_head"), part.whole("d_model"), part.whole("n_head")
    near_heads = None if model is None or heads is None else (
        _near_heads(model, heads, 8) or _near_heads(model, heads, 2))  # fmt: skip
    if near_heads is None or model is None:
        return Found("error", key, message)
    fix = Fix(text=f"{key} {near_heads}, heads of {model // near_heads}",
              config=_with_kv(part, near_heads), keeps=("d_model", "n_layer"))  # fmt: skip
    return Found("error", key, message, fix)
