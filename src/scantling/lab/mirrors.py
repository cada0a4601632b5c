"""A run's records, shown by other tools as well: ``metrics.jsonl`` stays the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scantling.errors import FieldError, UnknownNameError

Mirror = Callable[[Mapping[str, Any]], None]


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """What a record measures, those of a slice under its name.

    Example:
        >>> dict(numbers({"step": 3, "slice": "report", "loss": 2.0}))
        {'report/loss': 2.0}
    """
    prefix = f"{record['slice']}/" if "slice" in record else ""
    for name, value in record.items():
        if isinstance(value, int | float) and name != "step":
            yield prefix + name, float(value)


def tensorboard(folder: Path, settings: Mapping[str, Any]) -> Mirror:
    """Event files in the run's folder."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    writer.add_text("settings", str(dict(settings)))

    def mirror(record: Mapping[str, Any]) -> None:
        for name, value in numbers(record):
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return mirror


def wandb(folder: Path, settings: Mapping[str, Any]) -> Mirror:
    """A run of the project ``scantling``, named after the folder."""
    import wandb as service

    service.init(project="scantling", name=folder.name, dir=str(folder), config=dict(settings))
    return lambda record: service.log(dict(numbers(record)), step=record["step"])


def trackio(folder: Path, settings: Mapping[str, Any]) -> Mirror:
    """The same for trackio, which keeps its runs on this machine."""
    import trackio as service

    service.init(project="scantling", name=folder.name, config=dict(settings))
    return lambda record: service.log(dict(numbers(record)), step=record["step"])


MIRRORS: dict[str, Callable[[Path, Mapping[str, Any]], Mirror]] = {
    "tensorboard": tensorboard, "wandb": wandb, "trackio": trackio,
}  # fmt: skip


def mirror(name: str, folder: Path, settings: Mapping[str, Any]) -> Mirror:
    """A mirror by name: give it to ``train`` as ``on_step``.

    Raises:
        UnknownNameError: If there is none of that name.
        FieldError: If its package is not installed.
    """
    if name not in MIRRORS:
        raise UnknownNameError("mirror", name, MIRRORS)
    try:
        return MIRRORS[name](folder, settings)
    except ImportError:
        raise FieldError("mirror", name, "is not installed", f"pip install {name}") from None
