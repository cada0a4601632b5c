"""What can be read off a trained model: gradients, activations, attention.

Nothing here changes a model: hooks and recorders are taken off again, gradients are not kept.
Natural logarithms throughout; a mean over queries is a mean over all of them, the first included.

Gradient norm of a layer: √Σ g² over all its weights, shared weights counted in each of their
layers. Kurtosis: E[(x − μ)⁴] / σ⁴ over all hidden units and tokens together, 3 for a normal
distribution. Sparsity has no one definition, so two are given: the share of hidden units above 0,
and the share whose size is above a tenth of the largest of their token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from msgspec import Struct
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.attention import Grouped, Latent, scores, shares
from scantling.lab.feed import Feed, Routed
from scantling.lab.flow import Kernel
from scantling.lab.graph import clustering, path_length
from scantling.lab.masks import attention_of, masked
from scantling.lab.model import Decoder, Layered
from scantling.lab.stream import Branched, Side

ACTIVE = 0.1
"""A hidden unit is active above this share of the largest of its token."""


class Activation(Struct, frozen=True):
    """Hidden units of one feed-forward; of all experts together, and of shared ones apart."""

    layer: int
    module: str
    kurtosis: float
    """E[(x − μ)⁴] / σ⁴; 3 for a normal distribution."""
    positive: float
    """Share of units above 0."""
    active: float
    """Share of units whose size is above a tenth of the largest of their token."""


class Heads(Struct, frozen=True):
    """What the heads of one attention do; one number a head but for the graph."""

    layer: int
    module: str
    entropy: tuple[float, ...]
    """−Σ p ln p of a query's weights on keys, nats; weights sum to one, sinks left out."""
    even: float
    """The same if each query saw all its keys alike: the most there can be."""
    span: tuple[float, ...] | None
    """Σ p · distance, tokens; None across to an encoder."""
    logit_variance: tuple[float, ...]
    """Variance of the scaled logits over the pairs that are seen."""
    effective_rank: tuple[float, ...]
    """exp of the entropy of the singular values of Q Kᵀ over a sequence, which sum to one."""
    path_length: float | None
    """Mean number of edges between two tokens that are connected (see ``graph``)."""
    clustering: float | None
    """Mean share of a token's neighbours that are neighbours of each other."""
    connected: float | None
    """Share of pairs of tokens between which there is a path."""


def gradient_norms(
    model: Decoder, tokens_BT: Tensor, targets_BT: Tensor, source: Tensor | None = None
) -> list[float]:
    """The norm of the gradient of the loss by the matrices of each layer.

    Scales and biases are left out: behind a last norm they are what the head reads, so one layer's
    would outweigh the matrices of all.

    Args:
        model: Its own gradients, if any, stay as they are.
        tokens_BT: Token numbers.
        targets_BT: What comes next; −100 does not count.
        source: Of an encoder.

    Example:
        >>> from scantling import catalog, vary
        >>> from scantling.lab.shrink import shrink
        >>> model = Decoder(vary(shrink(catalog.model("gpt2"), 200_000, 8), n_layer=3))
        >>> tokens = torch.arange(8)[None]
        >>> len(gradient_norms(model, tokens, tokens + 1))
        3
    """
    weights = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    loss = model.loss(tokens_BT, targets_BT, source)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    squares = {
        id(p): 0.0 if g is None else float(g.detach().double().square().sum())
        for p, g in zip(weights, found, strict=True)
    }
    return [sum(squares.get(id(p), 0.0) for p in layer.parameters()) ** 0.5
            for layer in model.layers]  # fmt: skip


def head_sensitivity(
    model: Decoder, tokens_BT: Tensor, targets_BT: Tensor, source: Tensor | None = None
) -> dict[int, tuple[float, ...]]:
    """|d loss / d mask| of each head of each layer with attention, at a mask of one.

    To first order what the loss changes by when the head is masked: heads with the least go first
    (Michel et al. 2019).
    """
    layers = [cast("Layered", one) for one in model.layers]
    masks = {}
    for at in range(len(layers)):
        with contextlib.suppress(FieldError):  # a layer without attention
            masks[at] = torch.ones(attention_of(layers, at).h, requires_grad=True)
    if not masks:
        raise FieldError("heads", None, "are none in this model")
    with masked(layers, masks):
        loss = model.loss(tokens_BT, targets_BT, source)
    found = torch.autograd.grad(loss, list(masks.values()))
    return {at: tuple(g.abs().tolist()) for at, g in zip(masks, found, strict=True)}


# ---------------------------------------------------------------- activations


