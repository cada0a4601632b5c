"""``design --save DIR``: a config per shape, the answer as JSON, a report and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from scantling.errors import FieldError
from scantling.report.figure import save_front
from scantling.report.text import print_front
from scantling.search import Front, front_json
from scantling.search.candidate import hf_config


def save(front: Front, folder: Path, progress: Callable[[str], None] | None = None) -> list[Path]:
    """Write everything a front says into a folder.

    ``NAME/config.json`` loads in transformers and counts exactly what was predicted;
    ``front.json`` is the whole answer, ``report.html`` the text with the picture.

    Raises:
        FieldError: If the folder cannot be written.
    """
    from rich.console import Console

    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for c in front.candidates:
            config = hf_config(c.spec)
            assert config is not None, f"{c.name} has no Hugging Face config"
            place = folder / c.name / "config.json"
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            written.append(place)
        answer = folder / "front.json"
        answer.write_text(json.dumps(front_json(front), indent=1), encoding="utf-8")
        picture = ""
        try:
            picture = save_front(front, folder / "front.svg").read_text("utf-8")
            picture = picture[picture.index("<svg") :]
            written.append(folder / "front.svg")
        except FieldError as error:
            if progress is not None:
                progress(f"no picture: {error}")
        with (folder / "report.txt").open("w", encoding="utf-8") as sink:
            page = Console(record=True, file=sink, width=190, highlight=False)
            print_front(page, front, rows=24)
        html = page.export_html(inline_styles=True)
        report = folder / "report.html"
        report.write_text(html.replace("</body>", f"{picture}</body>"), encoding="utf-8")
        written += [answer, report]
    except OSError as error:
        raise FieldError("save", str(folder), f"cannot be written: {error.strerror}") from None
    return written
