"""What a law may know of a model: plain numbers, or plain columns of numbers.

A law never sees a spec; the costs measure one and hand over these.
The three logarithms and exponentials below are the only transcendental functions of the laws.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from scantling.arith import Num, is_array


class Features(Struct, frozen=True, kw_only=True):
    """Size, shape and tokens of one model, or of a column of models.

    Unchecked: every number is above zero, and arrays have equal lengths or are single numbers.
    ``None`` is structure, as everywhere: a model without attention heads of one width, without KV
    heads to group, or without dense attention and feed-forward parameters has no such feature,
    and a term that needs it is left out.

    Args:
        body: Parameters without embeddings and head.
        total: All unique parameters.
        width: ``d_model`` D.
        depth: ``n_layer`` L.
        tokens: Training tokens.
        d_head: Head width h.
        n_head: Query heads H.
        n_kv_head: KV heads K.
        mlp_parameters: Feed-forward parameters, all layers.
        attention_parameters: Attention parameters, all layers.
        vocab_size: Vocabulary V.
        unique_tokens: Unique tokens among the training tokens; all of them where absent.
        n_experts: Routed experts E.
        granularity: Dense feed-forward width over the width of one expert, G.
        active_share: Experts a token visits over all experts, K/E.
        all_parameters: Parameters with all experts; ``total`` has those of one token.
        all_body: Body with all experts; ``body`` has that of one token.
        context: Tokens of a training sequence S.
        tied: One where the head is the embedding's table.
        embedding_rank: Width of a factorised token table over D.
        reuse: Body a token passes over the body stored, where layers share weights.
        kv_pair_share: Attention layers that read the keys and values of the layer before, over all
            attention layers, where layers share in pairs.
        kv_chain_share: The same where three or more layers share.
        window: Sliding window w of the local layers, in tokens.
        sinks: One where the local layers have a learned sink.
        local_share: Local layers over attention layers.
        rotary_fraction: Share of a head that is rotated, over the layers with rotary positions.
        nope_share: Attention layers without any position over attention layers.
        latent_share: Layers of latent attention over attention layers.
        kv_rank: Rank of the KV latent.
        q_rank: Rank of the query latent.
        gate_share: Attention layers with a gate on their output over attention layers.
        no_qk_norm_share: Grouped attention without a norm of queries and keys, likewise.
        attention_share: Attention over all mixers, where some are recurrent.
        ungated_share: Ungated feed-forwards with ReLU, GELU or Swish over all feed-forwards.
        relu_share: Those with ReLU, likewise.
        squared_relu_share: Ungated feed-forwards with squared ReLU, likewise.
        layer_norm_share: Blocks with LayerNorm over blocks with a norm.
        sandwich_share: Blocks with a norm before and behind the module, likewise.
        parallel_share: Layers with a mixer and a feed-forward side by side over all layers.
        n_shared_experts: Width of the shared expert over the width of a routed one.
        no_shared_expert: Routed feed-forwards without a shared expert over all that route.
        dense_first_share: Dense layers before the first with experts over all layers.
        weight_bits: Bits of a weight in training; 16 or more where absent, as with the next three.
        activation_bits: Bits of an activation in training.
        kv_bits: Bits of a cached key or value in training.
        served_bits: Bits that the weights are quantized to after training.

    Example:
        >>> f = Features(body=6_979_588_096, total=8_030_261_248, width=4096, depth=32,
        ...              tokens=15e12, d_head=128, n_head=32, n_kv_head=8,
        ...              mlp_parameters=5_637_144_576, attention_parameters=1_342_177_280)
        >>> f.aspect, f.kv_group, f.attention_width_ratio, round(f.mlp_attention_ratio, 2)
        (128.0, 4.0, 1.0, 4.2)
    """

    body: Num
    total: Num
    width: Num
    depth: Num
    tokens: Num
    d_head: Num | None = None
    n_head: Num | None = None
    n_kv_head: Num | None = None
    mlp_parameters: Num | None = None
    attention_parameters: Num | None = None
    vocab_size: Num | None = None
    unique_tokens: Num | None = None
    n_experts: Num | None = None
    granularity: Num | None = None
    active_share: Num | None = None
    all_parameters: Num | None = None
    all_body: Num | None = None
    context: Num | None = None
    tied: Num | None = None
    embedding_rank: Num | None = None
    reuse: Num | None = None
    kv_pair_share: Num | None = None
    kv_chain_share: Num | None = None
    window: Num | None = None
    sinks: Num | None = None
    local_share: Num | None = None
    rotary_fraction: Num | None = None
    nope_share: Num | None = None
    latent_share: Num | None = None
    kv_rank: Num | None = None
    q_rank: Num | None = None
    gate_share: Num | None = None
    no_qk_norm_share: Num | None = None
    attention_share: Num | None = None
    ungated_share: Num | None = None
    relu_share: Num | None = None
    squared_relu_share: Num | None = None
    layer_norm_share: Num | None = None
    sandwich_share: Num | None = None
    parallel_share: Num | None = None
    n_shared_experts: Num | None = None
    no_shared_expert: Num | None = None
    dense_first_share: Num | None = None
    weight_bits: Num | None = None
    activation_bits: Num | None = None
    kv_bits: Num | None = None
    served_bits: Num | None = None

    @property
    def aspect(self) -> Num:
        """Width over depth, W/L."""
        return self.width / self.depth

    @property
    def kv_group(self) -> Num | None:
        """Query heads that share a KV head, g = H/K."""
        if self.n_head is None or self.n_kv_head is None:
            return None
        return self.n_head / self.n_kv_head

    @property
    def attention_width_ratio(self) -> Num | None:
        """Width of all query heads over the width of the model, H h/D."""
        if self.n_head is None or self.d_head is None:
            return None
        return self.n_head * self.d_head / self.width

    @property
    def mlp_attention_ratio(self) -> Num | None:
        """Feed-forward over attention parameters, r."""
        if self.mlp_parameters is None or self.attention_parameters is None:
            return None
        return self.mlp_parameters / self.attention_parameters

    @property
    def bare_window(self) -> Num | None:
        """The window of local layers that have no sink."""
        return self.window if self.sinks is None else None

    @property
    def sunk_window(self) -> Num | None:
        """The window of local layers with a learned sink."""
        return None if self.sinks is None else self.window

    @property
    def context_windows(self) -> Num | None:
        """Windows in a training sequence, S/w."""
        if self.context is None or self.window is None:
            return None
        return self.context / self.window

    @property
    def shortened_share(self) -> Num | None:
        """Layers whose window is shorter than the sequence, over attention layers."""
        windows = self.context_windows
        if self.local_share is None or windows is None:
            return self.local_share
        return self.local_share * (windows > 1)

    @property
    def latent_rank_share(self) -> Num | None:
        """Rank of the KV latent over the width of the model."""
        return None if self.kv_rank is None else self.kv_rank / self.width

    @property
    def q_rank_share(self) -> Num | None:
        """Rank of the query latent over the width of the model."""
        return None if self.q_rank is None else self.q_rank / self.width

    @property
    def tied_table_share(self) -> Num | None:
        """The table of a tied model over its parameters, V D/N."""
        if self.tied is None or self.vocab_size is None:
            return None
        everything = self.total if self.all_parameters is None else self.all_parameters
        return self.vocab_size * self.width / everything


def log(value: Num) -> Num:
    """The natural logarithm of a number, or elementwise of an array.

    Example:
        >>> log(1)
        0.0
    """
    if is_array(value):
        import numpy as np

        return np.log(value)
    return math.log(value)


def exp(value: Num) -> Num:
    """The exponential of a number, or elementwise of an array.

    Example:
        >>> exp(0)
        1.0
    """
    if is_array(value):
        import numpy as np

        return np.exp(value)
    return math.exp(value)


def square_root(value: Num) -> Num:
    """The square root of a number, or elementwise of an array.

    Example:
        >>> square_root(9)
        3.0
    """
    if is_array(value):
        import numpy as np

        return np.sqrt(value)
    return math.sqrt(value)


def inside(value: Num, low: float | None, high: float | None) -> Any:
    """Whether a value lies in a closed range; an open end is ``None``.

    Example:
        >>> inside(4, 4, None), inside(9, 1, 8)
        (True, False)
    """
    above = True if low is None else value >= low
    below = True if high is None else value <= high
    return above & below


def beyond(value: Num, low: float, high: float) -> Num:
    """How many times a value lies beyond the nearer end of a range; 1 inside it.

    Example:
        >>> beyond(3e9, 1e8, 1e9), beyond(5e8, 1e8, 1e9), beyond(5e7, 1e8, 1e9)
        (3.0, 1.0, 2.0)
    """
    if is_array(value):
        import numpy as np

        return np.maximum(np.maximum(value / high, low / value), 1.0)
    return max(value / high, low / value, 1.0)
