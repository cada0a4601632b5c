"""What a forward pass needs beyond the spec: it changes no shape and no count."""

from __future__ import annotations

from msgspec import Struct


class Numerics(Struct, frozen=True, forbid_unknown_fields=True):
    """Small numbers of a class, and the multipliers of a parametrisation."""

    epsilon: float = 1e-6
    """Added to the variance in every norm."""
    routed_scale: float = 1.0
    """On the weights of routed experts (DeepSeek)."""
    renormalise: bool = True
    """Whether the weights of a token's experts sum to one before that."""
    limit: float | None = None
    """Clamp on the experts' gate and up products (gpt-oss), with 1 added to the latter."""
    steepness: float = 1.702
    """Of the sigmoid in a gate that is clamped."""
    capacity: float | None = None
    """Tokens an expert takes at most, as a multiple of the mean; None drops none."""
    residual: float = 1.0
    """On what each block adds to the stream (CompleteP: base depth / depth)."""
    logits: float = 1.0
    """On the logits (muP: base width / width)."""
    head_base: float | None = None
    """Head width at which muP's 1/h attention equals 1/√h; None is 1/√h at every width."""

    def attention_scale(self, d_head: int) -> float:
        """On the products of queries and keys.

        Example:
            >>> Numerics().attention_scale(64), Numerics(head_base=16.0).attention_scale(64)
            (0.125, 0.0625)
        """
        if self.head_base is None:
            return float(d_head**-0.5)
        return float(self.head_base**0.5 / d_head)