class _Moments:
    """Sums over hidden units, from which moments follow."""

    def __init__(self) -> None:
        self.powers = torch.zeros(5, dtype=torch.float64)
        self.positive = self.active = 0.0

    def add(self, hidden_nF: Tensor) -> None:
        """Count more units in."""
        x = hidden_nF.detach().double()
        self.powers += torch.tensor([float((x**i).sum()) for i in range(5)])
        self.positive += float((x > 0).sum())
        most = x.abs().amax(-1, keepdim=True)
        self.active += float((x.abs() > ACTIVE * most).sum())

    def kurtosis(self) -> float:
        """Of what was counted; the mean's powers are taken out of the raw moments."""
        n, *sums = self.powers.tolist()
        m, m2, m3, m4 = (s / n for s in sums)
        variance = m2 - m * m
        fourth = m4 - 4 * m * m3 + 6 * m * m * m2 - 3 * m**4
        return fourth / variance**2 if variance > 0 else float("nan")


@torch.no_grad()
def activations(
    model: Decoder, tokens_BT: Tensor, source: Tensor | None = None
) -> list[Activation]:
    """Kurtosis and sparsity of what the last product of each feed-forward reads.

    Experts are read on the tokens that choose them.
    """
    found: dict[tuple[int, str], _Moments] = {}
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(_numbered(model))
        for name, module in _modules(model, Feed | Routed):
            _listen(stack, name, module, found, current)
        model(tokens_BT, source=source)
    return [
        Activation(at, name, m.kurtosis(), m.positive / n, m.active / n)
        for (at, name), m in found.items()
        for n in [float(m.powers[0])]
    ]


def _listen(
    stack: contextlib.ExitStack, name: str, module: Any,
    found: dict[tuple[int, str], _Moments], current: list[int],
) -> None:  # fmt: skip
    def note(label: str) -> Callable[..., None]:
        def add(_: nn.Module, given: tuple[Tensor]) -> None:
            found.setdefault((current[0], label), _Moments()).add(given[0].flatten(0, -2))

        return add

    if isinstance(module, Feed):
        stack.callback(module.down.register_forward_pre_hook(note(name)).remove)
        return
    if module.shared is not None:
        shared = module.shared.down.register_forward_pre_hook(note(f"{name}.shared"))
        stack.callback(shared.remove)
    inside = module.inside

    def listening(*given: Tensor | None) -> Tensor:
        hidden: Tensor = inside(*given)
        found.setdefault((current[0], f"{name}.experts"), _Moments()).add(hidden)
        return hidden

    module.inside = listening
    stack.callback(delattr, module, "inside")


# ---------------------------------------------------------------- attention


@torch.no_grad()
def attention(model: Decoder, tokens_BT: Tensor, source: Tensor | None = None) -> list[Heads]:
    """Entropy, span, logits, rank and graph of every softmax attention of the decoder.

    Args:
        model: Any model of the lab.
        tokens_BT: Token numbers; means are over all sequences.
        source: Of an encoder.

    Example:
        >>> from scantling import catalog
        >>> from scantling.lab.shrink import shrink
        >>> spec = shrink(catalog.model("qwen3-0.6b"), 200_000, 8)
        >>> read = attention(Decoder(spec), torch.arange(8)[None])[0]
        >>> len(read.entropy) == spec.n_head, max(read.entropy) <= read.even
        (True, True)
    """
    found: list[Heads] = []
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(_numbered(model))
        for name, module in _modules(model, Grouped | Latent):
            across = isinstance(module, Grouped) and module.a.cross
            module.attend = _reader(module.attend, name, found, current, across=across)
            stack.callback(delattr, module, "attend")
        model(tokens_BT, source=source)
    return found


