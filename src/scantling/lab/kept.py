"""A model that was kept: the folder of a run of the lab, or weights in a Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct

from scantling.errors import FieldError
from scantling.lab import run_folder, weights, whole_file
from scantling.lab.data import task as task_of
from scantling.lab.model import Decoder
from scantling.lab.numerics import Numerics
from scantling.lab.param import Parametrisation
from scantling.lab.tasks import Task
from scantling.spec import check, decode

RUN = "run.json"


class Kept(Struct, frozen=True):
    """A model, and what it was trained on as far as its folder tells."""

    model: Decoder
    settings: dict[str, Any]
    """Of the run; empty where weights came from elsewhere."""

    def task(self, data: str | None = None, context: int | None = None) -> tuple[Task, str]:
        """The data it was trained on, or other data in its place; and a note where they differ.

        Args:
            data: As for ``lab.data.task``; by default what the run names.
            context: Tokens of a sequence, the run's by default.

        Raises:
            FieldError: If the folder names no data that can be found again, or the data has more
                tokens than the model.
        """
        known: dict[str, Any] = self.settings.get("data", {})
        if data is None and not known:
            raise FieldError("data", None, "is not named beside these weights", "give --data")
        tokenizer = known.get("tokenizer", "bytes")
        of_text = tokenizer == "bytes" or tokenizer.startswith("bpe:")
        name = known["name"] if data is None else data
        try:
            found = task_of(name, self.settings.get("batch"),
                            (context or self.settings.get("context")) if of_text else context,
                            tokenizer if of_text else "bytes")  # fmt: skip
        except FieldError as error:
            if data is not None:
                raise
            raise FieldError("data", name, "of this run is not found again", "give --data") \
                from error  # fmt: skip
        if found.vocab_size > int(self.model.spec.vocab_size):
            raise FieldError("data", name, f"has {found.vocab_size} tokens, the model "
                             f"{self.model.spec.vocab_size}")  # fmt: skip
        same = not known or found.hash == known["hash"]
        return found, "" if same else f"{found.name} is not the data it was trained on"


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
    saved = run_folder.saved(folder)
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
