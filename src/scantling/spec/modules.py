"""The parts of a layer: mixers, feed-forwards, norms, positions, residuals.

Variants are types, so illegal states cannot be written. Types, booleans, strings, floats, ``None``
and tuple lengths are *structure*; every field of type ``Dim`` is a *dimension*, an int in a spec
and an int64 array in a column spec. Constructors are unchecked (a sweep builds thousands);
``scantling.spec.check`` validates.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from scantling.arith import Dim
from scantling.spec.positions import (
    Full,
    Norm,
    Position,
    Span,
)

# ---------------------------------------------------------------- attention


class QKNorm(Struct, frozen=True, tag="qk_norm", forbid_unknown_fields=True):
    """Norms of queries and keys: one of ``d_head`` for all heads, one per head, or full width."""

    scope: Literal["head", "each_head", "width"] = "head"
    norm: Norm = Norm()


class GroupedAttention(Struct, frozen=True, tag="attention", forbid_unknown_fields=True):
    """Softmax attention with H query heads sharing K key-value heads (MHA, GQA, MQA).

    ``n_head * d_head`` is free of ``d_model``: Qwen3-0.6B has 16 × 128 at width 1024.
    """

    n_head: Dim
    n_kv_head: Dim
    d_head: Dim
    d_value: Dim | None = None
    """Width of a value head where it is not ``d_head``."""
    qkv_bias: bool = False
    key_bias: bool = True
    """Whether the key's projection has a bias where ``qkv_bias`` says so; Whisper's has none."""
    out_bias: bool = False
    qk_norm: QKNorm | None = None
    position: Position = None
    span: Span = Full()
    causal: bool = True
    cross: bool = False
    """Keys and values come from the encoder."""
    sinks: bool = False
    """One learned logit per head (gpt-oss)."""
    out_norm: Norm | None = None
    """On the heads' output, before the output projection (BitNet)."""
    gate: Literal["head", "element"] | None = None
    """A sigmoid gate on the output, one value per head or per element."""
    shares_kv: bool = False
    """Reads the keys and values of an earlier layer: no projection, no cache of its own."""
    key_is_value: bool = False
    """One projection serves as key and value (Gemma 4)."""
    softcap: float | None = None
    scale: float | None = None
    """Factor on the logits where it is not 1/sqrt(d_head)."""
    d_input: Dim | None = None
    """Width of the input where it is not ``d_model`` (Zamba concatenates two)."""
    adapter_rank: Dim | None = None
    """Rank of the low-rank addition to q, k and v that each use of shared weights has (Zamba 2)."""
    value_norm: Norm | None = None
    """On each value head (Gemma 3n, Gemma 4); what ``key_is_value`` projects once is then kept
    twice."""
    selector: BlockSelector | None = None


class BlockSelector(Struct, frozen=True, tag="block_selector", forbid_unknown_fields=True):
    """MiniMax-M3's sparse selector: small heads choose blocks of keys for each query."""

    n_index_head: Dim
    d_index: Dim
    index_block: Dim
    index_top_k: Dim
    """Blocks a query reads."""
    n_local_block: int = 1
    """How many of them are those just before the query, whatever their scores."""
    norm: Norm = Norm()


class Indexer(Struct, frozen=True, tag="indexer", forbid_unknown_fields=True):
    """DeepSeek's sparse selector: small heads choose the ``top_k`` positions attention reads."""

    n_index_head: Dim
    d_index: Dim
    index_top_k: Dim


class LatentAttention(Struct, frozen=True, tag="latent", forbid_unknown_fields=True):
    """Multi-head latent attention: the cache holds ``kv_rank + d_rope`` numbers per token."""

    n_head: Dim
    kv_rank: Dim
    d_nope: Dim
    d_rope: Dim
    d_value: Dim
    q_rank: Dim | None = None
    qkv_bias: bool = False
    """Bias on the two down projections."""
    out_bias: bool = False
    norm: Norm = Norm()
    position: Position = None
    span: Span = Full()
    indexer: Indexer | None = None
    gate: bool = False
    """A sigmoid gate on the output, one value per head (Ling 2.5)."""
    scale: float | None = None


