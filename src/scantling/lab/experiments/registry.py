"""The experiments by name; one is added by a function under ``@experiment`` in a file here."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc, signature
from typing import Literal

from msgspec import Struct

from scantling.errors import FieldError, UnknownNameError
from scantling.lab.study.design import Study

Preset = Literal["quick", "standard"]
PRESETS = ("quick", "standard")
Build = Callable[..., Study]
"""From a preset, and where the question has sizes from ``times`` a body's size, to a study."""


class Experiment(Struct, frozen=True):
    """A question that can be put to small models."""

    name: str
    title: str
    build: Build
    minutes: float
    """Of the quick preset, on two cores that have nothing else to do."""

    @property
    def page(self) -> str:
        """What it does and how to read it."""
        return cleandoc(self.build.__doc__ or "")

    @property
    def sized(self) -> bool:
        """Whether it can be asked of larger models."""
        return "times" in signature(self.build).parameters

    def study(self, preset: str = "quick", times: int = 1) -> Study:
        """The design of a preset.

        Args:
            preset: Quick or standard.
            times: How many times larger the bodies are.

        Raises:
            UnknownNameError: If there is no such preset.
            FieldError: If it has one size.
        """
        if preset not in PRESETS:
            raise UnknownNameError("--preset", preset, PRESETS)
        if times == 1:
            return self.build(preset)
        if not self.sized:
            known = ", ".join(e.name for e in EXPERIMENTS.values() if e.sized)
            raise FieldError("--ladder", self.name, "has one size", f"use {known}, or a study of "
                             "your own")  # fmt: skip
        return self.build(preset, times=times)


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, title: str, minutes: float) -> Callable[[Build], Build]:
    """Register a function from a preset to a study.

    Args:
        name: As it is asked for; the study carries it too.
        title: The question, in one line.
        minutes: Of the quick preset on two idle cores.
    """

    def register(build: Build) -> Build:
        assert name not in EXPERIMENTS, name
        EXPERIMENTS[name] = Experiment(name, title, build, minutes)
        return build

    return register


def experiment_of(name: str) -> Experiment:
    """An experiment by name.

    Raises:
        UnknownNameError: With the nearest names.
    """
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
