"""The records every answer is a fold over: a weight tensor, a cache, one line of work."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from scantling.arith import Dim, Num, ceil_div, minimum, product, round_up, wide

Part = Literal[
    "embedding", "lm_head", "attention", "mixer", "ffn", "shared_experts", "experts", "router",
    "norm", "other",
]  # fmt: skip
PARTS: tuple[Part, ...] = Part.__args__  # type: ignore[attr-defined]

Kind = Literal["matmul", "attention", "lookup", "norm", "elementwise", "scan", "collective"]


class Tensor(Struct, frozen=True, kw_only=True):
    """One weight of the model, with its true shape.

    The shape is (out, in) as PyTorch keeps it. ``copies`` is how many equal ones the model holds,
    ``experts`` the routed experts among which a token passes ``top_k``.
    """

    name: str
    part: Part
    shape: tuple[Dim, ...]
    copies: Dim = 1
    experts: Dim | None = None
    top_k: Dim | None = None
    buffer: bool = False
    """In the checkpoint but not a parameter (DeepSeek-V3's load-balancing bias)."""
    alias: str | None = None
    """The tensor this one is another name of (a tied head): it adds no parameter."""

    def each(self) -> Dim:
        """Elements of one copy of one expert."""
        size = self.shape[0]
        for width in self.shape[1:]:
            size = size * width
        return size

    def size(self) -> Dim:
        """Elements in the model: each × copies × experts."""
        size = self.each() * self.copies
        return size if self.experts is None else size * self.experts

    def active(self) -> Dim:
        """Elements one token uses: each × copies × top_k."""
        size = self.each() * self.copies
        return size if self.top_k is None else size * self.top_k


class Cache(Struct, frozen=True, kw_only=True):
    """What a layer kind keeps for each sequence while it generates."""

    per_token: Dim = 0
    """Elements for each token of the context."""
    limit: Dim | None = None
    """Tokens kept at most: the window or the chunk."""
    state: Dim = 0
    """Elements of a recurrent state or of a convolution's last inputs: they do not grow."""
    cross: Dim = 0
    """Elements for each token of an encoder's output, which does not grow with the answer."""
    source: Num = 0
    """Tokens of that output."""
    expanded: Dim | None = None
    """Elements for each token where a latent is kept as the keys and values made of it."""
    copies: Dim = 1
    """Layers that keep one."""
    permille: Dim = 1000
    """Share of the tokens that reach the layer (mixture of depths)."""
    stride: Dim = 1
    """Tokens that share one entry (compressed attention); a part of them has none yet."""

    def tokens(self, context: Dim) -> Dim:
        """Tokens kept of a sequence of this length: windowed layers keep min(S, window)."""
        reaching = self.reaching(context)
        return reaching if self.limit is None else minimum(reaching, self.limit)

    def reaching(self, context: Dim) -> Dim:
        """Entries that a layer without a window keeps: one for ``stride`` tokens that reach it."""
        return ceil_div(context * self.permille, 1000) // self.stride

    def held(self, context: Dim) -> Num:
        """Elements of keys and values that a sequence of this length needs."""
        return self.keys_and_values(self.tokens(context))

    def allocated(self, context: Dim, page: int = 16) -> Num:
        """Elements an engine with one page size for all layers reserves: no window is used.

        Pages of 16 tokens are the default of vLLM.
        """
        return self.keys_and_values(round_up(self.reaching(context), page))

    def keys_and_values(self, tokens: Dim) -> Num:
        """Elements of so many tokens in all layers, and of an encoder's."""
        cross = product(self.cross, self.source, self.copies)
        return product(self.per_token, tokens, self.copies) + cross


class Op(Struct, frozen=True, kw_only=True):
    """One line of work: an (m × k) by (k × n) product, ``repeat`` times, or its like.

    In attention m is queries, n keys and k the width of a key plus that of a value, so that
    2 m n k counts both products. ``tensors`` are the weights used, the same objects that
    ``tensors(spec)`` lists.
    """

    name: str
    kind: Kind
    part: Part
    m: Num
    n: Num
    k: Num
    repeat: Num = 1
    times: Num = 1
    """Kernels launched: the occurrences in the model, each of which reads the weights."""
    tensors: tuple[Tensor, ...] = ()
    visible: Num | None = None
    """Pairs of m × n that carry work: in attention what the mask lets through, in a scan or a
    convolution what is no padding."""
    cache: Cache | None = None
    elements: Num = 0
    """Activation elements read and written for each of the m rows and each repeat."""
    backward: bool = False
    experts: Dim | None = None
    """Routed experts the product is spread over: ``repeat`` counts ``top_k`` of them a token."""
    top_k: Dim | None = None
    form: str = ""
    """Which of its like: a norm's kind, an activation's name, a router's scoring, a scan's rule; of
    attention what is special in its scores, in words: softcap, sinks, rope, alibi, relative,
    masked, causal."""

    def flops(self, convention: str = "full") -> Num:
        """Floating-point operations, 2 per multiply-add.

        ``full`` counts attention over all m × n pairs and scans with their padding, ``unpadded``
        scans without it, ``causal`` also attention over the visible pairs only. Lookups, norms
        and other elementwise work count zero, as in every public counter.
        """
        if self.kind not in {"matmul", "scan", "attention"}:
            return 0
        whole = convention == "full" or (convention == "unpadded" and self.kind == "attention")
        if whole or self.visible is None:
            return product(self.n, self.k, self.m, self.repeat, 2)
        return product(self.k, self.visible, self.repeat, 2)


def visible_pairs(queries: Dim, keys: Dim, limit: Dim | None, causal: bool) -> Num:
    """(query, key) pairs a mask lets through, queries aligned with the last keys.

    Causal, no window: the last of Q queries sees all K keys, the one before K − 1, …:
    Q K − Q (Q − 1) / 2. With a window w a query at position p sees min(p, w), so the pairs
    beyond it are taken off: of the K − w positions past the window each query at position
    p > w loses p − w, a sum over min(Q, K − w) consecutive numbers ending at K − w.

    Example:
        >>> visible_pairs(4, 4, None, causal=True), visible_pairs(4, 4, 2, causal=True)
        (10, 7)
        >>> visible_pairs(1, 100, None, causal=True), visible_pairs(4, 4, None, causal=False)
        (100, 16)
    """
    if not causal:
        return wide(queries) * keys
    pairs: Num = wide(queries) * keys - wide(queries) * (queries - 1) // 2
    if limit is None:
        return pairs
    beyond = keys - minimum(keys, limit)
    losing = minimum(queries, beyond)
    lost: Num = wide(losing) * beyond - wide(losing) * (losing - 1) // 2
    return pairs - lost


def chunked_pairs(queries: Dim, keys: Dim, chunk: Dim) -> Num:
    """Pairs of causal attention inside chunks: full chunks, then the cut one.

    A prefill of S tokens has S // c chunks of c (c + 1) / 2 pairs and a rest of r (r + 1) / 2.
    The keys before the queries' first (decode) are taken off as a prefill of their own.

    Example:
        >>> chunked_pairs(8, 8, 4), chunked_pairs(1, 6, 4)
        (20, 2)
    """

    def prefill(tokens: Dim) -> Num:
        whole: Any = tokens // chunk
        rest: Any = tokens % chunk
        full: Num = wide(whole) * (wide(chunk) * (chunk + 1) // 2)
        cut: Num = wide(rest) * (rest + 1) // 2
        return full + cut

    return prefill(keys) - prefill(keys - queries)


def symmetric_pairs(tokens: Dim, window: Dim) -> Num:
    """Pairs of attention without a causal mask, each query seeing window // 2 on both sides.

    Inside, 2 a + 1 keys with a = window // 2; the queries at both ends lose 1 + 2 + … + a each
    side: S (2 a + 1) − a (a + 1), with a at most S − 1.

    Example:
        >>> symmetric_pairs(5, 2), symmetric_pairs(3, 100)
        (13, 9)
    """
    reach = minimum(window // 2, tokens - 1)
    pairs: Num = wide(tokens) * (2 * reach + 1)
    lost: Num = wide(reach) * (reach + 1)
    return pairs - lost


__all__ = [
    "PARTS",
    "Cache",
    "Op",
    "Part",
    "Tensor",
    "chunked_pairs",
    "symmetric_pairs",
    "visible_pairs",
]