class CompressedAttention(Struct, frozen=True, tag="compressed", forbid_unknown_fields=True):
    """DeepSeek-V4: queries through a narrow width, one vector as key and value of all heads.

    Each query sees a window and, with ``compress``, one entry for every so many tokens.
    """

    n_head: Dim
    d_head: Dim
    q_rank: Dim
    n_out_group: Dim
    """Groups of heads, each with its own projection to ``out_rank`` before the last one."""
    out_rank: Dim
    window: Dim
    compress: Dim | None = None
    """Tokens an entry stands for."""
    overlap: bool = False
    """An entry is made of two stretches, and has two vectors a token to be made of."""
    indexer: Indexer | None = None
    """Chooses the entries a query reads; it scores entries of its own."""
    norm: Norm = Norm()
    position: Position = None


# ---------------------------------------------------------------- recurrent mixers


class LinearAttention(Struct, frozen=True, tag="linear", forbid_unknown_fields=True):
    """Lightning attention: a fixed ``d_head × d_head`` state per head, an output gate, a norm."""

    n_head: Dim
    d_head: Dim
    gated: bool = True
    norm: Norm | None = Norm()
    stored_decay: bool = False
    """The decays within a block are buffers of the checkpoint (MiniMax)."""
    scan_chunk: Dim = 256
    """Tokens whose pairs are worked out at once in a prefill; also in the mixers below."""


class GatedDelta(Struct, frozen=True, tag="gated_delta", forbid_unknown_fields=True):
    """Gated delta rule (Qwen3-Next): q, k, v, z, a decay and a write strength per value head."""

    n_key_head: Dim
    n_value_head: Dim
    d_key: Dim
    d_state_value: Dim
    d_conv: Dim
    norm: Norm = Norm()
    scan_chunk: Dim = 64


class KimiDelta(Struct, frozen=True, tag="kimi_delta", forbid_unknown_fields=True):
    """Kimi delta attention: the delta rule with a decay per channel, through a narrow gate."""

    n_delta_head: Dim
    d_delta: Dim
    d_conv: Dim
    gate_rank: Dim | None = None
    """Width between the two matrices of the forget gate and the output gate; None is one matrix."""
    norm: Norm = Norm()
    scan_chunk: Dim = 64


class Mamba1(Struct, frozen=True, tag="mamba1", forbid_unknown_fields=True):
    """Selective state space with a state of ``d_inner × d_state``."""

    d_inner: Dim
    d_state: Dim
    d_conv: Dim
    dt_rank: Dim
    conv_bias: bool = True
    bias: bool = False
    inner_norm: Norm | None = None
    """On each of dt, B and C (Jamba; Falcon-Mamba without weights)."""
    n_select_head: Dim | None = None
    """Heads that choose dt, B and C from their own channels (Zamba)."""


class Mamba2(Struct, frozen=True, tag="mamba2", forbid_unknown_fields=True):
    """State space duality: heads of ``d_inner / n_ssm_head``, one decay per head."""

    d_inner: Dim
    n_ssm_head: Dim
    n_group: Dim
    d_state: Dim
    d_conv: Dim
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: Norm | None = Norm()
    scan_chunk: Dim = 256


class Rwkv(Struct, frozen=True, tag="rwkv", forbid_unknown_fields=True):
    """RWKV-4 time mixing: decay, bonus and three token-shift mixes per channel."""

    d_attention: Dim


class RgLru(Struct, frozen=True, tag="rglru", forbid_unknown_fields=True):
    """Griffin's recurrent block: two input branches, a short convolution, block-diagonal gates."""

    d_rnn: Dim
    n_gate_block: Dim
    d_conv: Dim


