"""Memory on chips: told only where a chip was named (SC901 to SC905)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scantling.costs.cache import kv_cache
from scantling.costs.pages import longest_cached, rank_cache_bytes
from scantling.costs.parallel import tp_reasons
from scantling.costs.weights import weight_memory
from scantling.rules.price import exact
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject
from scantling.spec import GroupedAttention
from scantling.units import bytes_text

FILLED = 0.9
"""Of the memory that an engine fills."""
STATE_BYTES = 16
"""Bytes a parameter takes in mixed-precision training with Adam: 2 + 2 + 4 + 4 + 4."""


def _weights(s: Subject) -> float:
    """Bytes of the weights on the fullest rank."""
    own = s.scheme or "bf16"
    if s.setting.dtype == "fp32" and s.setting.quant is None:
        own = "fp32"
    plan = s.setting.plan
    whole = not any(tp_reasons(s.legal, plan.tp)) and int(s.legal.n_layer) >= plan.pp
    found: Any = weight_memory(s.legal, own, plan).bytes if whole else (
        float(weight_memory(s.legal, own).bytes) / (plan.tp * plan.pp))  # fmt: skip
    return float(found)


def _bits(s: Subject) -> str:
    """What the weights are in: a catalogue name or a config without a scheme says 16 bits."""
    if s.scheme is not None and s.scheme.quantised:
        return s.scheme.name
    return "32 bits" if s.setting.dtype == "fp32" and s.setting.quant is None else "16 bits"


@rule("SC901", "weights-fit", "mleng-accelerators")
def weights_fit(s: Subject) -> Iterator[Found]:
    """The weights of a rank fit into the memory of its chip, experts all of them.

    Experts are resident however few a token passes, so a mixture is sized by its total. In
    training a parameter takes 16 bytes (weights and gradients in 16 bits, master copy and two
    moments in 32), shared out by all chips at best.

    Exceptions: offloading to a host.
    """
    chip = s.setting.chip
    if chip is None:
        return
    room, held = float(chip.usable_bytes), _weights(s)
    total = float(s.counted.total)
    if s.setting.phase == "train":
        n = s.setting.gpus or s.setting.plan.n_gpu
        held = STATE_BYTES * total / n
        if held > room:
            least = int(-(-STATE_BYTES * total // (FILLED * room)))
            yield Found("error", "gpus", "weights, gradients and states take "
                        f"{bytes_text(held)} on "
                        f"each of {n} × {chip.key}, which hold {bytes_text(room)}, shared out at "
                        "best", Fix(text=f"{least} chips or more, or adapters"),
                        exact(held - room, "bytes too many on a chip"))  # fmt: skip
        return
    if held > room:
        more = next((n for n in (2, 4, 8, 16, 32, 64) if held * s.setting.tp / n < FILLED * room
                      and not any(tp_reasons(s.legal, n))), None)  # fmt: skip
        text = f"TP {more}" if more else "more chips"
        yield Found("error", "gpu", f"the weights take {bytes_text(held)} in {_bits(s)} on a chip, "
                    f"{chip.key} holds {bytes_text(room)}",
                    Fix(text=f"{text}, or weights in fewer bits (--quant)"),
                    exact(held - room, "bytes too many on a chip"))  # fmt: skip


@rule("SC902", "cache-fits", "mleng-accelerators")
def cache_fits(s: Subject) -> Iterator[Found]:
    """Weights and the caches of a batch fit: batch × S × bytes a token + weights < 0.9 of the chip.

    The cache grows with the context (2 K h a layer and token; a latent d_c + d_rope; a window w at
    most; a state not at all) and with the batch. Over the chip's memory it cannot run, over 0.9
    only without what an engine needs beside.

    Exceptions: caches on a host; quantised caches (``serve --kv-dtype``).
    """
    own = s.setting
    if own.chip is None or own.context is None or own.phase == "train":
        return
    room, weights = float(own.chip.usable_bytes), _weights(s)
    plan = own.plan
    if weights > room or any(tp_reasons(s.legal, plan.tp)) or int(s.legal.n_layer) < plan.pp:
        return
    batch = own.batch or 1
    cache = rank_cache_bytes(s.legal, own.context, batch, plan=plan)
    if cache + weights <= FILLED * room:
        return
    level: Level = "error" if cache + weights > room else "warning"
    left = max(FILLED * room - weights, 0.0)
    most = longest_cached(s.legal, left, batch, plan=plan).tokens
    yield Found(level, "context", f"weights {bytes_text(weights)} in {_bits(s)} and caches "
                f"{bytes_text(cache)} of "
                f"{batch} × {own.context} tokens on {own.chip.key}, which holds {bytes_text(room)}",
                Fix(text=f"--context {most}, a smaller batch, or more chips" if most else
                    "more chips, or weights in fewer bits (--quant)"),
                exact(cache + weights - FILLED * room, "bytes too many on a chip"))  # fmt: skip


@rule("SC903", "cache-share", "ainslie2023")
def cache_share(s: Subject) -> Iterator[Found]:
    """At the context asked for the cache of a sequence is smaller than the weights.

    Beyond, a batch of a few is bound by the cache and not by the model: fewer KV heads, windows or
    a latent pay at once.

    Exceptions: long contexts on purpose.
    """
    context = s.setting.context
    if context is None or not s.setting.in_phase("serve"):
        return
    found: Any = kv_cache(s.legal, context=context).bytes
    weights = 2.0 * float(s.counted.total)
    if float(found) > weights:
        yield Found("warning", "context", f"the cache of one sequence of {context} tokens "
                    f"({bytes_text(float(found))}) is larger than the weights "
                    f"({bytes_text(weights)})", Fix(text="fewer KV heads, windows, or a latent"),
                    exact(float(found) - weights, "bytes more than the weights"))  # fmt: skip


@rule("SC904", "page-waste", "vllm-0.33", "sglang-0.5.23", "tensorrt-llm")
def page_waste(s: Subject) -> Iterator[Found]:
    """A cache is kept in pages of tokens: (page − 1)/2 of them are empty in every sequence.

    Pages are 16 tokens in vLLM's default, 32 in TensorRT-LLM, 64 in MLA kernels, 256 in
    flash-attention's own: 16 is not universal. Told where that is over 5 % of the context.

    Exceptions: none.
    """
    page = 0 if s.runtime is None else s.runtime.page
    if s.latents and page:
        page = max(page, 64)
    context = s.setting.context
    if context is None or page <= 1 or not list(s.each(GroupedAttention)) + list(s.latents):
        return
    waste = -(-context // page) * page - context
    if waste > 0.05 * context:
        yield Found("info", "context", f"{context} tokens take {-(-context // page)} pages of "
                    f"{page}:"
                    f" {waste} of them empty", None,
                    exact(waste * s.cache_per_token, "bytes a sequence"))  # fmt: skip


@rule("SC905", "logits-memory", "mleng-performance")
def logits_memory(s: Subject) -> Iterator[Found]:
    """In training the logits fit beside the rest: tokens × V × 4 bytes, and as much for gradients.

    The loss is taken in FP32 (first and last logits are what 16 bits spoil most). 8 × 8192 tokens
    of 128 k are 31 GiB, and the gradient again. A chunked or fused loss holds a part at a time.

    Exceptions: chunked losses; tensor-parallel heads, which hold 1/t.
    """
    own = s.setting
    if own.phase != "train" or own.context is None or s.legal.head is None:
        return
    tokens = (own.batch or 1) * own.context // own.cp
    held = 2 * 4.0 * tokens * int(s.legal.vocab_size) / own.tp
    room = None if own.chip is None else float(own.chip.usable_bytes)
    if room is not None and held > 0.25 * room:
        level: Level = "error" if held > room else "warning"
        yield Found(level, "batch", f"logits of {tokens} tokens and their gradient take "
                    f"{bytes_text(held)} in FP32, {held / room:.0%} of "
                    f"{own.chip.key if own.chip else ''}",
                    Fix(text="a chunked loss, or a smaller micro-batch"),
                    exact(held, "bytes of logits"))  # fmt: skip
