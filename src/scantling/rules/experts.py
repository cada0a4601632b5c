"""Experts: how many, how wide, which are chosen (SC801 to SC813)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scantling.rules.gemm import Width
from scantling.rules.price import exact, faster
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject

STEPS = (
    "first_k_dense_replace", "decoder_sparse_step", "expert_layer_period", "moe_layer_freq",
    "interleave_moe_layer_step", "moe_layer_start_index",
)  # fmt: skip
"""Keys that say from which layer, or every how many, there are experts."""


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and isinstance(value, int | float) else None


@rule("SC801", "top-k-within-experts", "megatron-2026", "shazeer2017", reads="config")
def top_k_within_experts(s: Subject) -> Iterator[Found]:
    """A token passes at most as many experts as there are: k ≤ E.

    The router takes the k largest of E logits; ``topk`` refuses more.

    Exceptions: none.
    """
    experts, k = s.raw.whole("n_expert"), s.raw.whole("top_k")
    if experts is None or k is None or k <= experts:
        return
    key = s.raw.key("top_k")
    near = max(1, min(k, experts // 2))
    yield Found("error", key, f"{k} experts a token of {experts}: there are not as many",
                Fix(text=f"{key} {near}", config={key: near}))  # fmt: skip


@rule("SC802", "expert-groups", "megatron-2026", "deepseekv3", reads="config")
def expert_groups(s: Subject) -> Iterator[Found]:
    """Grouped routing: groups divide the experts, and those chosen hold k of them.

    E mod groups = 0 (Megatron asserts it), chosen groups ≤ groups, and E/groups × chosen ≥ k; each
    group is scored by its two best, so it has two.

    Exceptions: one group, which is no grouping.
    """
    part = s.raw
    experts, groups = part.whole("n_expert"), part.whole("n_expert_group")
    chosen, k = part.whole("top_k_group"), part.whole("top_k")
    if experts is None or groups is None or groups == 1:
        return
    key = part.key("n_expert_group")
    if experts % groups:
        near = max(n for n in range(1, groups + 1) if experts % n == 0)
        yield Found("error", key, f"{groups} groups do not divide {experts} experts",
                    Fix(text=f"{key} {near}", config={key: near}))  # fmt: skip
        return
    if chosen is None:
        return
    own = part.key("top_k_group")
    if chosen > groups:
        yield Found("error", own, f"{chosen} groups are chosen of {groups}",
                    Fix(text=f"{own} {groups}", config={own: groups}))  # fmt: skip
    elif k is not None and experts // groups * chosen < k:
        least = math.ceil(k / (experts // groups))
        yield Found("error", own, f"{chosen} groups of {experts // groups} experts hold fewer than "
                    f"the {k} a token passes", Fix(text=f"{own} {least}", config={own: least})
        )  # fmt: skip


@rule("SC803", "active-share", "clark2022", "krajewski2024", "abnar2025")
def active_share(s: Subject) -> Iterator[Found]:
    """A token passes a small share of the experts; all of them is a dense model with a router.

    At equal active size 64 → 256 experts are −0.021 nats a doubling, measured down to 3 % active;
    k = E routes nothing. Recent models: 1.6 to 12.5 %.

    Exceptions: Mixtral (25 %), early models; Llama 4 (1 of 16 or 128).
    """
    for path, e in s.experts:
        n, k = int(e.n_expert), int(e.top_k)
        share = k / n
        if n > 1 and share >= 0.5:
            level: Level = "warning" if share > 0.5 else "info"
            every = "all" if k == n else f"{share:.0%}"
            yield Found(level, s.key("top_k"), f"{path}: a token passes {every} of {n} experts: "
                        "the "
                        "memory of experts and the time of a dense model",
                        Fix(text=f"{s.key('top_k')} {max(1, n // 8)}"))  # fmt: skip
        elif share < 0.01:
            yield Found("info", s.key("top_k"), f"{path}: a token passes {share:.2%} of the "
                        "experts; "
                        "losses were measured down to 3 %")  # fmt: skip
        return


@rule("SC804", "expert-width", "nvidia-matmul-guide", "torchtitan-groups")
def expert_width(s: Subject) -> Iterator[Found]:
    """An expert's width is a multiple of 128, so that it can be cut and quantised.

    Blocks of 128 of FP8 are cut otherwise even unsplit, gate and up each for itself: 320 is 2.5
    blocks though the fused 640 is five. Products of widths that are no multiples of 16 were
    measured to be slower in one library; a width of 128 t serves TP t.

    Exceptions: gpt-oss (2880), Nemotron 3 Nano (1856), GLM-4.5 Air's 1408 at TP 1.
    """
    for path, e in s.experts:
        width = int(e.d_expert)
        if width % 128:
            near = max(128, round(width / 128) * 128)
            gain = faster(s, "d_expert", near) if width % 16 else None
            level: Level = "warning" if width % 64 else "info"
            yield Found(level, s.key("d_expert"), f"{path}: an expert width of {width} is "
                        f"{width / 128:g} blocks of 128", Fix(text=f"{s.key('d_expert')} {near}"),
                        gain)  # fmt: skip
            return


@rule("SC805", "expert-shard", "quantization-kernels", "vllm-0.33")
def expert_shard(s: Subject) -> Iterator[Found]:
    """Experts cut by tensor stay wide enough to compute: F_e/t of 128 or more.

    A product of 64 columns fills half a tile. Whole experts on ranks (EP) keep their width.

    Exceptions: small experts on few ranks.
    """
    tp = s.setting.tp
    if tp == 1 or s.setting.ep > 1:
        return
    for path, e in s.experts:
        w = Width("d_expert", path, int(e.d_expert), tp)
        if w.whole % tp == 0 and w.own % 128:
            good = [str(n) for n in (1, 2, 4, 8, 16) if w.whole % (128 * n) == 0]
            degrees = f", or TP {', '.join(good)}" if good else ""
            yield Found("warning", s.key("d_expert"), f"{path}: {w.text} columns of an expert on a "
                        "rank is no multiple of 128", Fix(text=f"--ep {tp}{degrees}"))  # fmt: skip
            return


@rule("SC806", "expert-count", "megatron-2026")
def expert_count(s: Subject) -> Iterator[Found]:
    """The number of experts has a power of two in it, so that ranks can share them.

    Expert-parallel degrees divide E, and nodes have 8 chips: E a multiple of 8 takes EP 8.

    Exceptions: Qwen1.5-MoE (60), Granite (40), Snowflake Arctic (128).
    """
    for path, e in s.experts:
        n = int(e.n_expert)
        if n > 8 and n % 8:
            yield Found("info", s.key("n_expert"), f"{path}: {n} experts cannot be shared by the 8 "
                        f"chips of a machine; EP {math.gcd(n, 8)} at most",
                        Fix(text=f"{round(n / 8) * 8} experts"))  # fmt: skip
            return


@rule("SC807", "dense-first-layers", "deepseekv3", reads="config")
def dense_first_layers(s: Subject) -> Iterator[Found]:
    """Dense layers before the experts are fewer than the layers, and some layer has experts.

    ``first_k_dense_replace`` ≥ L, or a step longer than the depth, leaves a model whose experts are
    in no layer though its config names them. One dense layer of 24 costs nothing measurable, two
    of six 0.014 nats.

    Exceptions: none.
    """
    part = s.raw
    layers, experts = part.whole("n_layer"), part.whole("n_expert")
    if layers is None or experts is None:
        return
    sparse = part.field("sparse")
    if isinstance(sparse, list) and sparse and not any(sparse):
        key = next((part.given[k] for k in ("mlp_only_layers", "moe_layers", *STEPS)
                    if k in part.given and part.values[k]), part.key("n_expert"))  # fmt: skip
        yield Found("warning", key, f"{key} leaves no layer of {layers} with one of the {experts} "
                    "experts", Fix(text=f"fewer layers in {key}"))  # fmt: skip
        return
    for key in STEPS:
        value: Any = part.values.get(key)
        spelling = part.given.get(key)
        if spelling is None or not isinstance(value, int) or isinstance(value, bool):
            continue
        least = layers if key in {"first_k_dense_replace", "moe_layer_start_index"} else layers + 1
        if value >= least:
            yield Found("warning", spelling, f"{spelling} {value} of {layers} layers: no layer has "
                        f"one of the {experts} experts", Fix(text=f"{spelling} below "
                                    f"{layers}"))  # fmt: skip
            return
        if key == "first_k_dense_replace" and value > layers / 4:
            yield Found("info", spelling, f"the first {value} of {layers} layers are dense: two of "
                        "six cost 0.014 nats, one of 24 nothing")  # fmt: skip


@rule("SC808", "shared-expert", "deepseek2024")
def shared_expert(s: Subject) -> Iterator[Found]:
    """A shared expert is worth one of the experts a token passes, and no wider than all of them.

    1, 2 or 4 of 8 active shared make no difference (±0.004 nats); none at all is within ±0.012. A
    shared one of more than half of what a token passes is a dense model with a small mixture.

    Exceptions: Qwen3, gpt-oss and Mixtral have none.
    """
    for path, e in s.experts:
        if e.shared is None:
            continue
        routed, shared = int(e.top_k) * int(e.d_expert), int(e.shared.d_shared)
        if shared > routed:
            yield Found("info", s.key("d_shared"), f"{path}: the shared expert ({shared}) is wider "
                        f"than the {int(e.top_k)} routed ones a token passes "
                                    f"({routed})")  # fmt: skip
            return


@rule("SC809", "expert-capacity", "megatron-2026", "switch2021", reads="config")
def expert_capacity(s: Subject) -> Iterator[Found]:
    """A capacity holds what is routed on average: a factor of 1 or more.

    Each expert takes C = ⌈T k/E · f⌉ tokens of T (Megatron; Switch's (T/E) f is k = 1). Below f = 1
    tokens are dropped though routing is even; 1.0 to 2.0 is usual, dropless has no cap.

    Exceptions: a factor of −1 or null, which means dropless; expert choice.
    """
    config = s.raw.config
    for key in ("capacity_factor", "moe_expert_capacity_factor", "expert_capacity_factor",
                "moe_capacity_factor", "train_capacity_factor", "eval_capacity_factor",
                "moe_eval_capacity_factor"):  # fmt: skip
        factor = _number(config.get(key))
        if factor is None or factor <= 0:
            continue
        if factor < 1:
            lost = 1 - factor
            yield Found("warning", key, f"a capacity of {factor:g} of the average drops "
                        f"{lost:.0%} of "
                        "the tokens though routing is even", Fix(text=f"{key} 1.25",
                        config={key: 1.25}), exact(lost, "tokens dropped"))  # fmt: skip
        elif factor > 4:
            yield Found(
                "info", key, f"a capacity of {factor:g} times the average is mostly padding"
            )
    tokens = _number(config.get("expert_capacity"))
    context = s.setting.context
    experts, k = s.raw.whole("n_expert") or s.raw.whole("num_experts"), s.raw.whole("top_k") or 1
    if tokens is not None and experts and context:
        needed = math.ceil((s.setting.batch or 1) * context * k / experts)
        if tokens < needed:
            yield Found("error", "expert_capacity", f"{tokens:.0f} tokens an expert, and {needed} "
                        "arrive on average", Fix(text=f"expert_capacity {needed}"))  # fmt: skip


@rule("SC810", "router-balance", "switch2021", "deepseekv3", reads="config")
def router_balance(s: Subject) -> Iterator[Found]:
    """Training a router needs something that balances it, and not too much of it.

    Without an auxiliary loss (Switch: 0.01) or a bias that is corrected (DeepSeek-V3), few experts
    take all tokens; above 0.1 the loss of balance outweighs that of language.

    Exceptions: inference, where the coefficient is not read; told with ``--phase train`` where it
    is zero. gpt-oss-20b's config says 0.9, which nobody trained with.
    """
    config = s.raw.config
    if s.raw.whole("n_expert") is None:
        return
    for key in ("router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coeff"):
        weight = _number(config.get(key))
        if weight is None:
            continue
        corrected = s.raw.field("correction") is not None
        if weight > 0.1:
            trains: Level = "warning" if s.setting.phase == "train" else "info"
            yield Found(trains, key, f"a balance loss of {weight:g} outweighs the loss of "
                        "language", Fix(text=f"{key} 0.01 or less", config={key: 0.01})
            )  # fmt: skip
        elif weight < 0:
            yield Found("warning", key, f"a balance loss of {weight:g} pushes tokens to few "
                        "experts",
                        Fix(text=f"{key} 0.001", config={key: 0.001}))  # fmt: skip
        elif weight == 0 and not corrected and s.setting.phase == "train":
            yield Found("warning", key, "nothing balances the router", Fix(text=f"{key} 0.001",
                        config={key: 0.001}))  # fmt: skip


@rule("SC811", "router-weights", "transformers", reads="config")
def router_weights(s: Subject) -> Iterator[Found]:
    """The weights of the chosen experts are normed, or their sum changes with k.

    A softmax over all experts of which k are taken sums to less than one; ``norm_topk_prob`` false
    with k > 1 scales the block by that sum. With k = 1 norming takes the router's gradient away.

    Exceptions: DeepSeek-V2 and OLMoE, trained so on purpose.
    """
    part = s.raw
    k, normed = part.whole("top_k"), part.config.get("norm_topk_prob")
    factor = _number(part.config.get("routed_scaling_factor"))
    if factor is not None and factor <= 0 and part.whole("n_expert") is not None:
        yield Found("warning", "routed_scaling_factor", f"routed experts are scaled by {factor:g}: "
                    "what they say is lost", Fix(text="routed_scaling_factor 1",
                    config={"routed_scaling_factor": 1.0}))  # fmt: skip
    if part.whole("n_expert") is None or k is None or normed is None:
        return
    softmax = part.field("scoring") == "softmax"
    if k == 1 and normed is True and softmax:
        yield Found("warning", "norm_topk_prob", "one expert a token, its weight normed to 1: the "
                    "router gets no gradient", Fix(text="norm_topk_prob false",
                    config={"norm_topk_prob": False}))  # fmt: skip
    elif k > 1 and normed is False and softmax and s.setting.phase == "train":
        yield Found("info", "norm_topk_prob", f"the weights of {k} chosen experts are not normed")


@rule("SC812", "single-expert", "clark2022")
def single_expert(s: Subject) -> Iterator[Found]:
    """A mixture has more than one expert.

    With one the router decides nothing and is read for nothing.

    Exceptions: none.
    """
    for path, e in s.experts:
        if int(e.n_expert) == 1:
            yield Found("warning", s.key("n_expert"), f"{path}: one expert is a dense feed-forward "
                        "with a router")  # fmt: skip
            return


@rule("SC813", "granularity", "krajewski2024", "abnar2025")
def granularity(s: Subject) -> Iterator[Found]:
    """Experts are not narrower than an eighth of a head's work, nor one as wide as the model's FFN.

    Granularity 1 → 4 is −0.06 nats at 0.3B active. Below a width of 128 a product no longer fills a
    tile, and the router grows with E.

    Exceptions: small research models.
    """
    for path, e in s.experts:
        width = int(e.d_expert)
        if width < 128 and int(s.legal.d_model) >= 512:
            yield Found("warning", s.key("d_expert"), f"{path}: experts of {width} columns do not "
                        "fill a tile of 128", Fix(text="fewer, wider experts"))  # fmt: skip
            return