class ShortConv(Struct, frozen=True, tag="short_conv", forbid_unknown_fields=True):
    """LFM2's gated short convolution."""

    d_conv: Dim
    bias: bool = False


class TokenConv(Struct, frozen=True, tag="token_conv", forbid_unknown_fields=True):
    """A convolution over neighbouring tokens and all channels (DeBERTa-v2, beside its layer 1)."""

    d_conv: Dim
    activation: str = "tanh"


class Projection(Struct, frozen=True, tag="projection", forbid_unknown_fields=True):
    """One matrix of the stream's width (Zamba, behind its shared block); counts as other."""


class Laurel(Struct, frozen=True, tag="laurel", forbid_unknown_fields=True):
    """Learned augmented residual, beside attention (Gemma 3n): two matrices through a low rank.

    Its input is added to its output, and the sum of the block is divided by sqrt 2.
    """

    rank: Dim


class PerLayerInput(Struct, frozen=True, tag="per_layer", forbid_unknown_fields=True):
    """A layer's own embedding of the token enters the stream, gated by the stream (Gemma 3n).

    Down to ``d_per_layer``, activation, times the embedding, up; under AltUp it is added to the
    streams that the layer does not work on. The tables are ``Embeddings.per_layer``.
    """

    d_per_layer: Dim
    activation: str = "gelu_pytorch_tanh"


Mixer: TypeAlias = (
    GroupedAttention
    | LatentAttention
    | CompressedAttention
    | LinearAttention
    | GatedDelta
    | KimiDelta
    | Mamba1
    | Mamba2
    | Rwkv
    | RgLru
    | ShortConv
    | TokenConv
    | Projection
    | Laurel
    | PerLayerInput
)


# ---------------------------------------------------------------- feed-forward


class Dense(Struct, frozen=True, tag="dense", forbid_unknown_fields=True):
    """A feed-forward of width F: two matrices, three when gated."""

    d_ff: Dim
    gated: bool = True
    activation: str = "silu"
    in_bias: bool = False
    out_bias: bool = False
    inner_norm: Norm | None = None
    """On the hidden width, before the down projection (BitNet)."""
    shared: bool = False
    """The shared expert of a type whose config routes to none (Granite 4 dense): counted there."""
    adapter_rank: Dim | None = None
    """Rank of the low-rank addition to the up product that each use of shared weights has."""
    sparsity: float = 0.0
    """Share of the gate that a cut-off at its own mean and deviation sets to 0 (Gemma 3n)."""
    ff_rank: Dim | None = None
    """Rank of each matrix where it is kept as a product of two (a feed-forward cut by SVD)."""


class ChannelMix(Struct, frozen=True, tag="channel_mix", forbid_unknown_fields=True):
    """RWKV-4's feed-forward: two token-shift mixes, squared ReLU, a receptance of width D."""

    d_ff: Dim


class SharedExpert(Struct, frozen=True, tag="shared", forbid_unknown_fields=True):
    """Experts every token passes, as one feed-forward of their summed width."""

    d_shared: Dim
    gate: bool = False
    """A learned scalar gate (Qwen2-MoE); its weights count as router."""
    bias: bool = False


class Router(Struct, frozen=True, tag="router", forbid_unknown_fields=True):
    """One logit per expert from the hidden state."""

    scoring: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    bias: bool = False
    correction: Literal["buffer", "parameter"] | None = None
    """A load-balancing bias: a buffer (DeepSeek-V3), or a parameter of the FFN (AFMoE)."""
    n_expert_group: Dim | None = None
    top_k_group: Dim | None = None
    norm: Norm | None = None
    """Its own, on the stream, in place of the experts' (Gemma 4); counts as router."""
    expert_scale: bool = False
    """One learned factor per expert on its weight (Gemma 4); counts as router."""
    hashed: bool = False
    """A table says which experts each token of the vocabulary passes; logits only weigh them."""