def _reader(
    attend: Callable[..., Tensor], name: str, found: list[Heads], current: list[int], *,
    across: bool,
) -> Callable[..., Tensor]:  # fmt: skip
    def reading(
        q_BHTh: Tensor, k_BKSh: Tensor, v_BKSv: Tensor, seen: Tensor | None, *, scale: float,
        causal: bool, kernel: Kernel | None, softcap: float | None = None,
        sinks_H: Tensor | None = None, bias: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        k_BHSh = k_BKSh.repeat_interleave(q_BHTh.shape[-3] // k_BKSh.shape[-3], -3)
        logits = scores(q_BHTh, k_BHSh, scale=scale, softcap=softcap, bias=bias)
        open_TS = seen
        if open_TS is None:
            whole = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
            open_TS = whole.tril() if causal else whole
        if not logits.isfinite().all():
            raise FieldError("layer", current[0], "has attention logits that are not finite")
        weights = shares(logits, open_TS, sinks_H)
        weights = weights / weights.sum(-1, keepdim=True)
        found.append(_heads(current[0], name, weights, logits, open_TS.expand_as(logits),
                            product_rank(q_BHTh, k_BHSh), across=across))  # fmt: skip
        return attend(q_BHTh, k_BKSh, v_BKSv, seen, scale=scale, causal=causal, kernel=kernel,
                      softcap=softcap, sinks_H=sinks_H, bias=bias)  # fmt: skip

    return reading


def _heads(
    layer: int, module: str, p_BHTS: Tensor, logits_BHTS: Tensor, open_BHTS: Tensor,
    rank_BH: Tensor, *, across: bool,
) -> Heads:  # fmt: skip
    n_query, n_key = p_BHTS.shape[-2:]
    n_open = open_BHTS.sum(-1)
    even = float(n_open.double().log().mean())
    span = lengths = None
    if not across:
        at = torch.arange(n_key, device=p_BHTS.device)
        distance = (at[:n_query, None] - at).abs()
        span = (p_BHTS * distance).sum(-1).mean((0, 2))
        lengths = _graph(p_BHTS.mean(1), n_open[:, 0])
    count = open_BHTS.sum((0, 2, 3))
    kept = logits_BHTS.masked_fill(~open_BHTS, 0.0)
    mean = kept.sum((0, 2, 3)) / count
    off = (logits_BHTS - mean[:, None, None]).masked_fill(~open_BHTS, 0.0)
    return Heads(
        layer, module, entropy=_numbers(entropy(p_BHTS).mean((0, 2))), even=even,
        span=None if span is None else _numbers(span),
        logit_variance=_numbers(off.square().sum((0, 2, 3)) / count),
        effective_rank=_numbers(rank_BH.mean(0)),
        path_length=None if lengths is None else lengths[0],
        clustering=None if lengths is None else lengths[1],
        connected=None if lengths is None else lengths[2],
    )  # fmt: skip


def _graph(p_BTS: Tensor, n_open_BT: Tensor) -> tuple[float | None, float, float]:
    """Means over sequences of a graph whose edges are more than an even share of attention."""
    edges = p_BTS > (1 - 1e-6) / n_open_BT[..., None]
    edges = edges | edges.mT
    edges = edges & ~torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)
    found = [(*path_length(one), clustering(one)) for one in edges]
    lengths = [n for n, _, _ in found if n is not None]
    length = sum(lengths) / len(lengths) if lengths else None
    reached = sum(r for _, r, _ in found) / len(found)
    return length, sum(c for _, _, c in found) / len(found), reached


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def entropy(p: Tensor) -> Tensor:
    """−Σ p ln p over the last axis, nats.

    Example:
        >>> round(entropy(torch.full((8,), 1 / 8)).exp().item(), 4)
        8.0
    """
    each: Tensor = torch.special.entr(p)
    return each.sum(-1)


def effective_rank(matrix: Tensor) -> Tensor:
    """How many singular values a matrix has as if all were alike, 1 to its rank.

    exp of their entropy, made to sum to one (Roy and Vetterli 2007).

    Example:
        >>> [round(effective_rank(m).item(), 6) for m in (torch.eye(5), torch.ones(4, 3))]
        [5.0, 1.0]
    """
    values = torch.linalg.svdvals(matrix.double())
    shares_of = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    return entropy(shares_of).exp()


def product_rank(q_BHTh: Tensor, k_BHSh: Tensor) -> Tensor:
    """The effective rank of q kᵀ, from the small product of their triangular factors.

    q = U R and k = W S with orthonormal U and W, so q kᵀ = U (R Sᵀ) Wᵀ has the singular values
    of R Sᵀ, of h × h numbers instead of T × S.
    """
    r, s = (torch.linalg.qr(x.double(), mode="r").R for x in (q_BHTh, k_BHSh))
    return effective_rank(r @ s.mT)


# ---------------------------------------------------------------- where a pass is


@contextlib.contextmanager
def _numbered(model: Decoder) -> Iterator[list[int]]:
    """The number of the layer that is running, in a list of one."""
    current = [-1]
    handles = []
    try:
        for at, layer in enumerate(model.layers):

            def note(*_: Any, at: int = at) -> None:
                current[0] = at

            handles.append(layer.register_forward_pre_hook(note))
        yield current
    finally:
        for handle in handles:
            handle.remove()


def _modules(model: Decoder, kind: Any) -> Iterator[tuple[str, Any]]:
    """Modules of a kind in the decoder, each once, with its name within its layer."""
    seen: set[int] = set()
    for layer in model.layers:
        for block in cast("Layered", layer).blocks:
            made = cast("Branched", block)
            for name, side in zip(made.names, made.sides, strict=True):
                module = cast("Side", side).module
                if isinstance(module, kind) and id(module) not in seen:
                    seen.add(id(module))
                    yield name, module
