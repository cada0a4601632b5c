"""The spec as a real model in torch (extra ``lab``): built, run, measured.

Nothing here is imported unless asked for: torch costs seconds to load.
"""

from __future__ import annotations

from scantling.lab.shrink import shrink
from scantling.lab.torch_needed import need_torch

__all__ = ["need_torch", "shrink"]
