"""Heads: how wide, how many, and what a choice costs in loss or cache (SC105 to SC111)."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.laws import bounds
from scantling.rules.price import changed, exact, loss_of_change, prior_loss
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject, cache_per_token
from scantling.spec import Alibi, GroupedAttention, Rope

EXTREME = 4.0
"""Attention this many times as wide or narrow as the model is in no released model."""


@rule("SC105", "head-width-multiple", "flash-attention-2026", "pytorch-sdpa")
def head_width_multiple(s: Subject) -> Iterator[Found]:
    """A head is a multiple of 8 wide: a row of it is then a multiple of 16 bytes.

    Every attention kernel loads 16 bytes at a time. FlashAttention 2 and 3 refuse other widths and
    their callers pad; the memory-efficient kernel of PyTorch refuses them in 16 bits and what is
    left is unfused: scores of every pair are written to memory.

    Exceptions: no head of 182 released models breaks it (counted in confirmed facts, section 1.1).
    """
    for path, a in s.attentions:
        head = int(a.d_head)
        if head % 8:
            near, up = round(head / 8) * 8 or 8, head + -head % 8
            share = (-head % 8) / head
            message = f"heads of {head} are no multiple of 8: kernels pad them to {up}"
            key = s.key("d_head")
            yield Found("warning", key, f"{path}: {message}", Fix(text=f"{key} {near}"),
                        exact(share, "attention work for nothing"))  # fmt: skip
            return
    for path, m in s.latents:
        for field, own in (("d_nope", int(m.d_nope) + int(m.d_rope)), ("d_value", int(m.d_value))):
            if own % 8:
                up = own + -own % 8
                fix = Fix(text=f"a width of {up}")
                yield Found("warning", s.key(field), f"{path}: heads of {own} are no multiple of "
                            f"8: kernels pad them to {up}", fix)  # fmt: skip
                return


@rule("SC106", "attention-width", "mlra2026", "su2025")
def attention_width(s: Subject) -> Iterator[Found]:
    """The heads together are 0.75 to 1.5 times as wide as the model, or nobody measured it.

    H h/D is free: W_q is D × H h and W_o is H h × D. Released models run from 0.76 (Gemma 3 27B) to
    3.0 (GLM-4.5 Air). No table of losses at equal parameters prices it alone (ablations, section
    1: attention width, grade C), so inside the range cost decides and outside it is said.

    Exceptions: Qwen3-0.6B (2.0), GLM-4.5 (2.4), MiniMax-M2 (2.0) on purpose.
    """
    ratio = s.features.attention_width_ratio
    limit = bounds()["attention_width_ratio"]
    if ratio is None or limit.holds(ratio) or limit.low is None or limit.high is None:
        return
    ratio = float(ratio)
    far = ratio > EXTREME or ratio < 1 / EXTREME
    level: Level = "warning" if far else "info"
    message = (f"heads × head width is {ratio:.2f} times the width; losses were measured from "
               f"{limit.low:g} to {limit.high:g}")  # fmt: skip
    yield Found(level, s.key("n_head"), message)


@rule("SC107", "kv-group", "ainslie2023", "brandon2024", "deepseekv2")
def kv_group(s: Subject) -> Iterator[Found]:
    """At least four KV heads, and at most eight query heads to one.

    The cache holds 2 K h numbers a layer and token, so it falls with K. At equal parameters a group
    of 4 costs nothing that can be measured, every doubling beyond about 0.004 nats (−0.003 to
    +0.007); below K = 4 benchmarks fall where loss does not (MMLU 45.2 to 37.9 at 7B for one).

    Exceptions: Gemma 3 1B (1), Qwen3-Next (2), Nemotron 3 Nano (2), Falcon 7B (1), for the cache.
    """
    f = s.features
    if f.kv_group is None or f.n_kv_head is None or f.n_head is None:
        return
    group, kv, heads = float(f.kv_group), int(f.n_kv_head), int(f.n_head)
    few = kv < 4 < heads
    if not few and group <= 8:
        return
    near = next((k for k in (4, 8, 16, 32) if heads % k == 0 and k > kv and heads / k <= 8), None)
    key, fix, gain = s.key("n_kv_head"), None, None
    new = None if near is None else changed(s.legal, n_kv_head=near)
    if new is None:
        gain = prior_loss(f)
    else:
        assert near is not None
        fix = Fix(text=f"{key} {near}: ×{near / kv:.3g} the keys and values")
        gain = loss_of_change(s.legal, new, f)
    what = f"{kv} KV heads" if few else f"{group:.3g} query heads to a KV head"
    yield Found("info", key, f"{what}: benchmarks were seen to fall below 4 KV heads, and no table "
                "prices groups beyond 8", fix, gain)  # fmt: skip


@rule("SC108", "multi-head-cache", "ainslie2023")
def multi_head_cache(s: Subject) -> Iterator[Found]:
    """A large model with a KV head for every query head pays for it in cache, for no loss.

    Groups of 2 to 4 cost 0 ± 0.01 nats at equal parameters (ablations, section 0.2) and divide the
    cache by as much. Told where heads are eight or more and the model over 1 B.

    Exceptions: models before 2023; OLMo 2 and 3 7B keep all heads.
    """
    f, spec = s.features, s.legal
    a = s.attentions[0][1] if s.attentions else None
    if a is None or f.kv_group != 1 or int(a.n_head) < 8 or float(s.counted.total) < 1e9:
        return
    heads = int(a.n_head)
    near = next((heads // g for g in (4, 2, 3) if heads % g == 0), None)
    new = None if near is None else changed(spec, n_kv_head=near)
    if new is None or not a.causal:
        return
    before, after = s.cache_per_token, cache_per_token(new)
    yield Found("info", s.key("n_kv_head"), f"every one of {heads} query heads has its own keys "
                f"and values: {before / 1024:,.0f} KiB of cache a token",
                Fix(text=f"{s.key('n_kv_head')} {near}: {after / 1024:,.0f} KiB a token"),
                exact(before - after, "bytes of cache a token"))  # fmt: skip


@rule("SC109", "narrow-heads", "gadre2024", "bhojanapalli2020")
def narrow_heads(s: Subject) -> Iterator[Found]:
    """Heads below 64 lose loss: the rank of a head's scores is its width.

    Q K^T of one head has rank h at most, so h below what the pattern needs binds (Bhojanapalli et
    al. 2020). Runs that changed only the number of heads lost 0.06 nats at 32 and 0.01 at 64
    against 128 (width at most 1024). More than 256 was never measured.

    Exceptions: models of less than 100 M, whose width leaves few heads.
    """
    a = s.attentions[0][1] if s.attentions else None
    if a is None or s.features.d_head is None:
        return
    head, heads, kv = int(a.d_head), int(a.n_head), int(a.n_kv_head)
    if 64 <= head <= 256:
        return
    key = s.key("d_head")
    if head > 256:
        yield Found("info", key, f"heads of {head}: nothing above 256 was measured")
        return
    wide = 64 if heads * head % 64 == 0 else 128
    fewer = {"n_head": heads * head // wide, "n_kv_head": max(1, kv * head // wide), "d_head": wide}
    new = changed(s.legal, **fewer) if heads * head % wide == 0 else None
    gain = None if new is None else loss_of_change(s.legal, new, s.features)
    fix = None if new is None else Fix(text=f"{fewer['n_head']} heads of {wide}")
    large = float(s.counted.total) > 1e8
    yield Found("warning" if large and head < 32 else "info", key,
                f"heads of {head}: their scores have rank {head} at most", fix, gain)  # fmt: skip


@rule("SC110", "alibi-heads", "alibi-transformers")
def alibi_heads(s: Subject) -> Iterator[Found]:
    """ALiBi's slopes are even where the number of heads is a power of two.

    Slopes are 2^(−8 i/H) for i = 1 … H. For another H classes take those of the power of two below
    and every second one of the power above, so that neighbouring heads differ unevenly
    (``modeling_bloom.py``, ``modeling_mpt.py``, transformers 5.24).

    Exceptions: BLOOM 176B has 112 heads and runs.
    """
    for _, a in s.attentions:
        heads = int(a.n_head)
        if isinstance(a.position, Alibi) and heads & (heads - 1):
            low = 1 << (heads.bit_length() - 1)
            yield Found("info", s.key("n_head"), f"{heads} heads with ALiBi: slopes of {low} heads "
                        f"and every second one of {2 * low}, unevenly spaced",
                        Fix(text=f"{low} or {2 * low} heads"))  # fmt: skip
            return


@rule("SC111", "latent-rank", "mlra2026", "deepseekv2")
def latent_rank(s: Subject) -> Iterator[Found]:
    """The latent of MLA is at least 256 and an eighth of the width.

    Its rank bounds what keys and values of all heads together can say. Four heads wide is where
    published models sit (512 at 128-wide heads); at D/16 a 30 M model fell off a cliff, at D/2 it
    lost 0.006 nats (ablations, section 1: MLA rank, grade D).

    Exceptions: DeepSeek-V3 (512 of 7168, D/14) and its relatives, at grade D no more than a note.
    """
    for path, a in s.latents:
        rank, width = int(a.kv_rank), int(s.legal.d_model)
        for field, own in (("kv_rank", rank), ("q_rank", int(a.q_rank or 0))):
            if own >= width:
                fix = Fix(text=f"{s.key(field)} below {width}")
                yield Found("warning", s.key(field), f"{path}: a latent of {own} compresses nothing"
                            f" of a width of {width}", fix)  # fmt: skip
                return
        head = int(a.d_nope)
        if rank < min(256, 4 * head) or rank * 16 < width:
            yield Found("info", s.key("kv_rank"), f"{path}: a latent of {rank} for keys and values "
                        f"of width {width}; published ranks are four heads ({4 * head}) or more",
                        Fix(text=f"{s.key('kv_rank')} {4 * head}"))  # fmt: skip
            return


@rule("SC112", "heads-of-latent", "transformers", reads="config")
def heads_of_latent(s: Subject) -> Iterator[Found]:
    """With latent attention the KV heads are as many as the query heads, or the key means nothing.

    Every query head has its own keys, made from the shared latent. A smaller
    ``num_key_value_heads`` is not what the class builds, and tools that read it take the model for
    grouped attention and size its cache wrongly.

    Exceptions: configs that leave the key out, or say 1 as runtimes see one latent.
    """
    part = s.raw
    if part.field("kv_rank") is None:
        return
    heads, kv = part.whole("n_head"), part.config.get("num_key_value_heads")
    if heads and isinstance(kv, int) and kv not in {heads, 1}:
        yield Found("warning", "num_key_value_heads", f"{kv} KV heads beside latent attention of "
                    f"{heads} heads: the key has no effect, and the cache is one latent a token",
                    Fix(text=f"num_key_value_heads {heads}",
                        config={"num_key_value_heads": heads}))  # fmt: skip


def turned(a: GroupedAttention) -> bool:
    """Whether an attention has rotary positions."""
    return isinstance(a.position, Rope)
