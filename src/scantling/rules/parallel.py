"""Splits over chips: told only where one was asked for (SC201 to SC216)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scantling.costs.parallel import (
    DIVIDED,
    kv_replication,
    near_kv,
    near_multiple,
    nearest_change,
    padded_heads,
    split_layers,
    ulysses_degrees,
    valid_degrees,
    valid_ep,
)
from scantling.costs.ranks import expert_tp, padded_vocab
from scantling.rules.price import changed, exact, held, keeps_parameters
from scantling.rules.registry import Fix, Found, rule
from scantling.rules.subject import Subject
from scantling.spec import Dense, Experts, GroupedAttention, Mamba2

MEGATRON, VLLM = "megatron-2026", "vllm-0.33"


def _tp_fix(s: Subject) -> Fix:
    """The nearest shape that a tensor-parallel degree divides, its parameters held by the FFN."""
    found: Fix | None = s.worked_out.get("tp_fix")
    if found is None:
        found = s.worked_out["tp_fix"] = _tp_shape(s)
    return found


def _tp_shape(s: Subject) -> Fix:
    tp = s.setting.tp
    good = valid_degrees(s.legal, 2 * tp).tp
    degrees = f"valid TP: {', '.join(map(str, good))}"
    changes = nearest_change(s.legal, "tp", tp)
    if "n_head" in changes and s.part is not None and not s.part.has("d_head"):
        heads = _heads_of_width(s)
        if not heads:
            return Fix(text=degrees)
        changes |= heads
    if s.experts:
        wide = [int(e.d_expert) for _, e in s.experts]
        if any(w % expert_tp(s.setting.plan) for w in wide):
            changes["d_expert"] = near_multiple(max(wide), 64 * tp)
    if "d_ff" in changes:
        changes["d_ff"] = near_multiple(changes["d_ff"], 64 * tp)
    if not changes or changed(s.legal, **changes) is None:
        return Fix(text=degrees)
    changes = held(s.legal, changes, 64 * tp)
    words = s.said(changes)
    same: tuple[str, ...] = ("params",) if keeps_parameters(s.legal, changes) else ()
    return Fix(text=f"{words}; or {degrees}", spec=changes, keeps=(*same, "d_model", "n_layer"))


def _heads_of_width(s: Subject) -> dict[str, int]:
    """Heads for a class that takes D/H for their width: the nearest that ranks and width allow."""
    tp, width = s.setting.tp, int(s.legal.d_model)
    if not s.attentions:
        return {}
    first = s.attentions[0][1]
    heads, kv, narrow = int(first.n_head), int(first.n_kv_head), min(64, int(first.d_head))
    good = [n for n in range(tp, width // narrow + 1, tp)
            if width % (8 * n) == 0 and width // n <= 256]  # fmt: skip
    if not good:
        return {}
    near = min(good, key=lambda n: (abs(n - heads), n))
    each = near if kv == heads else near_kv(kv, near, tp)
    return {"n_head": near, "n_kv_head": each, "d_head": width // near}


@rule("SC201", "tp-heads", MEGATRON, VLLM, "sglang-0.5.23")
def tp_heads(s: Subject) -> Iterator[Found]:
    """Tensor parallelism gives every rank as many query heads: H mod t = 0.

    A rank makes the queries of its own heads and multiplies by its own rows of W_o; Megatron,
    vLLM and SGLang refuse a remainder. Padding with empty heads costs ⌈H/t⌉ t/H − 1 of the
    attention's work, which is the gain printed.

    Exceptions: none; a padded checkpoint is another shape.
    """
    tp = s.setting.tp
    if tp == 1:
        return
    for path, module in s.modules:
        if isinstance(module, GroupedAttention):
            names: tuple[tuple[str, str], ...] = (("n_head", "heads"),)
        else:
            names = tuple(p for p in DIVIDED.get(type(module), ()) if p[0] != "d_ff")
        for field, words in names:
            n = int(getattr(module, field))
            if n % tp:
                waste = padded_heads(n, tp)
                yield Found("error", s.key(field), f"{path}: {n} {words} cannot be split over TP "
                            f"{tp}; padded to {waste.heads} they waste {waste.waste:.1%}",
                            _tp_fix(s), exact(waste.waste, "attention work for "
                                        "nothing"))  # fmt: skip
                return


@rule("SC202", "tp-kv-heads", MEGATRON, VLLM, "sglang-0.5.23")
def tp_kv_heads(s: Subject) -> Iterator[Found]:
    """KV heads are split over ranks or copied equally often: K mod t = 0 or t mod K = 0.

    With K ≥ t each rank holds K/t; with K < t a head is held by t/K ranks, which must be whole.
    Megatron, vLLM and SGLang check exactly this.

    Exceptions: latent attention counts as one KV head on every rank, and is always allowed.
    """
    tp = s.setting.tp
    if tp == 1:
        return
    for path, a in s.attentions:
        kv = int(a.n_kv_head)
        if kv % tp and tp % kv:
            yield Found("error", s.key("n_kv_head"), f"{path}: {kv} KV heads cannot be split over "
                        f"TP {tp}, nor copied equally often", _tp_fix(s))  # fmt: skip
            return
    for path, node in s.modules:
        if isinstance(node, Mamba2) and int(node.n_group) % tp and tp % int(node.n_group):
            yield Found("error", s.key("n_group"), f"{path}: {int(node.n_group)} state groups "
                        f"cannot be split over TP {tp}, nor copied equally often")  # fmt: skip
            return


@rule("SC203", "tp-kv-copies", VLLM, MEGATRON)
def tp_kv_copies(s: Subject) -> Iterator[Found]:
    """With more ranks than KV heads every head is held t/K times, and so is its cache.

    A rank keeps max(1, K/t) heads, so the cache of all ranks together is t/K times that of one
    chip. It runs; it is the memory that tensor parallelism was to save.

    Exceptions: small models served on a whole node, where memory is not what is short.
    """
    tp = s.setting.tp
    for path, a in s.attentions if tp > 1 else ():
        kv = int(a.n_kv_head)
        if kv >= tp or tp % kv or int(a.n_head) % tp:
            continue
        copies = kv_replication(kv, tp).copies
        more = s.cache_per_token * (copies - 1)
        yield Found("warning", s.key("n_kv_head"), f"{path}: {kv} KV heads on TP {tp}: each is "
                    f"held {copies} times, and the cache with it",
                    Fix(text=f"TP {kv}, or {s.key('n_kv_head')} {tp}"),
                    exact(more, "bytes of cache a token, all ranks"))  # fmt: skip
        return


@rule("SC204", "tp-latent-copies", VLLM)
def tp_latent_copies(s: Subject) -> Iterator[Found]:
    """Every rank of a tensor-parallel group holds the whole latent of MLA.

    The latent is shared by all heads, so it cannot be cut by heads: the cache of t ranks is t times
    that of one. Attention split by data instead keeps each sequence's latent once.

    Exceptions: none; it runs.
    """
    tp = s.setting.tp
    if tp > 1 and s.latents:
        more = s.cache_per_token * (tp - 1)
        yield Found("warning", "tp", f"latent attention on TP {tp}: every rank holds the whole "
                    "latent", Fix(text="split attention by data, experts over the ranks"),
                    exact(more, "bytes of cache a token, all ranks"))  # fmt: skip


@rule("SC205", "tp-ffn", VLLM, MEGATRON)
def tp_ffn(s: Subject) -> Iterator[Found]:
    """Every rank has as many columns of the feed-forward: F mod t = 0, shared experts too.

    vLLM asserts it of every column-parallel output, Megatron of the FFN width. Routed experts are
    cut by t as well unless whole experts are spread by ``--ep``.

    Exceptions: none.
    """
    tp = s.setting.tp
    if tp == 1:
        return
    for path, node in s.modules:
        sizes: list[tuple[str, int, int]] = []
        if isinstance(node, Dense):
            sizes.append(("d_ff", int(node.d_ff), tp))
        elif isinstance(node, Experts):
            sizes.append(("d_expert", int(node.d_expert), expert_tp(s.setting.plan)))
            if node.shared is not None:
                sizes.append(("d_shared", int(node.shared.d_shared), tp))
        for field, n, degree in sizes:
            if n % degree:
                yield Found("error", s.key(field), f"{path}: {n} columns cannot be split over TP "
                            f"{degree}", _tp_fix(s))  # fmt: skip
                return


@rule("SC206", "pp-layers", MEGATRON, VLLM)
def pp_layers(s: Subject) -> Iterator[Found]:
    """Layers divide the pipeline stages: L mod p = 0, or the fullest stage sets the pace.

    Uneven stages cost ⌈L/p⌉ p/L − 1 of the time. Megatron asserts that L, or L with the embedding
    and the loss counted as a layer each (L + 1, L + 2), divides; software that gives every stage
    ⌊L/p⌋ silently builds fewer layers (30 over 4: 28). vLLM takes any L.

    Exceptions: an explicit uneven split; Llama 3.1 405B's 126 layers on 16 stages (126 + 2).
    """
    pp = s.setting.pp
    layers = int(s.legal.n_layer)
    if pp == 1:
        return
    split = split_layers(layers, pp)
    listed = "/".join(map(str, split.stages)) if pp <= 16 else f"{split.stages[0]} or fewer"
    divisors = [n for n in split.divisors if n <= 2 * pp]
    advice = f"pp {', '.join(map(str, divisors))}, or an explicit split {listed}"
    if layers < pp:
        yield Found("error", "pp", f"{layers} layers cannot fill {pp} stages", Fix(text=advice))
        return
    if split.even:
        return
    waste = math.ceil(layers / pp) * pp / layers - 1
    equal = s.runtime is not None and s.runtime.layers == "equal"
    counted = any((layers + extra) % pp == 0 for extra in (1, 2))
    level = "error" if equal and not counted else "warning"
    if s.runtime is not None and not equal:
        level = "info"
    near = near_multiple(layers, pp)
    message = (f"{layers} layers over {pp} stages: {listed}; equal stages of ⌊{layers} / {pp}⌋ "
               f"would build {split.floor_total} layers")  # fmt: skip
    if equal and counted:
        message += "; it divides once embedding or loss count as a layer"
    fix = Fix(text=f"{s.key('n_layer')} {near}; or {advice}")
    yield Found(level, s.key("n_layer"), message, fix, exact(waste, "of a step lost"))  # type: ignore[arg-type]


@rule("SC207", "ep-experts", MEGATRON, "torchtitan-groups", VLLM)
def ep_experts(s: Subject) -> Iterator[Found]:
    """Whole experts lie on ranks equally: E mod ep = 0, and ep no larger than the ranks.

    Megatron and torchtitan assert it; vLLM gives some ranks one more, which the slowest pays:
    ⌈E/ep⌉ ep/E − 1.

    Exceptions: vLLM, where it is a cost and no error.
    """
    ep = s.setting.ep
    for path, e in s.experts if ep > 1 else ():
        n = int(e.n_expert)
        good = valid_ep(n, s.setting.gpus or max(ep, 64))
        advice = Fix(text=f"ep {', '.join(map(str, good))}")
        if ep > n:
            yield Found("error", "ep", f"{path}: {n} experts cannot fill EP {ep}", advice)
        elif n % ep:
            uneven = s.runtime is not None and s.runtime.experts == "any"
            waste = math.ceil(n / ep) * ep / n - 1
            yield Found("warning" if uneven else "error", "ep", f"{path}: {n} experts cannot be "
                        f"split over EP {ep}", advice, exact(waste, "of the experts' "
                                    "time"))  # fmt: skip
        return


@rule("SC208", "ep-without-experts", MEGATRON)
def ep_without_experts(s: Subject) -> Iterator[Found]:
    """Expert parallelism needs experts.

    Exceptions: none.
    """
    if s.setting.ep > 1 and not s.experts:
        yield Found("error", "ep", f"EP {s.setting.ep} needs experts; this model has none",
                    Fix(text="leave --ep out"))  # fmt: skip


@rule("SC209", "cp-sequence", MEGATRON, "transformer-engine-2026")
def cp_sequence(s: Subject) -> Iterator[Found]:
    """Context parallelism cuts a sequence into 2 cp chunks: S mod (2 cp) = 0.

    A causal mask gives early tokens little to do, so each rank takes one early and one late chunk.
    Without causal balance cp alone must divide.

    Exceptions: all-to-all (Ulysses) splits heads: SC210.
    """
    cp, context = s.setting.cp, s.setting.context
    if cp == 1 or context is None or s.setting.runtime == "ulysses":
        return
    if context % (2 * cp):
        near = near_multiple(context, 2 * cp)
        yield Found("error", "context", f"{context} tokens cannot be cut into the {2 * cp} chunks "
                    f"of CP {cp}", Fix(text=f"--context {near}"))  # fmt: skip


@rule("SC210", "cp-heads", "ulysses-verl")
def cp_heads(s: Subject) -> Iterator[Found]:
    """All-to-all sequence parallelism exchanges heads: cp divides H, and K one way or the other.

    Each rank ends with H/cp heads of the whole sequence. KV heads are split (K mod cp = 0) or
    repeated (cp mod K = 0): 40 heads with 8 KV heads take 1, 2, 4, 8 and 40.

    Exceptions: ring attention, which does not touch heads; asked only with --runtime ulysses.
    """
    cp = s.setting.cp
    if cp == 1 or s.setting.runtime != "ulysses":
        return
    for path, a in s.attentions:
        heads = int(a.n_head) // s.setting.tp
        kv = max(1, int(a.n_kv_head) // s.setting.tp)
        good = ulysses_degrees(heads, kv)
        if cp not in good:
            yield Found("error", "cp", f"{path}: {heads} heads and {kv} KV heads of a rank cannot "
                        f"be exchanged over CP {cp}",
                        Fix(text=f"cp {', '.join(map(str, good))}"))  # fmt: skip
            return


@rule("SC211", "plan-fills-chips", MEGATRON)
def plan_fills_chips(s: Subject) -> Iterator[Found]:
    """The chips are tp × pp × cp × dp, with a whole dp; experts take tp × cp × dp ranks.

    Exceptions: none.
    """
    own = s.setting
    each = own.tp * own.pp * own.cp
    if own.gpus is not None and own.gpus % each:
        yield Found("error", "gpus", f"{own.gpus} chips cannot be cut into tp × pp × cp = {each}",
                    Fix(text=f"--gpus {near_multiple(own.gpus, each)}"))  # fmt: skip
    elif own.gpus is not None and own.ep > 1 and (own.gpus // own.pp) % own.ep:
        yield Found("error", "ep", f"EP {own.ep} does not divide the {own.gpus // own.pp} ranks of "
                    "a stage")  # fmt: skip


@rule("SC212", "tp-beyond-node", "nvidia-matmul-guide", "mleng-network")
def tp_beyond_node(s: Subject) -> Iterator[Found]:
    """A tensor-parallel group stays in one machine.

    It exchanges activations twice a layer and direction, on the critical path; between machines
    that goes over a network 5 to 20 times slower than the links inside.

    Exceptions: racks with one link domain (GB200 NVL72).
    """
    tp, chip = s.setting.tp, s.setting.chip
    if tp > 8 and not (chip is not None and "gb" in chip.key):
        yield Found("warning", "tp", f"TP {tp} spans machines of 8 chips: every layer waits for "
                    "the network", Fix(text="TP 8 with pipeline stages"))  # fmt: skip


@rule("SC213", "tp-vocabulary", MEGATRON, VLLM)
def tp_vocabulary(s: Subject) -> Iterator[Found]:
    """The vocabulary is padded for the split, so the checkpoint's count depends on it.

    Megatron pads to a multiple of 128 t: 50257 is 50304, 50432, 50688, 51200 at t = 1, 2, 4, 8;
    vLLM to 64, then to t. The rows added are parameters that no token reads.

    Exceptions: none; worth knowing when a checkpoint moves between degrees.
    """
    tp, vocab = s.setting.tp, int(s.legal.vocab_size)
    own = s.runtime
    if tp == 1:
        return
    step = 1 if own is None else own.pads_vocabulary or 1
    multiple = step * tp if own is not None and own.per_rank else math.lcm(step, tp)
    padded: Any = -(-vocab // multiple) * multiple if own else padded_vocab(vocab, tp)
    if padded != vocab:
        tables = 1 if s.legal.tied else 2
        rows = (padded - vocab) * int(s.legal.d_model) * tables
        yield Found("info", s.key("vocab_size"), f"the vocabulary of {vocab} is padded to {padded} "
                    f"for TP {tp}", None, exact(rows, "parameters added"))  # fmt: skip


@rule("SC214", "sequence-parallel", MEGATRON)
def sequence_parallel(s: Subject) -> Iterator[Found]:
    """Training with tensor and expert parallelism needs sequence parallelism: S mod t = 0.

    Megatron refuses MoE training with t > 1 and no sequence parallelism, which cuts the tokens
    of norms and residuals over the tensor group.

    Exceptions: serving.
    """
    own = s.setting
    if own.phase != "train" or own.tp == 1 or own.context is None:
        return
    if own.context // own.cp % own.tp:
        yield Found("warning", "context", f"{own.context // own.cp} tokens of a rank cannot be "
                    f"split over TP {own.tp} by sequence: norms and residuals stay whole on every "
                    "rank", Fix(text="--context "
                                f"{near_multiple(own.context, own.cp * own.tp)}"))  # fmt: skip


@rule("SC215", "interleaved-stages", MEGATRON, "narayanan2021")
def interleaved_stages(s: Subject) -> Iterator[Found]:
    """Interleaved stages take full groups of micro-batches, p or more, and L mod (p v) = 0.

    Micro-batches go through the chunks of a stage in groups of N, p unless said otherwise. Megatron
    refuses N outside p … m, and a remainder m mod N between 0 and p
    (``pipeline_parallel/schedules.py``); N = m always works from p on, at the activations of all m.
    Every chunk has L/(p v) layers, or the same with embedding or loss counted as a layer.

    Exceptions: none; plain 1F1B (``--virtual 1``) takes any number.
    """
    p, v, m = s.setting.pp, s.setting.virtual, s.setting.batch
    if v == 1:
        return
    if p == 1:
        yield Found("error", "virtual", f"{v} chunks a stage need more than one pipeline stage",
                    Fix(text="--virtual 1, or --pp 2 or more"))  # fmt: skip
        return
    layers = int(s.legal.n_layer)
    if all((layers + extra) % (p * v) for extra in (0, 1, 2)):
        good = [n for n in range(1, layers // p + 1) if layers % (p * n) == 0]
        most = f"--virtual {', '.join(map(str, good))}" if good else "layers that are"
        near = near_multiple(layers, p * v)
        yield Found("error", s.key("n_layer"), f"{layers} layers are no multiple of {p} stages × "
                    f"{v} chunks", Fix(text=f"{s.key('n_layer')} {near}, or {most}"))  # fmt: skip
    if m is None or m % p == 0:
        return
    near = near_multiple(m, p)
    if m < p:
        yield Found("error", "batch", f"{m} micro-batches are fewer than the {p} stages they are "
                    "interleaved over", Fix(text=f"--batch {p} or more"))  # fmt: skip
    else:
        yield Found("error", "batch", f"{m} micro-batches leave {m % p} over groups of {p}: the "
                    "interleaved schedule takes no remainder below a group",
                    Fix(text=f"--batch {near}, or groups of {m} micro-batches"))  # fmt: skip


@rule("SC216", "decode-context-parallel", VLLM)
def decode_context_parallel(s: Subject) -> Iterator[Found]:
    """Ranks share the cache of a sequence only where they would hold copies of it.

    With t ranks and K KV heads each head is held t/K times; decode context parallelism lets these
    copies hold different tokens instead. So vLLM asks t mod dcp = 0 and, of grouped attention,
    t > K, dcp ≤ ⌊t/K⌋ and (H/K) mod dcp = 0 (``config/model.py``, ``config/parallel.py``). A latent
    is one head: dcp up to t.

    Exceptions: engines that cut the cache otherwise (Helix, ring attention).
    """
    tp, dcp = s.setting.tp, s.setting.dcp
    if dcp == 1:
        return
    if s.latents and not s.attentions:
        good = [n for n in range(1, tp + 1) if tp % n == 0]
        if dcp not in good:
            yield Found("error", "dcp", f"DCP {dcp} does not divide TP {tp}", _dcp_fix(good))
        return
    for path, a in s.attentions:
        heads, kv = int(a.n_head), int(a.n_kv_head)
        good = [n for n in range(1, max(1, tp // kv) + 1)
                if tp % n == 0 and heads // kv % n == 0]  # fmt: skip
        if dcp in good:
            continue
        if tp <= kv:
            why = f"TP {tp} copies none of {kv} KV heads: nothing is there to share"
        elif dcp > tp // kv:
            why = f"TP {tp} holds each of {kv} KV heads {tp // kv} times, DCP {dcp} asks for more"
        elif tp % dcp:
            why = f"DCP {dcp} does not divide TP {tp}"
        else:
            why = f"DCP {dcp} does not divide the {heads // kv} query heads to a KV head"
        yield Found("error", "dcp", f"{path}: {why}", _dcp_fix(good))
        return


def _dcp_fix(good: list[int]) -> Fix:
    return Fix(text=f"--dcp {', '.join(map(str, good))}")
