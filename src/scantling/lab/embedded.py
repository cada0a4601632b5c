"""What comes before the first layer and behind the last of the lab's model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.augmented import OwnTables, Stem
from scantling.lab.parts import Fused, Named, activation, maybe, waves
from scantling.spec import Embeddings, Head


class Embedded(nn.Module):
    """What comes before the first layer but for the table of tokens, which stacks share."""

    def __init__(self, e: Embeddings, d_model: int, epsilon: float, n_layer: int) -> None:
        super().__init__()
        self.e, width = e, d_model if e.d_embed is None else int(e.d_embed)
        self.stem = None if e.audio is None else Stem(e.audio, d_model)
        self.position = self.token_type = self.own = None
        self.narrow = e.position is not None and (e.position.narrow or e.d_embed is None)
        """Whether positions are added before a projection."""
        if e.position is not None:
            wide = width if e.position.narrow else d_model
            self.position = nn.Embedding(int(e.position.rows), wide)
        if e.n_token_type is not None:
            self.token_type = nn.Embedding(int(e.n_token_type), width)
        self.norm = maybe(e.norm, d_model if e.norm_last else width, epsilon)
        self.project_in = None
        if e.d_embed is not None:
            self.project_in = Fused(width, {"project_in": d_model}, bias=e.project_bias)
        if e.per_layer is not None:
            self.own = OwnTables(e.per_layer, n_layer, d_model, epsilon)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for table, name in ((self.position, "position"), (self.token_type, "token_type")):
            if table is not None:
                yield name, table.weight
        if self.norm is not None:
            yield from self.norm.named("embedding_norm")
        for part in (self.stem, self.project_in, self.own):
            if part is not None:
                yield from part.named()

    def forward(self, x_BTw: Tensor) -> Tensor:
        """Scaled, with positions and the first type, normed and projected: B × T × D.

        Where there is a stem, what comes in are frames of sound.
        """
        e = self.e
        if self.stem is not None:
            x_BTw = self.frames(x_BTw)
        if e.scale is not None:
            x_BTw = x_BTw * e.scale
        if self.narrow:
            x_BTw = x_BTw + self._positions(x_BTw.shape[-2])
        if self.token_type is not None:
            x_BTw = x_BTw + self.token_type.weight[0]
        if self.norm is not None and not e.norm_last:
            x_BTw = self.norm(x_BTw)
        if self.project_in is not None:
            x_BTw = self.project_in(x_BTw)
        if self.position is not None and not self.narrow:
            x_BTw = x_BTw + self._positions(x_BTw.shape[-2])
        if e.sines:
            x_BTw = x_BTw + waves(x_BTw)
        if self.norm is not None and e.norm_last:
            x_BTw = self.norm(x_BTw)
        return x_BTw

    def frames(self, frames_BFm: Tensor) -> Tensor:
        """Tokens from frames of sound."""
        assert self.stem is not None, "only called where there is one"
        n = self.stem.n_mel
        if not frames_BFm.is_floating_point() or frames_BFm.shape[-1] != n:
            raise FieldError("source", tuple(frames_BFm.shape), f"must be frames of {n} mel bands",
                             "twice as many as the encoder has tokens")  # fmt: skip
        found: Tensor = self.stem(frames_BFm)
        return found

    def _positions(self, length: int) -> Tensor:
        assert self.position is not None
        rows = self.position.num_embeddings
        if length > rows:
            raise FieldError("context", length, f"exceeds the learned positions {rows}")
        return self.position.weight[:length]


class Last(nn.Module):
    """What the head has before and behind its matrix: a projection, a layer, a fixed bias."""

    def __init__(
        self, head: Head, d_model: int, width: int, vocab_size: int, epsilon: float
    ) -> None:
        super().__init__()
        self.project_out = Fused(d_model, {"project_out": width}) if head.project else None
        self.transform, self.norm, t = None, None, head.transform
        if t is not None:
            inner = width if head.project else d_model
            self.transform = Fused(inner, {"head_transform": width}, bias=t.bias)
            self.act = activation(t.activation)
            self.norm = maybe(t.norm, width, epsilon)
        self.logits_bias: Tensor | None
        bias = torch.zeros(vocab_size) if head.buffer_bias else None
        self.register_buffer("logits_bias", bias)

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.project_out, self.transform):
            if part is not None:
                yield from part.named()
        if self.norm is not None:
            yield from self.norm.named("head_norm")
        if self.logits_bias is not None:
            yield "logits_bias", self.logits_bias

    def forward(self, x_BTD: Tensor) -> Tensor:
        """What the head's matrix reads."""
        if self.project_out is not None:
            x_BTD = self.project_out(x_BTD)
        if self.transform is not None:
            x_BTD = self.act(self.transform(x_BTD))
        return x_BTD if self.norm is None else self.norm(x_BTD)
