"""Model FLOPs as Megatron-Bridge logs them: its own estimate, which rates published with it use.

A second derivation, from the spec and not from the operators. Forward, of a sequence of S tokens,
D wide; three times that in training:

    projections, feed-forward   2 per weight and token; of experts those a token passes
    head                        2 V D a token, and again for each pass of a prediction module
    attention                   S² / 2 pairs, not S (S + 1) / 2; a window's pairs exactly

Not counted: embeddings, routers, norms, hyper-connections, recomputation. Its estimates of other
mixers, kept as they are because published rates were divided by them:

- Mamba-2 is taken to be 2 D wide inside, whatever the config says, and its scan costs
  7 × 2 D × N a token (``num_floating_point_operations``, hybrid models).
- The gated delta rule costs k taps a channel and 4 products of the state's size a token.
- DeepSeek-V4 reads its whole window from the first token on, and its selector scores S // c
  entries at every token.
- Latent attention with a selector runs on the latent, on the positions the selector chose; the
  selector itself has a forward pass and no other.

Until the releases of June 2026 it counted less: the attention of a window as if there were none, no
gate matrix but SiLU's (gpt-oss gates with x σ(1.702 x), so its experts counted two matrices of
three), no gate on attention's output, and a layer of the gated delta rule as one of attention
(corrected in its pull requests 2925, 3029 and 3947). Rates printed before were divided by that.

Prediction modules (MTP) repeat the last layer behind a product of 2 D × D; where layers hold one
module each, as in Nemotron-H, they are one layer of attention and one of feed-forward without it.
The head's vocabulary is not padded: no more than 0.1 % where it is a multiple of 128.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, Num, minimum, wide
from scantling.errors import FieldError
from scantling.ops import visible_pairs
from scantling.spec import (
    Chunk,
    CompressedAttention,
    Dense,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    KimiDelta,
    LatentAttention,
    Layer,
    Mamba2,
    Spec,
    Window,
)

Module = Any
"""A mixer or a feed-forward."""
SCAN = 7
"""FLOPs of Mamba-2's scan for each number of its state."""
STATE_PRODUCTS = 4
"""Products of the size of the state that a token costs under a delta rule."""
CORRECTED = "26.06"
"""The first release taken to count as today; branches were cut weeks before, so it may be the one
before for windows and delta rules."""


class Accounting(Struct, frozen=True):
    """What is counted as what it is; each false was so until it was corrected."""

    windows: bool = True
    """A window's pairs; false: those of full attention."""
    gates: bool = True
    """Gate matrices of every activation; false: of SiLU alone."""
    delta: bool = True
    """Delta rules and gates on attention's output; false: plain attention in their place."""


TODAY = Accounting()
EARLY = Accounting(windows=False, gates=False, delta=False)


def accounting(release: str) -> Accounting:
    """What a release counted, by its year and month.

    Example:
        >>> accounting("26.02.01").windows, accounting("26.08").windows
        (False, True)
    """
    return TODAY if release >= CORRECTED else EARLY


def megatron_flops(spec: Spec, context: Dim, mtp_passes: int = 0, how: Accounting = TODAY) -> Num:
    """FLOPs of one sequence in training, forward and backward.

    Args:
        spec: A decoder, or a column of them.
        context: Tokens of the sequence.
        mtp_passes: Runs of the modules that predict later tokens (``Loaded.mtp_passes``).
        how: What the release in question counted (``accounting``).

    Raises:
        FieldError: If a part of the model has no formula there.

    Example:
        >>> from scantling import catalog
        >>> megatron_flops(catalog.model("llama-3-8b"), 8192) / 8192 / 1e9
        51.470401536
    """
    if spec.encoder is not None:
        raise _unknown("an encoder")
    total: Any = 0
    for name, times in spec.decoder.occurrences().items():
        layer = _seen(spec.decoder.kind(name), spec, how)
        total = total + times * _layer(layer, spec.d_model, context)
    for layer in _predictor(spec) if mtp_passes else ():
        total = total + mtp_passes * _layer(_seen(layer, spec, how), spec.d_model, context)
    if mtp_passes and not _single(spec):
        joined = 2 * wide(spec.d_model) * (2 * spec.d_model + 3)
        total = total + mtp_passes * context * joined
    head = 2 * wide(spec.vocab_size) * spec.d_model * (1 + mtp_passes)
    training: Num = 3 * (total + context * head)
    return training


