"""Parametrisations: how initial sizes, rates and multipliers depend on width and depth.

With m = D / base width and d = L / base depth, for Adam and its like, relative to the base shape,
at which all three are the same:

                     SP             muP               CompleteP
    tables    std    const          const             const
              lr     1              1                 1
              eps    1              1                 1/m
    hidden    std    1/√inputs      1/√inputs         1/√inputs
              lr     1              1/m               1/m
              decay  1              1                 m
              eps    1              1                 1/(m d)
    head      std    1/√inputs      1/√base           1/√base
              lr     1              1                 1
              eps    1              1                 1/m
    logits    ×      1              1/m               1/m
    residual  ×      1              1                 1/d
    attention ×      1/√h           √(base head)/h    √(base head)/h
    norms, biases    lr 1, no decay; eps in blocks as hidden, outside as tables

A product's update under Adam has entries of size lr whatever the width, so what it adds to its
output grows with its inputs unless lr falls as 1/m (Yang et al. 2022, table 8). The residual
multiplier 1/d keeps what L blocks add together of order one, and with it each block's change at a
step (Dey et al. 2025, table 1, α = 1). Gradients of all weights fall as the logits' 1/m, those in
blocks as the branch's 1/d too, and Adam's epsilon as they do. What writes to the stream starts
smaller by √blocks (GPT-2), in CompleteP by √(blocks of the base). Blocks with DeepNorm start
values, outputs and feed-forwards smaller by (8 L)^(−1/4) instead (Wang et al. 2022); a gate does
not, so that what a gated feed-forward makes falls as the square, as that of the paper's two
matrices does. A router is an output of fixed size: its std falls as 1/√m more. One std for all
matrices in place of 1/√inputs and 1/√base is that at the base width: hidden ones fall as 1/√m.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from scantling.lab.default_rate import Param
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Fused
from scantling.lab.recurrent import Convolution
from scantling.lab.stream import Branched
from scantling.spec import DeepNorm, Spec

if TYPE_CHECKING:
    from scantling.lab.model import Decoder

Role = Literal["table", "hidden", "head", "vector"]
MATRICES = {"up_EFD", "down_EDF", "select_hmi", "dt_up_hir", "gates_gbij", "group_gro", "near_cDD"}
"""Matrices side by side that are no product of their own."""


class Parametrisation(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind and the shape at which it equals the standard one.

    Example:
        >>> mup = Parametrisation("mup", base_width=64)
        >>> mup.rate("hidden", 256), mup.rate("table", 256)
        (0.25, 1.0)
    """

    kind: Param = "sp"
    base_width: int = 64
    base_depth: int = 4
    base_head: int = 16

    def wider(self, d_model: int) -> float:
        """The width over the base width, m."""
        return 1.0 if self.kind == "sp" else d_model / self.base_width

    def deeper(self, n_layer: int) -> float:
        """The depth over the base depth, d."""
        return n_layer / self.base_depth if self.kind == "completep" else 1.0

    def numerics(self, spec: Spec, given: Numerics) -> Numerics:
        """Small numbers with the multipliers of this parametrisation."""
        if self.kind == "sp":
            return given
        m, d = self.wider(int(spec.d_model)), self.deeper(int(spec.n_layer))
        return replace(given, logits=given.logits / m, residual=given.residual / d,
                       head_base=float(self.base_head))  # fmt: skip

    def rate(self, role: Role, d_model: int) -> float:
        """Learning rate of a role over that of the whole."""
        return 1 / self.wider(d_model) if role == "hidden" else 1.0

    def decay(self, role: Role, d_model: int) -> float:
        """Weight decay over that of the whole."""
        if role == "vector":
            return 0.0
        grows = self.kind == "completep" and role == "hidden"
        return self.wider(d_model) if grows else 1.0

    def epsilon(self, d_model: int, n_layer: int, *, inside: bool) -> float:
        """Adam's epsilon over that of the whole: as gradients fall, inside of blocks or not."""
        if self.kind != "completep":
            return 1.0
        return 1 / (self.wider(d_model) * (self.deeper(n_layer) if inside else 1.0))


