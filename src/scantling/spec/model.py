"""What a model is: ``Spec``, its stacks, and the order of layers."""

from __future__ import annotations

from msgspec import Struct

from scantling.arith import Dim
from scantling.spec.modules import AltUp, Layer
from scantling.spec.positions import Norm


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """``n`` layers that cycle through a pattern of kinds; the last cycle may be cut.

    Example:
        >>> Run(("local", "local", "global"), 8).occurrences()
        (3, 3, 2)
    """

    pattern: tuple[str, ...]
    n: Dim

    def occurrences(self) -> tuple[Dim, ...]:
        """How often each slot of the pattern occurs: slot j of p, (n + p − 1 − j) // p times.

        Full cycles give n // p each; of the rest r = n mod p, the first r slots get one more;
        (n + p − 1 − j) // p is n // p + 1 exactly for j < r. True of ints and arrays alike.
        """
        p = len(self.pattern)
        return tuple((self.n + (p - 1 - j)) // p for j in range(p))


class Stack(Struct, frozen=True, forbid_unknown_fields=True):
    """Named layer kinds and their order, so that no cost walks equal layers twice."""

    kinds: tuple[Layer, ...]
    layout: tuple[Run, ...]
    final_norm: Norm | None = Norm()
    altup: AltUp | None = None
    """The stream is n streams around every layer (Gemma 3n)."""

    @property
    def n_layer(self) -> Dim:
        """Depth L."""
        depth = self.layout[0].n
        for run in self.layout[1:]:
            depth = depth + run.n
        return depth

    def occurrences(self) -> dict[str, Dim]:
        """How many layers of each kind there are."""
        counts: dict[str, Dim] = {}
        for run in self.layout:
            for name, n in zip(run.pattern, run.occurrences(), strict=True):
                counts[name] = counts[name] + n if name in counts else n
        return counts

    def expand(self) -> tuple[str, ...]:
        """The kind of every layer in order, for the trace, KV sharing and exporters.

        Example:
            >>> Stack((), (Run(("dense",), 1), Run(("moe",), 2))).expand()
            ('dense', 'moe', 'moe')
        """
        names: list[str] = []
        for run in self.layout:
            n = int(run.n)
            names += [run.pattern[i % len(run.pattern)] for i in range(n)]
        return tuple(names)

    def kind(self, name: str) -> Layer:
        """A layer kind by its name."""
        return next(k for k in self.kinds if k.name == name)


class LearnedPosition(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of positions added to the embedding. OPT keeps two rows more than its context."""

    rows: Dim
    narrow: bool = False
    """As wide as the token table, added before the projection (ALBERT, ELECTRA)."""


class Audio(Struct, frozen=True, forbid_unknown_fields=True):
    """Whisper's stem in place of a token table: two convolutions, the second halves the frames."""

    n_mel: Dim
    d_conv: Dim = 3


class PerLayerTables(Struct, frozen=True, forbid_unknown_fields=True):
    """An embedding of each token for each layer, read by ``PerLayerInput`` (Gemma 3n, Gemma 4).

    The embedding of the token is projected to as many numbers, normed, and added to it.
    """

    rows: Dim
    d_per_layer: Dim
    norm: Norm = Norm()


class Embeddings(Struct, frozen=True, forbid_unknown_fields=True):
    """Token embedding and what is added to it before the first layer."""

    position: LearnedPosition | None = None
    d_embed: Dim | None = None
    """Width of the table where it is not ``d_model``: a projection follows (OPT-350m, ALBERT)."""
    project_bias: bool = False
    n_token_type: Dim | None = None
    norm: Norm | None = None
    scale: float | None = None
    norm_last: bool = False
    """The norm comes after the projection (DeBERTa), not before it (ALBERT, ELECTRA)."""
    audio: Audio | None = None
    """Frames of sound are read, not tokens; positions are then as many as the encoder sees."""
    per_layer: PerLayerTables | None = None
    sines: bool = False
    """Sine waves of the position are added, computed and not learned (XGLM, M2M-100)."""


class Transform(Struct, frozen=True, forbid_unknown_fields=True):
    """The layer before the output matrix of a masked language model: dense, activation, norm."""

    bias: bool = True
    activation: str = "gelu"
    norm: Norm | None = Norm("layer", bias=True)


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    """The output layer; its matrix is the embedding's when the spec is tied."""

    bias: bool = False
    project: bool = False
    """A projection from ``d_model`` to the table's width comes first (OPT-350m)."""
    softcap: float | None = None
    scale: float | None = None
    transform: Transform | None = None
    """A layer from ``d_model`` to the table's width comes first; it counts as head (BERT)."""
    buffer_bias: bool = False
    """A bias on the logits that is a buffer, not a parameter (BART, Marian)."""


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is: no hardware, dtype or batch. Frozen and hashable.

    A *column spec* is the same struct with int64 arrays for dimensions: it has one structure and
    stands for as many models as the arrays are long; it is never hashed, compared or encoded.

    An encoder alone (BERT) is a ``decoder`` whose attention is not causal: the one stack that
    ends in the head.
    """

    d_model: Dim
    vocab_size: Dim
    decoder: Stack
    embeddings: Embeddings = Embeddings()
    tied: bool = False
    head: Head | None = Head()
    encoder: Stack | None = None
    encoder_embeddings: Embeddings | None = None
    """The encoder's own positions and norm over the shared table, or its stem (BART, Whisper);
    with None it shares all that the decoder has (T5)."""
    max_context: Dim | None = None
    """Positions the model was made for; not a limit of any cost."""

    @property
    def n_layer(self) -> Dim:
        """Depth L of the decoder."""
        return self.decoder.n_layer

    def read(self, field: str) -> Dim:
        """A dimension by its short name, of the layer kind that occurs last.

        Raises:
            FieldError: If no part of this model has such a dimension.
        """
        from scantling.spec.vary import read

        return read(self, field)

    @property
    def n_head(self) -> Dim:
        """Query heads H."""
        return self.read("n_head")

    @property
    def n_kv_head(self) -> Dim:
        """Key-value heads K."""
        return self.read("n_kv_head")

    @property
    def d_head(self) -> Dim:
        """Head width h."""
        return self.read("d_head")

    @property
    def d_ff(self) -> Dim:
        """FFN width F."""
        return self.read("d_ff")
