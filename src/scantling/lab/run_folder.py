"""The folder of a run: what was asked, what was measured, where it can go on from.

``run.json`` has the settings and the machine, ``metrics.jsonl`` a line for each record,
``checkpoint.pt`` the last state, ``result.jsonl`` one line once it ended, which ``laws fit`` reads.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.optimizers import moments, remember, spread_like, whole
from scantling.lab.version import code_version
from scantling.lab.whole_file import PART, whole_file, write

if TYPE_CHECKING:
    from torch.optim import Optimizer

SAME = ("spec", "data", "batch", "context", "lr", "seed", "steps", "optimizer")
"""What is compared first where a folder holds another run."""


def machine(device: torch.device) -> dict[str, Any]:
    """Where a run runs: results are equal bit for bit only on the same."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": device.type, "name": name or platform.machine(), "system": platform.system(),
        "threads": torch.get_num_threads(), "torch": torch.__version__,
        "python": platform.python_version(), "code": code_version(),
    }  # fmt: skip


def state(model: nn.Module, made: list[Optimizer], progress: Mapping[str, Any]) -> dict[str, Any]:
    """All a run needs to go on as if it had never stopped, whole wherever it was spread."""
    kept = {"model": weights(model), "moments": moments(model, made), "progress": dict(progress),
            "random": torch.get_rng_state()}  # fmt: skip
    if torch.cuda.is_available():
        kept["random_cuda"] = torch.cuda.get_rng_state_all()
    return kept


def restore(model: nn.Module, made: list[Optimizer], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Put a state back; the progress that was kept with it."""
    load_weights(model, kept["model"])
    remember(model, made, kept["moments"])
    torch.set_rng_state(kept["random"])
    if "random_cuda" in kept and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(kept["random_cuda"])
    progress: dict[str, Any] = kept["progress"]
    return progress


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight and buffer once, by name; what is shared by its first name."""
    stored = model.state_dict().keys()
    yield from model.named_parameters()
    yield from ((name, b) for name, b in model.named_buffers() if name in stored)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights and buffers, whole, on the CPU."""
    return {name: whole(t.detach()).cpu().clone() for name, t in _tensors(model)}


@torch.no_grad()
def load_weights(model: nn.Module, known: Mapping[str, Tensor]) -> None:
    """Set all weights and buffers."""
    for name, t in _tensors(model):
        t.copy_(spread_like(known[name].to(t.device), t))


def save(folder: Path, kept: Mapping[str, Any]) -> None:
    """Replace the checkpoint in one move."""
    with whole_file(folder / "checkpoint.pt") as file:
        torch.save(dict(kept), file)


def saved(folder: Path) -> dict[str, Any] | None:
    """The last checkpoint; None where there is none.

    Raises:
        FieldError: If it cannot be read.
    """
    path = folder / "checkpoint.pt"
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FieldError("checkpoint", str(path), "cannot be read", "remove it to begin "
                         "anew") from error  # fmt: skip
    return found


def begin(folder: Path, settings: dict[str, Any], where: dict[str, Any]) -> str:
    """Make a folder for a run, or go on in one that holds the same run; a warning, if any.

    Raises:
        FieldError: If it holds another run, or cannot be made.
    """
    path = folder / "run.json"
    settings = json.loads(json.dumps(settings))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".*{PART}"):
            left.unlink()
        known = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise FieldError("out", str(folder), f"cannot be used: {error}") from error
    if known is None:
        text = json.dumps({"schema": 1, **settings, "machine": where}, indent=1, ensure_ascii=False)
        write(path, text.encode())
        return ""
    for name in sorted(settings, key=lambda n: n not in SAME):
        if known.get(name) != settings[name]:
            there, here = _short(known.get(name)), _short(settings[name])
            raise FieldError("out", str(folder), f"holds another run: {name} {there} there, {here} "
                             "here", "give another folder")  # fmt: skip
    moved = [n for n, v in where.items() if known["machine"].get(n) != v]
    return f"begun with other {', '.join(moved)}: not bit for bit" if moved else ""


def _short(value: Any) -> str:
    """A value, or the hash of one that is long."""
    text = json.dumps(value)
    return text if len(text) <= 24 else hashlib.sha256(text.encode()).hexdigest()[:8]


class Metrics:
    """The lines of ``metrics.jsonl``, each written at once.

    Args:
        folder: Of the run.
        step: Lines of later steps are dropped: the run goes on from here.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / "metrics.jsonl"
        self.records = [r for r in read_metrics(folder) if r["step"] <= step]
        write(self.path, "".join(map(line, self.records)).encode())

    def add(self, record: dict[str, Any]) -> None:
        """One more line."""
        self.records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line(record))


def line(record: Mapping[str, Any]) -> str:
    """A record as a line."""
    return json.dumps(record) + "\n"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that a kill cut short is no record."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    whole_lines = path.read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in whole_lines if line.endswith("\n")]