class Fill:
    """Sets matrices from one generator, in the order they are asked for.

    Args:
        generator: Of random numbers.
        init_std: One deviation for all instead of 1/√inputs, or None.
        gains: Factors on it by role.
        m: The width over the base width, at which ``init_std`` is that of every role.
    """

    def __init__(
        self, generator: torch.Generator, init_std: float | None, gains: dict[str, float], m: float
    ) -> None:
        self.generator, self.init_std, self.gains, self.m = generator, init_std, gains, m

    def __call__(self, weight: Tensor, inputs: float, role: str = "hidden") -> None:
        """Normal numbers of deviation 1/√inputs times the role's gain."""
        std = float(inputs**-0.5)
        if self.init_std is not None:  # inputs of tables and vectors do not grow with the width
            std = self.init_std * (1.0 if role in {"table", "vector"} else self.m**-0.5)
        drawn = torch.randn(weight.shape, generator=self.generator)
        with torch.no_grad():
            weight.copy_(drawn.mul_(std * float(self.gains.get(role, 1.0))))


def initialise(model: Decoder, init_std: float | None, seed: int) -> None:
    """Set every matrix of a model from one seed; biases and norms keep zeros and ones.

    A module with weights that are no product of its own has a ``start``, which sets those.
    """
    p, spec = model.param, model.spec
    m, n_layer = p.wider(int(spec.d_model)), int(spec.n_layer)
    n_block = sum(isinstance(b, Branched) for b in model.modules())
    out_gain = (n_block / p.deeper(n_layer)) ** -0.5
    gains = {"out": out_gain, "router": m**-0.5, "zero": 0.0, "head": m**0.5}
    fill = Fill(torch.Generator().manual_seed(seed), init_std, gains, m)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            tied = spec.tied and module is model.table
            inputs = module.embedding_dim if tied else getattr(module, "inputs", 1)
            fill(module.weight, inputs, "head" if tied else "table")
        elif isinstance(module, Fused):
            if not (spec.tied and module is model.head):
                fill(module.weight, module.in_features, module.role)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Convolution):
            fill(module.weight, module.weight.shape[-1], "vector")
        elif isinstance(start := getattr(module, "start", None), MethodType):
            start(fill)
    _deep_norm(model, n_layer, out_gain)


LAST = {"o", "down", "experts_down", "shared_down", "out", "latent_up"}
FALLS = {"v", "up", "experts_up", "shared_up"}
"""What DeepNorm starts smaller: outputs, and values and one of a gated pair (TorchScale)."""


def _deep_norm(model: Decoder, n_layer: int, out_gain: float) -> None:
    beta = (8 * n_layer) ** -0.25
    for block in model.modules():
        if not (isinstance(block, Branched) and isinstance(block.block.residual, DeepNorm)):
            continue
        for side in block.sides:
            stored = dict(side.module.named())  # type: ignore[operator,union-attr]
            for name, weight in stored.items():
                leaf = name.removesuffix("_b")  # the second factor of one that is factored
                latent = leaf == "experts_down" and "latent_up" in stored
                if leaf in LAST or leaf in FALLS:
                    gain = out_gain if leaf in LAST and not latent else 1.0
                    with torch.no_grad():
                        weight.mul_(beta / gain)


def roles(model: Decoder) -> Iterator[tuple[Role, nn.Parameter]]:
    """Every parameter once, and its role."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            role: Role = "vector"
            if isinstance(module, nn.Embedding):
                role = "table"
            elif (isinstance(module, Fused) and name == "weight") or name in MATRICES:
                role = "head" if getattr(module, "role", "") == "head" else "hidden"
            yield role, parameter


def inside(model: Decoder) -> set[int]:
    """Parameters, by id, whose gradients pass the multiplier of a block."""
    blocks = [b for b in model.modules() if isinstance(b, Branched)]
    after = {id(p) for b in blocks if b.after is not None for p in b.after.parameters()}
    return {id(p) for b in blocks for p in b.parameters()} - after


def optimizer_groups(
    model: Decoder, lr: float, weight_decay: float, epsilon: float
) -> list[dict[str, Any]]:
    """One group a role; two where epsilon is another inside of blocks."""
    p, d, n = model.param, int(model.spec.d_model), int(model.spec.n_layer)
    inner = inside(model)
    by: dict[tuple[Role, float], list[nn.Parameter]] = {}
    for role, parameter in roles(model):
        eps = epsilon * p.epsilon(d, n, inside=id(parameter) in inner)
        by.setdefault((role, eps), []).append(parameter)
    return [
        {"name": role, "params": params, "lr": lr * p.rate(role, d), "scale": p.rate(role, d),
         "weight_decay": weight_decay * p.decay(role, d), "eps": eps}
        for (role, eps), params in by.items()
    ]  # fmt: skip
