"""``scantling lab probe``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scantling.cli.options import CONTEXT, COUNT, as_json, show_json
from scantling.errors import FieldError

if TYPE_CHECKING:
    from scantling.lab.interventions import Intervention
    from scantling.lab.kept import Kept


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--mask-heads", "heads", multiple=True, metavar="LAYER:HEADS", help="Heads that give "
              "nothing: 3:0,2 or 3:0-5 or 3:all; as often as needed.")  # fmt: skip
@click.option("--drop-layers", metavar="LAYERS", help="Layers that are not there: 3,5-7.")
@click.option("--low-rank", metavar="RANK[:LAYERS]", help="Feed-forwards of lower rank, by SVD: "
              "16, or 16:2-5 for some layers.")  # fmt: skip
@click.option("--share-ffn", metavar="N|GROUPS", help="One feed-forward for every N layers, or for "
              "groups: 0-2,3-5.")  # fmt: skip
@click.option("--window", metavar="TOKENS[:LAYERS]", help="Attention sees so many tokens at most.")
@click.option("--rope", metavar="KIND", help="Stretch rotary positions to --context: yarn, linear, "
              "ntk, dynamic, llama3, longrope.")  # fmt: skip
@click.option("--original-context", type=CONTEXT, help="Tokens it was trained on; the run's own by "
              "default.")  # fmt: skip
@click.option("--context", type=CONTEXT, help="Tokens of a sequence; the run's own by default.")
@click.option("--data", metavar="NAME|FILE", help="Judge on this; the run's own data by default.")
@click.option("--read", is_flag=True, help="Also read the changed model.")
@click.option("--batches", type=COUNT, default=1, show_default=True, help="To read.")
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Keep the model that "
              "is built; lab probe DIR reads it.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@as_json
def probe(run: Path, **given: Any) -> int:
    """Look inside a trained model, or see what it loses without some of its parts.

    RUN is the folder of a run (lab train --out), or of config.json and safetensors. Layers and
    heads count from 0. Without an intervention the model is read, layer by layer; with some it is
    judged as it is, changed in place, and built for real, with the time of a pass.

    Example: scantling lab probe my-run --drop-layers 2 --mask-heads 1:0,3
    """
    from scantling.lab.torch_needed import need_torch

    need_torch()
    import torch

    from scantling.lab.kept import keep, kept

    torch.set_num_threads(given["threads"])
    if given["device"] != "cpu" and not torch.cuda.is_available():
        raise FieldError("--device", given["device"], "is not here", "use cpu")
    one = kept(run, given["device"])
    changes = _asked(one, given)
    if given["save"] and not changes:
        raise FieldError("--save", str(given["save"]), "needs a change", "name one")
    found = _found(one, changes, given)
    if given["save"]:
        from scantling.lab.interventions import materialise

        settings = {**one.settings, "cut_from": str(run), "changes": found["interventions"]}
        keep(materialise(one.model, *changes), settings, given["save"])
    found = {"schema": 1, "run": str(run), **found}
    if given["as_json"]:
        show_json(found)
    else:
        _print(found, given)
    return 0


def _found(one: Kept, changes: list[Intervention], given: dict[str, Any]) -> dict[str, Any]:
    """What is read and compared, as JSON."""
    import msgspec

    from scantling.lab.examine import compare, readings

    task, note = one.task(given["data"], given["context"])
    found: dict[str, Any] = {
        "data": task.name, "note": note,
        "interventions": [msgspec.to_builtins(c) for c in changes],
    }  # fmt: skip
    read: list[dict[str, Any]] = []
    if changes:
        wanted = given["read"]
        heard = (lambda m: read.append(readings(m, task, given["batches"]))) if wanted else _quiet
        found |= compare(one.model, task, changes, heard)
    else:
        read.append(readings(one.model, task, given["batches"]))
    return found | ({"readings": read[0]} if read else {})


def _quiet(_: object) -> None:
    """Nothing is read."""


def _print(found: dict[str, Any], given: dict[str, Any]) -> None:
    from scantling.report import text
    from scantling.report.lab_probe import print_comparison, print_readings

    out = text.console()
    if found["note"]:
        out.print(f"note: {found['note']}", markup=False)
    if "rows" in found:
        print_comparison(out, found)
    if "readings" in found:
        print_readings(out, found["readings"], "as changed" if "rows" in found else "")
    if given["save"]:
        out.print(f"kept in {given['save']}", markup=False)


# ---------------------------------------------------------------- what is asked


def _asked(one: Kept, given: dict[str, Any]) -> list[Intervention]:
    """The interventions of the options, in the order of the help."""
    from scantling.lab.interventions import DropLayers, LowRank, MaskHeads, Narrow, ShareFfn

    n_layer = int(one.model.spec.n_layer)
    found: list[Intervention] = []
    if given["heads"]:
        found.append(MaskHeads(tuple(p for text in given["heads"] for p in _heads(one, text))))
    if given["drop_layers"]:
        found.append(DropLayers(tuple(numbers(given["drop_layers"], "--drop-layers"))))
    if given["low_rank"]:
        found.append(LowRank(*_of_layers(given["low_rank"], "--low-rank")))
    if given["share_ffn"]:
        found.append(_shared(given["share_ffn"], n_layer, ShareFfn))
    if given["window"]:
        found.append(Narrow(*_of_layers(given["window"], "--window")))
    if given["rope"]:
        found.append(_rope(one, given))
    elif given["original_context"]:
        raise FieldError("--original-context", given["original_context"], "needs --rope")
    return found


def _rope(one: Kept, given: dict[str, Any]) -> Intervention:
    from scantling.lab.interventions import ScaleRope

    original = given["original_context"] or one.settings.get("context")
    if given["context"] is None:
        raise FieldError("--rope", given["rope"], "needs the longer --context")
    return ScaleRope(given["rope"], given["context"], original)


def _heads(one: Kept, text: str) -> list[tuple[int, int]]:
    from scantling.lab.masks import attention_of

    layer, colon, heads = text.partition(":")
    if not colon or not layer.isdigit():
        raise FieldError("--mask-heads", text, "is not LAYER:HEADS", "write 3:0,2 or 3:all")
    at = int(layer)
    if heads == "all":
        return [(at, h) for h in range(attention_of(list(one.model.layers), at).h)]  # type: ignore[arg-type]
    return [(at, h) for h in numbers(heads, "--mask-heads")]


def _of_layers(text: str, option: str) -> tuple[int, tuple[int, ...] | None]:
    value, colon, layers = text.partition(":")
    if not value.isdigit():
        raise FieldError(option, text, "is no number", "write 16, or 16:2-5 for some layers")
    return int(value), tuple(numbers(layers, option)) if colon else None


def _shared(text: str, n_layer: int, kind: Any) -> Intervention:
    if text.isdigit():
        if int(text) < 2:
            raise FieldError("--share-ffn", text, "shares nothing", "use 2 or more")
        found: Intervention = kind.neighbours(n_layer, int(text))
        return found
    made: Intervention = kind(tuple(tuple(numbers(g, "--share-ffn")) for g in text.split(",")))
    return made


def numbers(text: str, option: str) -> list[int]:
    """Numbers and ranges, both ends included.

    Example:
        >>> numbers("0,3-5", "--drop-layers")
        [0, 3, 4, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise FieldError(option, text, "is no list of numbers", "write 0,3-5")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise FieldError(option, text, f"has a range that runs backwards, {part.strip()}")
        found += range(first, last + 1)
    return found
