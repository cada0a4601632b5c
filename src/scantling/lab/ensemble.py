"""Many small models of one shape at once: seeds and rates as one batched model.

Weights of all members stand in one tensor each, the forward pass is ``vmap`` over the first axis,
and the gradient of the summed loss is each member's own. What a step costs beside its products is
then paid once, not once a member. Where the numbers of all members leave the cache that turns into
a loss, so ``together`` decides by measured bounds (``benchmarks/lab_speed.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from scantling.errors import FieldError
from scantling.lab.attention import one_kernel
from scantling.lab.grammar import learnable
from scantling.lab.model import Decoder, cross_entropy
from scantling.lab.optimizers import optimizers
from scantling.lab.parts import Fused
from scantling.spec import BlockSelector, Experts, Indexer, MixtureOfDepths, Spec
from scantling.spec.vary import nodes

MOST_NUMBERS = 40_000
"""Numbers of a member's residual stream, tokens × width, up to which members are faster together.

One by one over together, by numbers: 8 k 1.80, 25 k 1.13 and 1.14, 33 k 1.07 to 1.21, 49 k 0.99 and
1.04, 66 k 0.78, 98 k 0.80, 197 k 0.89 (13 shapes of 2 to 8 layers, widths 32 to 128).
"""

COMPILED_TOKENS = 3_000_000
"""Tokens of all members from which a compiled step makes up for its compiler."""


CHOOSE: dict[type, tuple[str, str]] = {
    Experts: ("ffn", "experts"), MixtureOfDepths: ("residual", "mixture of depths"),
    Indexer: ("indexer", "a choice of keys"), BlockSelector: ("selector", "a choice of blocks"),
}  # fmt: skip
"""Parts that choose by what they read."""


def together(spec: Spec, batch: int, context: int, members: int) -> bool:
    """Whether members are trained faster as one batched model than one after the other.

    Example:
        >>> from scantling import catalog, vary
        >>> spec = vary(catalog.model("gpt2"), d_model=48, n_head=3, n_kv_head=3, d_head=16)
        >>> together(spec, 4, 64, 8), together(spec, 16, 256, 8), together(spec, 4, 64, 1)
        (True, False, False)
    """
    small = batch * context * int(spec.d_model) <= MOST_NUMBERS
    return small and members > 1 and batchable(spec)


def compiles(tokens: int) -> bool:
    """Whether compiling what trains together pays, by the tokens of all members.

    It takes about 35 CPU-seconds; steps then take 0.6 of the time.

    Example:
        >>> compiles(9 * 100_000), compiles(9 * 1_000_000)
        (False, True)
    """
    return tokens > COMPILED_TOKENS


def batchable(spec: Spec) -> bool:
    """Whether vmap can run a spec, and rounding changes little.

    How many tokens come to an expert depends on the data; and where tokens are chosen by a number,
    the last digit decides between two that are near.
    """
    return chooser(spec) is None


def chooser(spec: Spec) -> tuple[str, str] | None:
    """The part that chooses by what it reads, and its name; None where there is none."""
    for _, node in nodes(spec):
        for kind, part in CHOOSE.items():
            if isinstance(node, kind):
                return part
    return None


@torch.library.custom_op("scantling::attention", mutates_args=())
def _attention(
    q_BHTh: Tensor, k_BKSh: Tensor, v_BKSv: Tensor, mask: Tensor | None, plain: bool, scale: float
) -> Tensor:  # fmt: skip
    """Attention in one kernel under vmap, for which torch's own has no rule."""
    return one_kernel(q_BHTh, k_BKSh, v_BKSv, mask, plain, scale).clone()


@_attention.register_fake
def _(
    q_BHTh: Tensor, _k: Tensor, v_BKSv: Tensor, _mask: Tensor | None, _plain: bool,
    _scale: float,
) -> Tensor:  # fmt: skip
    return q_BHTh.new_empty(*q_BHTh.shape[:-1], v_BKSv.shape[-1])


