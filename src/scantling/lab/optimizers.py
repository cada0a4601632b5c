"""How weights move: learning rates over time, AdamW, Muon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from scantling.errors import FieldError, UnknownNameError
from scantling.lab.feed import Routed
from scantling.lab.parts import Fused

SCHEDULES = ("cosine", "wsd", "constant")
OPTIMIZERS = ("adamw", "muon")
DECAYED = 0.2
"""The share of the steps in which WSD's rate falls."""
BETAS = (0.9, 0.95)
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic whose slope at zero is the largest (Jordan 2024)."""
ITERATIONS = 5


def factor(step: int, steps: int, schedule: str, warmup: int, least: float = 0.0) -> float:
    """What the learning rate of a step is multiplied by, steps counted from 0.

    Warmup rises in a line to 1, which its last step has.
    Then *cosine* falls as least + (1 − least) (1 + cos πx) / 2 with x from 0 to 1;
    *wsd* (warmup, stable, decay; Hu et al. 2024) stays at 1 and falls in a line over the last
    fifth of all steps; *constant* stays. The step after the last would have ``least``.

    Args:
        step: Of the run.
        steps: Of the whole run.
        schedule: ``cosine``, ``wsd`` or ``constant``.
        warmup: Steps.
        least: Where it falls to.

    Example:
        >>> [factor(i, 4, "cosine", 0) for i in (0, 2)]
        [1.0, 0.5]
        >>> [round(factor(i, 10, "wsd", 2), 2) for i in range(10)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        falling = max(1, round(DECAYED * steps))
        return least + (1 - least) * min(1.0, (steps - step) / falling)
    x = (step - warmup) / max(1, steps - warmup)
    return least + (1 - least) * (1 + math.cos(math.pi * x)) / 2


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over processes, as one."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def spread_like(value: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, spread as another one is."""
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    return distribute_tensor(value, tensor.device_mesh, tensor.placements)


def orthogonal(gradient: Tensor) -> Tensor:
    """The nearest matrix with equal singular values, about 1, of each matrix on the last two axes.

    Five steps of X ← aX + (bA + cA²) X with A = XXᵀ, from X of Frobenius norm 1, which leave the
    singular vectors and take each singular value s to as + bs³ + cs⁵: from 0.01 and up they end
    between about 0.7 and 1.2 (Jordan 2024). In bfloat16 where that is fast.

    Example:
        >>> values = torch.linalg.svdvals(orthogonal(torch.randn(3, 16, 8)).float())
        >>> bool((values > 0.5).all()), bool((values < 1.5).all())
        (True, True)
    """
    a, b, c = NEWTON_SCHULZ
    x = gradient.bfloat16() if gradient.is_cuda else gradient
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    turned_back: Tensor = x.mT if tall else x
    return turned_back


class Muon(Optimizer):
    """Momentum, made orthogonal: each matrix moves by steps whose singular values are equal.

    Stacked experts are so many matrices; those that stand side by side in one product (query, key
    and value; gate and up) are taken apart by ``rows`` of their group, as each is a map of its own.
    The update is scaled by 0.2 √max(rows, columns), so that its size is AdamW's (Liu et al. 2025,
    arXiv 2502.16982). Its best learning rate is still its own: 0.03 where AdamW's was 0.01, with
    2 layers of width 64.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        momentum: Of Nesterov's kind.
        weight_decay: Decoupled, times the learning rate.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        given = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rows": None}
        super().__init__(params, given)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        assert closure is None, "the loop computes the loss"
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group)

    def _move(self, p: nn.Parameter, group: dict[str, Any]) -> None:
        """Move one weight; what that takes is gone before the next."""
        lr, momentum, state = group["lr"], group["momentum"], self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        mean = state["momentum"]
        assert p.grad is not None, "asked before"
        mean.lerp_(p.grad, 1 - momentum)
        # Orthogonal is a property of the whole matrix.
        ahead = whole(p.grad.lerp(mean, momentum))
        parts = torch.split(ahead, group["rows"] or ahead.shape[-2], -2)
        moved = [0.2 * math.sqrt(max(m.shape[-2:])) * orthogonal(m) for m in parts]
        update = spread_like(torch.cat(moved, -2).to(p.dtype), p)
        p.mul_(1 - lr * group["weight_decay"]).add_(update, alpha=-lr)


def _rows(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Of products that hold several matrices, the rows of each."""
    found = {m.weight: tuple(m.outs.values()) for m in model.modules() if isinstance(m, Fused)}
    experts = [m for m in model.modules() if isinstance(m, Routed)]
    return found | {m.up_EFD: (m.width,) * (m.up_EFD.shape[1] // m.width) for m in experts}


def optimizers(
    model: nn.Module, groups: list[dict[str, Any]], kind: str, rates: Mapping[str, float]
) -> list[Optimizer]:
    """The optimizers of a model.

    Every group gets ``base``, its learning rate where the schedule's factor is 1.

    Args:
        model: Whose parameters have names.
        groups: Parameters with ``lr`` and ``weight_decay``, as ``Decoder.groups`` gives them.
        kind: ``adamw``, or ``muon`` for hidden matrices and AdamW for tables, head and vectors.
        rates: Factors on the rate by the beginning of a parameter's name; the longest counts.

    Raises:
        FieldError: If a beginning is that of no parameter.
    """
    if kind not in OPTIMIZERS:
        raise UnknownNameError("optimizer", kind, OPTIMIZERS)
    names = {p: name for name, p in model.named_parameters()}
    for prefix in rates:
        if not any(_begins(name, prefix) for name in names.values()):
            raise FieldError("rates", prefix, "is the beginning of no parameter's name",
                             f"there are {', '.join(list(names.values())[:4])}, …")  # fmt: skip
    split: dict[tuple[int, float, tuple[int, ...] | None], list[nn.Parameter]] = {}
    rows = _rows(model) if kind == "muon" else {}
    for i, group in enumerate(groups):
        for p in group["params"]:
            of = rows.get(p) if group["name"] == "hidden" else None
            split.setdefault((i, _rate(names[p], rates), of), []).append(p)
    made: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for (i, rate, of), params in split.items():
        base = groups[i]["lr"] * rate
        turned = kind == "muon" and groups[i]["name"] == "hidden"
        made[turned].append({**groups[i], "params": params, "lr": base, "base": base, "rows": of})
    found: list[Optimizer] = []
    if made[False]:  # one kernel for all tensors: 3 to 7 times as fast, on a CPU too
        found.append(AdamW(made[False], betas=BETAS, fused=True))
    if made[True]:
        found.append(Muon(made[True], lr=0.0))
    return found


def _begins(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _rate(name: str, rates: Mapping[str, float]) -> float:
    """The factor of the longest beginning that fits."""
    fitting = [prefix for prefix in rates if _begins(name, prefix)]
    return rates[max(fitting, key=len)] if fitting else 1.0


def moments(model: nn.Module, made: list[Optimizer]) -> dict[str, dict[str, Tensor]]:
    """What optimizers remember of each parameter, by its name, whole."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        names[p]: {k: whole(v) for k, v in state.items()}
        for one in made for p, state in one.state.items()
    }  # fmt: skip


def remember(
    model: nn.Module, made: list[Optimizer], known: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Give optimizers back what they remembered."""
    names = {p: name for name, p in model.named_parameters()}
    for one in made:
        for p in (p for group in one.param_groups for p in group["params"] if names[p] in known):
            one.state[p] = {
                k: spread_like(v.to(p.device), p) if v.shape == p.shape else v.to(p.device).clone()
                for k, v in known[names[p]].items()
            }