class Experts(Struct, frozen=True, tag="experts", forbid_unknown_fields=True):
    """E routed feed-forwards of which each token passes ``top_k``."""

    n_expert: Dim
    top_k: Dim
    d_expert: Dim
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    router: Router = Router()
    shared: SharedExpert | None = None
    d_latent: Dim | None = None
    """Width the experts work in where it is not ``d_model``."""
    latent_bias: bool = False
    n_zero: Dim | None = None
    """Experts beside them that hand back their input: the router knows them, they cost nothing.
    Counts take ``top_k`` of the others, the most that a token can pass."""
    delayed: bool = False
    """The output joins the stream one layer later (LongCat's shortcut)."""


FeedForward: TypeAlias = Dense | ChannelMix | Experts


# ---------------------------------------------------------------- residual stream


class Plain(Struct, frozen=True, tag="plain", forbid_unknown_fields=True):
    """x + scale * f(x)."""

    scale: float = 1.0


class DeepNorm(Struct, frozen=True, tag="deep_norm", forbid_unknown_fields=True):
    """alpha * x + f(x), normed after (Wang et al. 2022)."""

    alpha: float


class HyperConnections(Struct, frozen=True, tag="hyper", forbid_unknown_fields=True):
    """n parallel residual streams with learned mixing (Zhu et al. 2024)."""

    n_stream: Dim
    dynamic: bool = True
    constrained: bool = False
    """One product of all streams gives every weight, and the mix of streams is made doubly
    stochastic; a last mix makes one stream before the final norm (DeepSeek-V4)."""


class MixtureOfDepths(Struct, frozen=True, tag="mod", forbid_unknown_fields=True):
    """A router lets only a share of the tokens through the block (Raposo et al. 2024)."""

    capacity_permille: Dim
    """Tokens that pass, in thousandths of the context: 125 is the paper's 12.5 %."""


class Handed(Struct, frozen=True, tag="handed", forbid_unknown_fields=True):
    """f(x) is not added: the next block reads it, beside the stream at the end (Zamba)."""


Residual: TypeAlias = Plain | DeepNorm | HyperConnections | MixtureOfDepths | Handed


# ---------------------------------------------------------------- layers


class Branch(Struct, frozen=True, forbid_unknown_fields=True):
    """One module beside others of its block, with its own norms where it has them."""

    module: Mixer | FeedForward
    pre: Norm | None = None
    post: Norm | None = None
    copies: Dim | None = None
    """Distinct weight sets over all occurrences (ALBERT 1, Zamba 1 or 2); None is one each."""

    @property
    def name(self) -> str:
        """What the module is, in names of tensors and in errors."""
        module = self.module
        if isinstance(module, Dense | ChannelMix | Experts):
            return "ffn"
        if isinstance(module, GroupedAttention) and module.cross:
            return "cross_attention"
        attention = GroupedAttention | LatentAttention | CompressedAttention
        return "attention" if isinstance(module, attention) else "mixer"


class Block(Struct, frozen=True, forbid_unknown_fields=True):
    """Branches side by side around one residual, with shared norms where they have them."""

    branches: tuple[Branch, ...]
    pre: Norm | None = None
    post: Norm | None = None
    """On the output, before it is added."""
    after: Norm | None = None
    """On the stream, after it is added (the original post-norm)."""
    residual: Residual = Plain()


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """A named kind of layer: one to many residual blocks in order."""

    name: str
    blocks: tuple[Block, ...]
    stored_scale: bool = False
    """One factor on the stream behind the layer, a buffer of the checkpoint (Gemma 4)."""


class AltUp(Struct, frozen=True, tag="altup", forbid_unknown_fields=True):
    """Alternating updates (Baykal et al. 2023): n streams, of which a layer works on the first.

    Before each layer all streams are predicted from one another, after it they are corrected by
    what the layer changed; a small router says how. Matrices make the streams and merge them.
    """

    n_stream: Dim
    norm: Norm = Norm()
    """Before the router."""