@_attention.register_vmap
def _(
    info: Any, dims: tuple[int | None, ...], q_BHTh: Tensor, k_BKSh: Tensor, v_BKSv: Tensor,
    mask: Tensor | None, plain: bool, scale: float,
) -> tuple[Tensor, int]:  # fmt: skip
    """A member's sequences are so many sequences more: its axis joins that of the batch."""
    n = info.batch_size

    def every(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(n, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    q, k, v = (
        every(*one).flatten(0, 1) for one in zip((q_BHTh, k_BKSh, v_BKSv), dims, strict=False)
    )
    if mask is not None and (dims[3] is not None or (mask.dim() == 4 and len(mask) > 1)):
        mask = every(mask, dims[3])
        mask = mask.expand(n, len(q) // n, *mask.shape[-3:]).flatten(0, 1)
    out = one_kernel(q, k, v, mask, plain, scale)
    return out.view(n, -1, *out.shape[1:]), 0


def kernel_of_members(*given: Any) -> Tensor:
    """That operator as a function, which can be copied with its model."""
    made: Tensor = _attention(*given)
    return made


def _across(weight_Eoi: Tensor) -> Tensor:
    """The same matrices, stored inputs first: as their gradients come, so none is copied."""
    return weight_Eoi.detach().mT.contiguous().mT.requires_grad_()


class Ensemble:
    """Models of one spec trained together, each with its own rate.

    Args:
        models: The members; their weights are copied.
        rates: One learning rate, or one for each.
        weight_decay: As of AdamW.
        clip: Norm to which each member's gradient is cut; None cuts none.
        optimizer: As for ``optimizers``, with
        factors: on the rate by the beginning of a parameter's name.
        compile: Whether the forward and backward pass are compiled.

    Raises:
        FieldError: If the specs differ, or vmap cannot run them.

    Example:
        >>> from scantling import catalog
        >>> from scantling.lab.shrink import shrink
        >>> spec = shrink(catalog.model("gpt2"), 100_000, 8)
        >>> ensemble = Ensemble([Decoder(spec, seed=s) for s in (0, 1)], rates=[1e-3, 1e-2])
        >>> tokens = torch.zeros(2, 1, 8, dtype=torch.long)
        >>> ensemble.step(tokens, tokens).shape
        torch.Size([2])
    """

    def __init__(
        self, models: Sequence[Decoder], rates: float | Sequence[float],
        weight_decay: float = 0.0, clip: float | None = 1.0, optimizer: str = "adamw",
        factors: Mapping[str, float] | None = None, *,
        compile: bool = False,  # noqa: A002 - torch's word
    ) -> None:  # fmt: skip
        first, self.n = models[0], len(models)
        if any(m.spec != first.spec or m.param != first.param for m in models):
            raise FieldError("models", len(models), "must be of one spec to be trained together")
        if (part := chooser(first.spec)) is not None:
            raise FieldError(*part, "cannot be batched over models", "train one by one")
        learnable(first.spec)
        self.clip = clip
        self.base = deepcopy(first)
        self.base.kernel = kernel_of_members
        weights, self.buffers = stack_module_state(list(models))
        matrices = {m.weight for m in first.modules() if isinstance(m, Fused)} - {
            first.table.weight
        }
        across = {name for name, p in first.named_parameters() if p in matrices}
        self.weights = {n: _across(w) if n in across else w for n, w in weights.items()}
        given = [rates] * self.n if isinstance(rates, int | float) else list(rates)
        if len(given) != self.n:
            raise FieldError("rates", len(given), f"must be one, or one for each of {self.n}")
        device = first.table.weight.device
        self.highest = max(given)
        self.shares_E = torch.tensor(given, device=device) / self.highest
        self.equal = min(given) == self.highest
        self.norms_E = torch.zeros(self.n)
        """Of the gradients of the last step, before they were cut."""
        self.made = self._optimizers(weight_decay, optimizer, factors or {})
        self.losses_of: Callable[..., Tensor] = vmap(self._loss)
        self.compiled = compile
        if compile:
            self.losses_of = torch.compile(self.losses_of, dynamic=False)

    def _optimizers(
        self, weight_decay: float, kind: str, factors: Mapping[str, float]
    ) -> list[torch.optim.Optimizer]:
        """Those of one model, over stacked weights."""
        names = {id(p): name for name, p in self.base.named_parameters()}
        groups = self.base.groups(self.highest, weight_decay)
        made = optimizers(self.base, groups, kind, factors)
        for group in (g for one in made for g in one.param_groups):
            group["params"] = [self.weights[names[id(p)]] for p in group["params"]]
        return made

    def _loss(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], tokens_BT: Tensor,
        targets_BT: Tensor, source_BS: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        given = {} if source_BS is None else {"source": source_BS}
        logits_BTV = functional_call(self.base, (weights, buffers), (tokens_BT,), given)
        return cross_entropy(logits_BTV, targets_BT)

    def losses(
        self, tokens_EBT: Tensor, targets_EBT: Tensor, source_EBS: Tensor | None = None
    ) -> Tensor:
        """The loss of each member on its own tokens."""
        more = () if source_EBS is None else (source_EBS,)
        if self.compiled and not self.base.places:
            for read in (tokens_EBT, *more):
                self.base.warm(read.shape[-1])
        return self.losses_of(self.weights, self.buffers, tokens_EBT, targets_EBT, *more)

    def step(
        self, tokens_EBT: Tensor, targets_EBT: Tensor, factor: float = 1.0,
        source_EBS: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """One step of every member.

        Args:
            tokens_EBT: A batch for each.
            targets_EBT: What comes next; −100 does not count.
            factor: On all rates, as a schedule says.
            source_EBS: What an encoder reads.

        Returns:
            The losses before the step, one a member.
        """
        losses_E = self.losses(tokens_EBT, targets_EBT, source_EBS)
        losses_E.sum().backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            self._clip(self.clip)
        for group in (g for one in self.made for g in one.param_groups):
            group["lr"] = group["base"] * factor
        stacked = list(self.weights.values())
        before = None if self.equal else [w.detach().clone() for w in stacked]
        for one in self.made:
            one.step()
        if before is not None:
            # a step is its rate times what does not depend on it: go a share of the way
            with torch.no_grad():
                for old, new in zip(before, stacked, strict=True):
                    share = self.shares_E.view(-1, *[1] * (new.dim() - 1))
                    new.copy_(torch.lerp(old, new, share))
        for one in self.made:
            one.zero_grad(set_to_none=True)
        return losses_E.detach()

    def _clip(self, most: float) -> None:
        """Cut each member's gradient to a norm, as ``clip_grad_norm_`` does."""
        gradients = [w.grad for w in self.weights.values() if w.grad is not None]
        norms = [torch.linalg.vector_norm(g, dim=tuple(range(1, g.dim()))) for g in gradients]
        self.norms_E = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factor_E = (most / (self.norms_E + 1e-6)).clamp(max=1.0)
        shares = [factor_E.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
        torch._foreach_mul_(gradients, shares)

    def member(self, i: int) -> Decoder:
        """One member as a model of its own."""
        model = deepcopy(self.base)
        model.kernel = one_kernel
        self.into(i, model)
        return model

    @torch.no_grad()
    def into(self, i: int, model: Decoder) -> None:
        """Set the weights of a model to those of a member."""
        for name, p in model.named_parameters():
            p.copy_(self.weights[name][i])
        for name, b in model.named_buffers():
            b.copy_(self.buffers[name][i])

    def moments(self, i: int) -> dict[str, dict[str, Tensor]]:
        """What optimizers remember of a member's weights, by their names."""
        names = {id(w): name for name, w in self.weights.items()}
        return {
            names[id(w)]: {k: v[i].clone() if v.dim() else v for k, v in state.items()}
            for one in self.made for w, state in one.state.items()
        }  # fmt: skip

    def remember(self, known: Sequence[Mapping[str, Mapping[str, Tensor]]]) -> None:
        """Give optimizers what they remembered of each member, all at the same step."""
        names = {id(w): name for name, w in self.weights.items()}
        for one in self.made:
            for w in (w for group in one.param_groups for w in group["params"]):
                first = known[0].get(names[id(w)], {})
                states = [m[names[id(w)]] for m in known] if first else []
                one.state[w] = {  # stored as the weight is: the kernel goes through both in step
                    k: torch.empty_like(w).copy_(torch.stack([s[k] for s in states]))
                    if v.dim()
                    else v.clone()
                    for k, v in first.items()
                }