def _unknown(what: str) -> FieldError:
    rule = f"has no formula for {what}"
    return FieldError("flops", "megatron", rule, "use causal")


def _layer(layer: Layer, d: Dim, s: Dim) -> Any:
    """Forward FLOPs of one layer on a sequence."""
    total: Any = 0
    for block in layer.blocks:
        for branch in block.branches:
            formula = FORMULAS.get(type(branch.module))
            if formula is None:
                raise _unknown(type(branch.module).__name__)
            total = total + formula(branch.module, wide(d), s)
    return total


def _single(spec: Spec) -> bool:
    """Whether every layer is one module."""
    return all(
        len(layer.blocks) == 1 and len(layer.blocks[0].branches) == 1 for layer in _kinds(spec)
    )


def _kinds(spec: Spec) -> list[Layer]:
    return [spec.decoder.kind(name) for name in spec.decoder.occurrences()]


def _predictor(spec: Spec) -> list[Layer]:
    """The layers of one prediction module."""
    if not _single(spec):
        pattern = spec.decoder.layout[-1].pattern
        name = pattern[0] if len(pattern) == 1 else spec.decoder.expand()[-1]
        return [_windowed(spec.decoder.kind(name))]
    attention = GroupedAttention | LatentAttention
    mixers = [k for k in _kinds(spec) if isinstance(k.blocks[0].branches[0].module, attention)]
    feeds = [k for k in _kinds(spec) if isinstance(k.blocks[0].branches[0].module, Dense | Experts)]
    return mixers[-1:] + feeds[-1:]


def _windowed(layer: Layer) -> Layer:
    """The layer without compressed entries: DeepSeek-V4's prediction module reads a window."""

    def change(module: Module) -> Module:
        if isinstance(module, CompressedAttention):
            return replace(module, compress=None, indexer=None)
        return module

    return _changed(layer, change)


def _seen(layer: Layer, spec: Spec, how: Accounting) -> Layer:
    """The layer as a release saw it."""
    if how == TODAY:
        return layer
    attention = [
        b.module for k in _kinds(spec) for block in k.blocks for b in block.branches
        if isinstance(b.module, GroupedAttention)
    ]  # fmt: skip

    def change(module: Module) -> Module:
        if isinstance(module, GatedDelta) and not how.delta and attention:
            module = attention[-1]
        if isinstance(module, GroupedAttention):
            gate = module.gate if how.delta else None
            return replace(module, gate=gate, span=module.span if how.windows else Full())
        if isinstance(module, Dense | Experts) and not how.gates and not _silu(module):
            return replace(module, gated=False)
        return module

    return _changed(layer, change)


def _silu(module: Dense | Experts) -> bool:
    """Whether the gate is SiLU's; gpt-oss's experts, the ones with biases, only name it so."""
    return module.activation == "silu" and not (isinstance(module, Experts) and module.bias)


def _changed(layer: Layer, change: Callable[[Module], Module]) -> Layer:
    blocks = tuple(
        replace(block, branches=tuple(replace(b, module=change(b.module)) for b in block.branches))
        for block in layer.blocks
    )
    return replace(layer, blocks=blocks)


def _double_pairs(s: Any, limit: Dim | None, *, causal: bool = True) -> Any:
    """Twice the pairs of a sequence: S² where the mask is causal and there is no window."""
    if not causal:
        return 2 * wide(s) * s
    if limit is None:
        return wide(s) * s
    return 2 * visible_pairs(s, s, minimum(limit, s), causal=True)


def _grouped(a: GroupedAttention, d: Any, s: Any) -> Any:
    """Projections, and both products of each pair of each head."""
    if a.cross or a.selector is not None:
        raise _unknown("attention to an encoder" if a.cross else "a selector of blocks")
    value = a.d_head if a.d_value is None else a.d_value
    out = a.n_head * value
    width = a.n_head * a.d_head + out
    if not a.shares_kv:
        width = width + a.n_kv_head * a.d_head
        width = width if a.key_is_value else width + a.n_kv_head * value
    if a.gate is not None:
        width = width + (out if a.gate == "element" else a.n_head)
    limit = a.span.window if isinstance(a.span, Window) else None
    limit = a.span.chunk if isinstance(a.span, Chunk) else limit
    pairs = _double_pairs(s, limit, causal=a.causal)
    return 2 * d * width * s + pairs * (a.n_head * (a.d_head + value))


