"""Names against sizes, and values of a first upload (SC021 to SC023)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scantling.rules.registry import Fix, Found, rule
from scantling.rules.setting import facts
from scantling.rules.subject import Subject

LABEL = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m|t)(?![a-z0-9])")
ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")
UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
FAR = 0.25
"""Labels are round: within a quarter they are what people say."""


def _size(number: str, unit: str) -> float:
    return float(number) * UNITS[unit]


@rule("SC021", "size-label", "transformers")
def size_label(s: Subject) -> Iterator[Found]:
    """The size in a model's name is the size of the model.

    Compared with all parameters, the body without tables, and what a token passes; the nearest
    counts, and a quarter is let pass (1.3B is said of 1.42). 8x7B names experts and is not asked:
    it is 46.7 B, neither 56 nor 7.

    Exceptions: Gemma 2B (2.5), 3n's E2B (which counts what is resident), labels of tuned families.
    """
    name = s.plain_name.lower().replace("_", "-")
    found = [m for m in LABEL.finditer(name) if m[1] is None]
    if len(found) != 1 or re.search(r"\de\d|e\d+b|\dx\d", name):
        return
    wanted = _size(found[0][2], found[0][3])
    p = s.counted
    total, tables = float(p.total), float(p.embedding) + float(p.lm_head)
    readings = {"parameters": total, "without tables": total - tables, "active": float(p.active)}
    if s.config is not None and any(isinstance(s.config.get(k), dict) for k in
                                    ("vision_config", "audio_config")):  # fmt: skip
        return
    label, near = min(readings.items(), key=lambda r: abs(r[1] / wanted - 1))
    if abs(near / wanted - 1) > FAR:
        yield Found("warning", "name", f"{s.plain_name} has {total / 1e9:.3g} B parameters "
                    f"({label} {near / 1e9:.3g} B is the nearest reading)",
                    Fix(text=f"{total / 1e9:.2g}B" if total > 1e9 else f"{total / 1e6:.3g}M")
        )  # fmt: skip


@rule("SC022", "active-label", "transformers")
def active_label(s: Subject) -> Iterator[Found]:
    """The active size in a model's name (A3B) is what a token passes.

    Exceptions: labels that leave the tables out.
    """
    match = ACTIVE.search(s.plain_name.lower().replace("_", "-"))
    if match is None or not s.experts:
        return
    wanted, p = _size(match[1], match[2]), s.counted
    readings = (float(p.active), float(p.active_body))
    near = min(readings, key=lambda n: abs(n / wanted - 1))
    if abs(near / wanted - 1) > FAR:
        yield Found("warning", "name", f"a token of {s.plain_name} passes "
                    f"{readings[0] / 1e9:.3g} B "
                    "parameters", Fix(text=f"A{readings[0] / 1e9:.2g}B"))  # fmt: skip


@rule("SC023", "stale-upload", "llama2", "llama3-herd", reads="config")
def stale_upload(s: Subject) -> Iterator[Found]:
    """A config does not carry a value that its authors corrected after the first upload.

    Llama 2 was uploaded with Llama 1's 2048 positions and trained at 4096; Llama 3.1 405B with 16
    KV heads for 8.

    Exceptions: Llama 1, which has the same shape and is right; told apart by the name.
    """
    for one in facts()["stale"]:
        part = s.raw
        same = all(part.config.get(k, part.values.get(k)) == v for k, v in one["config"].items())
        named = one["name"] in re.sub(r"[ _]", "-", s.plain_name.lower())
        if same and named and part.values.get(one["key"]) == one["value"]:
            key = part.given.get(one["key"], one["key"])
            yield Found("info", key, f"{key} {one['value']}: {one['note']}",
                        Fix(text=f"{key} {one['right']}"), source=tuple(one["sources"])
            )  # fmt: skip
