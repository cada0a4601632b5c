"""``design --save DIR``: configs and launch fragments of every shape, the answer, a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantling.errors import FieldError, ScantlingError
from scantling.formats.registry import export
from scantling.report.design_html import page
from scantling.report.figure import save_front
from scantling.report.study_file import study_text
from scantling.report.text import console, print_front
from scantling.search import Candidate, Front, front_json, row_plans
from scantling.search.candidate import hf_config

if TYPE_CHECKING:
    from scantling.report.design_more import Section

MANIFEST = "manifest.json"
"""What a save wrote: a later one replaces exactly that."""
FRAGMENTS = {
    "megatron": "megatron.args", "torchtitan": "torchtitan.py", "litgpt": "litgpt.yaml",
    "nanotron": "nanotron.yaml", "gguf": "gguf.keys", "vllm": "vllm.args",
}  # fmt: skip
"""The file of each target beside a shape's config.json."""
REPORTED = 24
"""Rows of the report, each with a plan where chips were given."""


def check_folder(folder: Path) -> list[Path]:
    """Files of an earlier save in a folder, which a new one replaces.

    Raises:
        FieldError: If it is no folder, or holds anything a save did not write.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise FieldError("--save", str(folder), "is a file", "give a folder")
    here = sorted(p.relative_to(folder) for p in folder.rglob("*") if not p.is_dir())
    if not here:
        return []
    known: set[Path] = set()
    if (folder / MANIFEST).is_file():
        try:
            told = json.loads((folder / MANIFEST).read_text("utf-8"))
            known = {Path(name) for name in told["files"]}
        except (ValueError, KeyError, TypeError):
            known = set()
    other = next((p for p in here if p not in known), None)
    if other is not None:
        raise FieldError("--save", str(folder), f"holds {other}, which no save wrote",
                         "give an empty folder: runs must not mix")  # fmt: skip
    return [folder / p for p in here]


def save(
    front: Front, folder: Path, progress: Callable[[str], None] | None = None,
    more: Iterable[Section] = (),
) -> list[Path]:  # fmt: skip
    """Write everything a front says into a folder.

    ``NAME/config.json`` loads in transformers and counts exactly what was predicted, with the
    launch fragments of every tool that can say the shape beside it; ``front.json`` is the whole
    answer; ``report.html`` the same for people, in one file that needs no network; ``study.toml``
    trains shapes of the front, small, with ``lab run``.

    Raises:
        FieldError: If the folder holds something else, or cannot be written.
    """
    sections = list(more)
    try:
        for path in check_folder(folder):
            path.unlink()
        for place in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
            place.rmdir()
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []

        def write(name: str, text: str) -> None:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)

        refused: dict[str, str] = {}
        for c in front.candidates:
            for name, text in _fragments(c, refused):
                write(f"{c.name}/{name}", text)
        plans = row_plans(front, REPORTED)
        found = front_json(front, plans=plans) | {one.key: one.json for one in sections}
        write("front.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        write("report.html", page(front, sections))
        study = study_text(front)
        if study is None:
            refused["study.toml"] = "the choice has no config.json"
        else:
            write("study.toml", study)
        with (folder / "report.txt").open("w", encoding="utf-8") as sink:
            out = console(file=sink)
            print_front(out, front, REPORTED, plans)
            sink.writelines(f"\n{line}" for one in sections for line in (*one.lines, ""))
        written.append(folder / "report.txt")
        try:
            written.append(save_front(front, folder / "front.svg"))
        except FieldError as error:
            refused["front.svg"] = str(error)
        names = [MANIFEST, *(str(p.relative_to(folder)) for p in written)]
        write(MANIFEST, json.dumps({"schema": 1, "files": sorted(names)}, indent=1) + "\n")
    except OSError as error:
        raise FieldError("save", str(folder), f"cannot be written: {error.strerror}") from None
    if progress is not None:
        for name, why in refused.items():
            progress(f"not written: {name}: {why}")
    return written


def _fragments(c: Candidate, refused: dict[str, str]) -> Iterable[tuple[str, str]]:
    """A shape's config and its launch fragments; what a target cannot say is told once."""
    config: dict[str, Any] | None = hf_config(c.spec)
    if config is None:
        refused.setdefault("config.json", f"no Hugging Face type says {c.name}")
    else:
        yield "config.json", json.dumps(config, indent=2) + "\n"
    for target, name in FRAGMENTS.items():
        try:
            yield name, export(c.spec, target).text
        except ScantlingError as error:
            refused.setdefault(name, f"{c.name}: {error}")