def _latent(a: LatentAttention, d: Any, s: Any) -> Any:
    """Down, up, core and out; with a selector the core runs on the latent."""
    query = a.n_head * (a.d_nope + a.d_rope)
    q = d * query if a.q_rank is None else a.q_rank * (d + query)
    kv = a.kv_rank * (d + a.n_head * (a.d_nope + a.d_value)) + d * a.d_rope
    linear = q + kv + d * a.n_head * a.d_value
    if a.indexer is None:
        core = _double_pairs(s, None) * (query + a.n_head * a.d_value)
        return 2 * linear * s + core
    i = a.indexer
    core = _double_pairs(s, i.index_top_k) * (a.n_head * (2 * a.kv_rank + a.d_rope))
    inner = d if a.q_rank is None else a.q_rank
    chosen = 2 * s * (i.n_index_head * (inner * i.d_index + d) + d * i.d_index)
    scores = _double_pairs(s, None) * (i.n_index_head * (i.d_index + 1))
    # Only forward: a third of what a product trained like the others costs.
    return 2 * linear * s + core + (chosen + scores) // 3


def _compressed(a: CompressedAttention, d: Any, s: Any) -> Any:
    """DeepSeek-V4: the window in full at every token, and of the entries what is read."""
    query = a.n_head * a.d_head
    linear = a.q_rank * (d + query) + d * a.d_head + (query + a.n_out_group * d) * a.out_rank
    reads = 2 * query * wide(a.window) * s
    if a.compress is not None:
        each = 2 * a.d_head if a.overlap else a.d_head
        linear = linear + 2 * d * each
        entries = s // a.compress
        if a.indexer is None:
            reads = reads + query * entries * s
        else:
            i = a.indexer
            top = minimum(i.index_top_k, entries)
            reads = reads + 2 * query * (top * s - top * top * a.compress // 2)
            own = 4 * d * i.d_index + a.q_rank * i.n_index_head * i.d_index + d * i.n_index_head
            linear = linear + own + i.n_index_head * i.d_index * entries
    return 2 * linear * s + 2 * reads


def _mamba2(m: Mamba2, d: Any, s: Any) -> Any:
    inner = 2 * d
    wide_in = 2 * inner + 2 * m.n_group * m.d_state + m.n_ssm_head
    return s * (2 * d * wide_in + SCAN * inner * m.d_state + 2 * inner * d)


def _gated_delta(g: GatedDelta, d: Any, s: Any) -> Any:
    key, value = g.n_key_head * g.d_key, g.n_value_head * g.d_state_value
    projections = d * (2 * key + 3 * value + 2 * g.n_value_head)
    state = STATE_PRODUCTS * g.n_value_head * g.d_state_value * g.d_state_value
    return 2 * s * (projections + g.d_conv * (2 * key + value) + state)


def _kimi_delta(k: KimiDelta, d: Any, s: Any) -> Any:
    width = k.n_delta_head * k.d_delta
    gate = d * width if k.gate_rank is None else k.gate_rank * (d + width)
    state = STATE_PRODUCTS * k.n_delta_head * k.d_delta * k.d_delta
    projections = d * (4 * width + k.n_delta_head) + 2 * gate
    return 2 * s * (projections + k.d_conv * 3 * width + state)


def _dense(f: Dense, d: Any, s: Any) -> Any:
    return 2 * d * f.d_ff * (3 if f.gated else 2) * s


def _experts(f: Experts, d: Any, s: Any) -> Any:
    """Those a token passes, the shared ones, and the way to a narrower width and back."""
    matrices = 3 if f.gated else 2
    inner = d if f.d_latent is None else f.d_latent
    each = matrices * wide(f.d_expert) * f.top_k * inner
    if f.d_latent is not None:
        each = each + 2 * d * f.d_latent
    if f.shared is not None:
        each = each + matrices * d * f.shared.d_shared
    return 2 * each * s


FORMULAS: dict[type, Callable[[Any, Any, Any], Any]] = {
    GroupedAttention: _grouped,
    LatentAttention: _latent,
    CompressedAttention: _compressed,
    Mamba2: _mamba2,
    GatedDelta: _gated_delta,
    KimiDelta: _kimi_delta,
    Dense: _dense,
    Experts: _experts,
}
