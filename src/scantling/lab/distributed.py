"""The same run on many processes: torchrun starts them, FSDP2 spreads the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scantling.errors import FieldError


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Args:
        rank: Of this process.
        size: How many.
        device: Of this process.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.size > 1:
            import torch.distributed as dist

            dist.all_reduce(value)
            value /= self.size
        return value

    def agreed(self, value: Any) -> Any:
        """The first process's value, in all."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]


def world(device: str | None = None) -> World:
    """The world that torchrun started this process in; alone where it did not.

    Args:
        device: ``cpu`` or ``cuda``; a GPU where there is one, by default.

    Raises:
        FieldError: If there is no such device.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        one = torch.device(kind)
    except RuntimeError:
        raise FieldError("device", kind, "is not known", "use cpu or cuda") from None
    if one.type not in {"cpu", "cuda"}:
        raise FieldError("device", kind, "is not supported", "use cpu or cuda")
    if one.type == "cuda" and not torch.cuda.is_available():
        raise FieldError("device", kind, "is not there", "use cpu")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(0, 1, one)
    import torch.distributed as dist

    if one.type == "cuda":
        one = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(one)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if one.type == "cuda" else "gloo")
    return World(dist.get_rank(), size, one)


def leave() -> None:
    """Part from the other processes, if there are any."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def spread(model: nn.Module, among: World) -> None:
    """Spread weights, gradients and moments over all processes: FSDP2, layer by layer.

    Where layers share weights the model is spread as one.
    """
    if among.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(among.device.type, (among.size,))
    layers = list(model.get_submodule("layers").children()) if hasattr(model, "layers") else []
    each = [{id(p) for p in layer.parameters()} for layer in layers]
    if sum(map(len, each)) == len(set().union(*each)):
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")
