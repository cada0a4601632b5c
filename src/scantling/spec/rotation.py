"""Rotary frequencies: how fast each pair of numbers of a head turns, under every scaling.

Pair i of a rotary width r turns θ^(−2i/r) radians a token, so its wavelength is 2π θ^(2i/r)
tokens. A context extension changes these frequencies, and some scale the rotated queries and keys.
The functions follow those of transformers (``modeling_rope_utils.py``) step by step in 32 bits:
where a ramp begins a large factor makes their rounding as large as 4e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scantling.errors import FieldError, UnknownNameError
from scantling.spec.model import Spec
from scantling.spec.modules import CompressedAttention, GroupedAttention, LatentAttention
from scantling.spec.positions import Chunk, Rope, Window
from scantling.spec.vary import nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

TURN = 2 * math.pi


class Frequencies(Struct, frozen=True):
    """What a rotary setting does to a head."""

    inverse: tuple[float, ...]
    """Radians a token of each pair; 0 for a pair that does not turn."""
    attention_factor: float = 1.0
    """On the rotated queries and keys alike, so scores grow by its square."""

    @property
    def wavelengths(self) -> tuple[float, ...]:
        """Tokens of a full turn of each pair."""
        return tuple(TURN / f if f else math.inf for f in self.inverse)


class Asked(Struct, frozen=True):
    """What the frequencies of a scaled rotation depend on."""

    theta: float
    width: int
    """Numbers of a head that turn."""
    settings: dict[str, Any]
    max_context: int | None
    length: int | None
    """Tokens of the sequence; by default what a class assumes when it is built."""
    head: int
    """Numbers of a head."""

    def get(self, name: str, default: float | None = None) -> float:
        """A number among the settings.

        Raises:
            FieldError: If it is missing and has no default, or is no number.
        """
        value = self.settings.get(name)
        value = default if value is None else value
        if value is None:
            kind = self.settings.get("rope_type")
            raise FieldError(f"rope.{name}", None, f"is missing, which {kind} needs")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise FieldError(f"rope.{name}", value, "must be a number above zero")
        return float(value)

    @property
    def original(self) -> float:
        """Tokens of the context before it was stretched."""
        return self.get("original_max_position_embeddings", self.max_context)

    @property
    def factor(self) -> float:
        """How often the context is longer: as written, else the ratio of the lengths."""
        ratio = None if self.max_context is None else self.max_context / self.original
        return self.get("factor", ratio)


def scaling_settings(rope: Rope | None) -> dict[str, Any]:
    """The context extension of a rotary setting, its kind under ``rope_type``; empty if plain.

    Example:
        >>> scaling_settings(Rope(1e4, 1.0, (("factor", 4.0), ("type", "linear"))))
        {'factor': 4.0, 'rope_type': 'linear'}
    """
    pairs = dict(rope.scaling or ()) if rope is not None else {}
    if "type" in pairs:
        kind = pairs.pop("type")
        pairs.setdefault("rope_type", kind)
    kind = pairs.get("rope_type", "default")
    if kind == "su":  # what Phi-3 called longrope at first
        pairs["rope_type"] = "longrope"
    return {} if kind in PLAIN else pairs


PLAIN = ("default", "mrope", "gptj", None)
"""Names that change no frequency: sections of several axes, and how pairs are laid out."""


def frequencies(
    rope: Rope, head: int, max_context: int | None = None, length: int | None = None
) -> Frequencies:
    """The frequencies of a rotary setting, and its factor on attention.

    Args:
        rope: The setting.
        head: Numbers of a head (of its rotary part, in latent attention).
        max_context: Tokens the model reads at most, which some kinds need.
        length: Tokens of the sequence at hand, for ``dynamic`` and ``longrope``; as a class is
            built by default.

    Raises:
        FieldError: If the kind is unknown, or one of its numbers is missing or impossible.

    Example:
        >>> plain = frequencies(Rope(10_000.0), 128)
        >>> len(plain.inverse), round(plain.wavelengths[0], 3), round(plain.wavelengths[-1])
        (64, 6.283, 54410)
        >>> half = Rope(10_000.0, scaling=(("factor", 2.0), ("rope_type", "linear")))
        >>> frequencies(half, 128).inverse[0]
        0.5
    """
    settings = scaling_settings(rope)
    kind = settings.get("rope_type", "default")
    if kind not in SCALINGS:
        raise UnknownNameError("rope_type", str(kind), SCALINGS)
    width = int(head * rope.fraction)
    if width < 2:
        raise FieldError("rope.fraction", rope.fraction, f"leaves no pair of {head} to turn")
    return SCALINGS[kind](Asked(rope.theta, width, settings, max_context, length, head))


def _turning(theta: float, width: int, of: int | None = None) -> NDArray[Any]:
    """θ^(−2i/r) for every pair, in 32 bits; the power itself is rounded once."""
    import numpy as np

    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(of or width)
    power = np.float64(np.float32(theta)) ** exponent.astype(np.float64)
    return np.float32(1) / power.astype(np.float32)


def _found(turning: NDArray[Any], strength: float = 1.0) -> Frequencies:
    return Frequencies(tuple(map(float, turning)), strength)


def _plain(a: Asked) -> Frequencies:
    return _found(_turning(a.theta, a.width))


def _linear(a: Asked) -> Frequencies:
    """All pairs slower by the factor (position interpolation; chen2023)."""
    return _found(_turning(a.theta, a.width) / a.get("factor"))


def _proportional(a: Asked) -> Frequencies:
    """Gemma 4: pairs of the whole head's spectrum, only the fastest of which turn."""
    import numpy as np

    fast = _turning(a.theta, 2 * (a.width // 2), a.head) / a.get("factor", 1.0)
    still = np.zeros(a.head // 2 - len(fast), dtype=np.float32)
    return _found(np.concatenate([fast, still]))


def stretched_base(theta: float, width: int, factor: float) -> float:
    """The base under which the slowest pair turns slower by a factor: θ·f^(r/(r−2)).

    The last exponent is (r−2)/r, so that its frequency becomes θ^(−(r−2)/r) / f (NTK-aware
    scaling; ntk2023).

    Example:
        >>> round(stretched_base(10_000.0, 128, 4.0))
        40890
    """
    if width < 4:
        raise FieldError("rope", width, "needs two pairs that turn for another base")
    return float(theta * factor ** (width / (width - 2)))


def _dynamic(a: Asked) -> Frequencies:
    """The base of the sequence at hand: θ·(f·s/M − (f−1))^(r/(r−2)), s at least M."""
    limit = a.max_context or a.length
    if limit is None:
        raise FieldError("max_position_embeddings", None, "is missing, which dynamic needs")
    factor = a.get("factor")
    grown = factor * max(a.length or limit, limit) / limit - (factor - 1)
    return _found(_turning(stretched_base(a.theta, a.width, grown), a.width))


def mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's scale on rotated queries and keys: 0.1 w ln f + 1 (yarn2023).

    Example:
        >>> round(mscale(4.0), 4)
        1.1386
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def yarn_range(a: Asked) -> tuple[float, float]:
    """The pairs between which YaRN changes from keeping to stretching.

    A pair makes n turns in the original context L at i = r ln(L / (2π n)) / (2 ln θ): 32 turns
    (β fast) begin the range, 1 turn (β slow) ends it.
    """
    turns = [a.get("beta_fast", 32.0), a.get("beta_slow", 1.0)]
    low, high = (
        a.width * math.log(a.original / (n * TURN)) / (2 * math.log(a.theta)) for n in turns
    )
    if a.settings.get("truncate", True) is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, a.width - 1)
    return low, high + 0.001 if low == high else high


def _yarn(a: Asked) -> Frequencies:
    """Fast pairs as they were, slow ones slower by the factor, a ramp between (yarn2023)."""
    import numpy as np

    factor = a.factor
    low, high = yarn_range(a)
    kept = _turning(a.theta, a.width)
    # the class divides by factor · θ^(2i/r), which rounds otherwise than kept / factor
    slow = np.float32(1) / (np.float32(factor) * (np.float32(1) / kept))
    ramp = np.clip((np.arange(len(kept), dtype=np.float32) - low) / (high - low), 0, 1)
    share = np.float32(1) - ramp
    given = a.settings.get("attention_factor")
    one, all_ = a.settings.get("mscale"), a.settings.get("mscale_all_dim")
    strength = mscale(factor)
    if given is not None:
        strength = float(given)
    elif one and all_:
        strength = mscale(factor, one) / mscale(factor, all_)
    return _found(slow * (np.float32(1) - share) + kept * share, strength)


def _longrope(a: Asked) -> Frequencies:
    """A factor for each pair: short ones up to the original context, long ones beyond."""
    import numpy as np

    original = a.original
    name = longrope_table(a.length or 0, int(original))
    factors = a.settings.get(f"{name}_factor")
    turning = _turning(a.theta, a.width)
    if not isinstance(factors, tuple | list) or len(factors) != len(turning):
        n = len(factors) if isinstance(factors, tuple | list) else None
        rule = f"must be a factor for each of the {len(turning)} pairs"
        raise FieldError(f"rope.{name}_factor", n, rule)
    given = a.settings.get("attention_factor")
    strength = 1.0
    if given is not None:
        strength = float(given)
    elif a.factor > 1:
        strength = math.sqrt(1 + math.log(a.factor) / math.log(original))
    return _found(turning / np.array(factors, dtype=np.float32), strength)


def longrope_table(length: int, original: int) -> str:
    """Which factors longrope uses for a sequence: the long ones beyond the original length.

    Example:
        >>> longrope_table(4096, 4096), longrope_table(4097, 4096)
        ('short', 'long')
    """
    return "long" if length > original else "short"


def _llama3(a: Asked) -> Frequencies:
    """By wavelength: above L/low slower by the factor, below L/high as they were, smooth between.

    Between, with the share s = (L/λ − low) / (high − low), a frequency is (1 − s)/f + s of what
    it was.
    """
    import numpy as np

    factor, original = a.get("factor"), a.original
    low, high = a.get("low_freq_factor"), a.get("high_freq_factor")
    turning = _turning(a.theta, a.width)
    wavelength = np.float32(TURN) / turning
    slow = np.where(wavelength > original / low, turning / factor, turning)
    if high == low:  # Llama 4 Scout: no range between
        return _found(slow)
    smooth = (original / wavelength - low) / (high - low)
    between = (wavelength >= original / high) & (wavelength <= original / low)
    blended = (1 - smooth) * slow / factor + smooth * slow
    return _found(np.where(between, blended, slow))


SCALINGS: dict[str, Callable[[Asked], Frequencies]] = {
    "default": _plain, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn,
    "longrope": _longrope, "llama3": _llama3, "proportional": _proportional,
}  # fmt: skip
"""Every kind that transformers computes, by its ``rope_type``."""


class Rotation(Struct, frozen=True):
    """One rotary setting of a model, and the layers that share it."""

    rope: Rope
    head: int
    """Numbers of a head, or of the rotary part of one."""
    reach: int | None
    """Tokens a query sees at most: a window or chunk; None for all."""
    n_layer: int

    def distance(self, context: int) -> int:
        """Tokens between a query and the last key it sees, itself counted."""
        return context if self.reach is None else min(context, self.reach)


def rotations(spec: Spec) -> tuple[Rotation, ...]:
    """The rotary settings of a model; those of layers that see the whole context first.

    Example:
        >>> from scantling import catalog
        >>> [(r.rope.theta, r.reach, r.n_layer) for r in rotations(catalog.model("gemma-3-1b"))]
        [(1000000.0, None, 4), (10000.0, 512, 22)]
    """
    found: dict[tuple[Rope, int, int | None], int] = {}
    for stack in (spec.decoder, *([spec.encoder] if spec.encoder is not None else [])):
        for name, n in stack.occurrences().items():
            for _, node in nodes(stack.kind(name)):
                rope = getattr(node, "position", None)
                if not isinstance(rope, Rope):
                    continue
                key = (rope, _head(node), _reach(node))
                found[key] = found.get(key, 0) + int(n)
    listed = [Rotation(*key, n_layer=n) for key, n in found.items()]
    return tuple(sorted(listed, key=lambda r: (r.reach is not None, -(r.reach or 0))))


def _head(node: Any) -> int:
    return int(node.d_rope if isinstance(node, LatentAttention) else node.d_head)


def _reach(node: Any) -> int | None:
    if isinstance(node, CompressedAttention):
        return None if node.compress is not None else int(node.window)
    if isinstance(node, GroupedAttention | LatentAttention):
        if isinstance(node.span, Window):
            return int(node.span.window)
        if isinstance(node.span, Chunk):
            return int(node.span.chunk)
    return None
