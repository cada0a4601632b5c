"""A model that was kept: the folder of a run of the lab, or weights in a Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from scantling.errors import FieldError
from scantling.lab import run_folder, weights, whole_file
from scantling.lab.data import task as task_of
from scantling.lab.model import Decoder
from scantling.lab.numerics import Numerics
from scantling.lab.param import Parametrisation
from scantling.lab.tasks import TASKS, Task
from scantling.spec import Spec, check, decode

RUN = "run.json"


class Kept(Struct, frozen=True):
    """A model, and what it was trained on as far as its folder tells."""

    model: Decoder
    settings: dict[str, Any]
    """Of the run; empty where weights came from elsewhere."""

    def task(
        self, data: str | None = None, context: int | None = None, batch: int | None = None,
        tokenizer: str | None = None, bytes_per_token: float | None = None,
    ) -> tuple[Task, str]:  # fmt: skip
        """The data it was trained on, or other data in its place; and a note where they differ.

        Args:
            data: As for ``lab.data.task``; by default what the run names.
            context: Tokens of a sequence, the run's by default.
            batch: Sequences of a step, the run's by default.
            tokenizer: Of text, the run's by default.
            bytes_per_token: Of a ``.bin`` file; of the run's own it is known.

        Raises:
            FieldError: If the folder names no data that can be found again, or the data has more
                tokens than the model.
        """
        known: dict[str, Any] = self.settings.get("data", {})
        if data is None and not known:
            raise FieldError("data", None, "is not named beside these weights", "give --data")
        name = self.settings.get("asked") or known["name"] if data is None else data
        generated = name.partition(":")[0] in TASKS
        if tokenizer is None and not generated:
            own = known.get("tokenizer", "bytes")
            tokenizer = own if own == "bytes" or own.startswith("bpe:") else "bytes"
        if not generated:
            context = context or self.settings.get("context")
        if data is None and known["tokenizer"] == "numbers":
            bytes_per_token = bytes_per_token or known["bytes_per_token"]
        try:
            found = task_of(name, batch or self.settings.get("batch"), context,
                            tokenizer or "bytes", bytes_per_token)  # fmt: skip
        except FieldError as error:
            if data is not None:
                raise
            raise FieldError("data", name, "of this run is not found again", "give --data") \
                from error  # fmt: skip
        if found.vocab_size > int(self.model.spec.vocab_size):
            raise FieldError("data", name, f"has {found.vocab_size} tokens, the model "
                             f"{self.model.spec.vocab_size}")  # fmt: skip
        same = not known or found.hash == known["hash"]
        if same:
            return found, ""
        note = f"{found.name} is not the data it was trained on"
        if known["tokenizer"].startswith("bpe:"):
            note += "; its BPE is trained anew there, so tokens mean other things"
        return found, note


def kept(folder: str | Path, device: str = "cpu") -> Kept:
    """The model of a folder: a run of ``lab train --out``, a cut model, or published weights.

    Args:
        folder: With run.json and checkpoint.pt, or config.json and safetensors.
        device: Where to.

    Raises:
        FieldError: If it holds neither, or cannot be read.
    """
    folder = Path(folder)
    if not (folder / RUN).is_file():
        if not (folder / "config.json").is_file():
            raise FieldError("run", str(folder), "is no run: it has neither run.json nor "
                             "config.json", "lab train MODEL --out DIR makes one")  # fmt: skip
        return Kept(weights.load(folder, device=device), {})
    try:
        settings: dict[str, Any] = json.loads((folder / RUN).read_bytes())
        spec = check(decode(settings["spec"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FieldError("run", str(folder / RUN), "cannot be read") from error
    saved = run_folder.saved(folder, ("model",))
    if saved is None:
        raise FieldError("run", str(folder), "has no checkpoint yet", "train it to a first one")
    model = Decoder(spec, settings["param"], seed=settings["seed"])
    if "numerics" in settings:  # of a model cut from another, whose multipliers it keeps
        numerics = msgspec.convert(settings["numerics"], Numerics)
        model = Decoder(spec, seed=settings["seed"], numerics=numerics)
        model.param = Parametrisation(settings["param"])
    try:
        run_folder.load_weights(model, saved["model"])
    except (KeyError, RuntimeError) as error:
        raise FieldError("checkpoint", str(folder), "is of another model than run.json") from error
    return Kept(model.to(torch.device(device)), settings)


def reshaped(folder: str | Path, spec: Spec, param: str) -> Decoder:
    """The weights of a folder in a model of a shape, which may differ in what has no weights.

    Raises:
        FieldError: If a tensor differs, or the parametrisation.
    """
    old = kept(folder).model
    if old.param.kind != param:
        raise FieldError("param", param, f"is not that of {folder}, which is {old.param.kind}")
    model = Decoder(spec, seed=old.seed, numerics=old.numerics)
    model.param = old.param
    there, here = run_folder.weights(old), run_folder.weights(model)
    for name in [*there, *here]:
        sizes = [_size(side[name]) if name in side else "absent" for side in (there, here)]
        if sizes[0] != sizes[1]:
            raise FieldError("--from", str(folder), f"is of another layout: {name} is {sizes[0]} "
                             f"there, {sizes[1]} in the model asked for",
                             "leave MODEL and --set out to go on with its own")  # fmt: skip
    run_folder.load_weights(model, there)
    return model


def _size(t: Tensor) -> str:
    return " × ".join(map(str, t.shape)) or "a number"


def keep(model: Decoder, settings: dict[str, Any], folder: Path) -> None:
    """Keep a model that was cut from another, so that ``kept`` finds it.

    Raises:
        FieldError: If the folder is in use, or cannot be made.
    """
    if (folder / RUN).exists():
        raise FieldError("save", str(folder), "holds a run", "give another folder")
    told = {"schema": 1, "seed": model.seed, **settings, "spec": msgspec.to_builtins(model.spec),
            "param": model.param.kind, "numerics": msgspec.to_builtins(model.numerics)}  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run_folder.save(folder, {"model": run_folder.weights(model)})
        whole_file.write(folder / RUN, json.dumps(told, indent=1).encode())
    except OSError as error:
        raise FieldError("save", str(folder), f"cannot be written: {error}") from error
