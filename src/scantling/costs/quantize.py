"""Schemes in which weights are kept for serving: how matrices are packed, which chips read them."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scantling.arith import Dim, Num, ceil_div, minimum, product
from scantling.costs.adapters import packed_bytes
from scantling.errors import FieldError, ScantlingError, UnknownNameError, shorten
from scantling.formats.declared import quantization, unpacked_parts
from scantling.formats.quantized import QUANTIZED
from scantling.formats.stored import BlockType, block_type
from scantling.hardware import Chip
from scantling.sources import read_data

NAME = re.compile(r"(.+?)-?g(\d{1,5})")


class Plain(Struct, frozen=True, tag="plain", tag_field="type", forbid_unknown_fields=True):
    """One number an element."""

    bits: int

    def matrix_bytes(self, out: Dim, inner: Dim) -> Num:
        """Bytes of an out × in matrix."""
        return _eighth(product(out, inner, self.bits))


class Grouped(Struct, frozen=True, tag="grouped", tag_field="type", forbid_unknown_fields=True):
    """Codes with a scale, and perhaps a zero point, for each group of inputs of each output.

    codes    out × in × bits / 8
    scales   out × ⌈in / group⌉ × (scale_bits + zero_bits) / 8, one group where ``group`` is 0
    matrix   tensor_bits / 8
    """

    bits: int
    group: int
    scale_bits: int
    zero_bits: int = 0
    tensor_bits: int = 0

    def matrix_bytes(self, out: Dim, inner: Dim) -> Num:
        """Bytes of an out × in matrix."""
        groups: Any = ceil_div(inner, self.group) if self.group else 1
        codes: Any = product(out, inner, self.bits)
        scales: Any = product(out, groups, self.scale_bits + self.zero_bits)
        return _eighth(codes + scales + self.tensor_bits)


class Blocked(Struct, frozen=True, tag="blocked", tag_field="type", forbid_unknown_fields=True):
    """Codes with a scale for each block of outputs × inputs; blocks at the edges are cut."""

    bits: int
    block_out: int
    block_in: int
    scale_bits: int

    def matrix_bytes(self, out: Dim, inner: Dim) -> Num:
        """Bytes of an out × in matrix."""
        blocks: Any = product(ceil_div(out, self.block_out), ceil_div(inner, self.block_in))
        codes: Any = product(out, inner, self.bits)
        return _eighth(codes + blocks * self.scale_bits)


class Flat(Struct, frozen=True, tag="flat", tag_field="type", forbid_unknown_fields=True):
    """Codes in blocks of so many elements in storage order, with the scales of ``packed_bytes``."""

    dtype: str
    block: int

    def matrix_bytes(self, out: Dim, inner: Dim) -> Num:
        """Bytes of an out × in matrix."""
        return product(out, inner) * packed_bytes(self.dtype)


Rule = tuple[str, str]


class Mixed(Struct, frozen=True, tag="mixed", tag_field="type", forbid_unknown_fields=True):
    """A GGUF type for each kind of tensor; see ``data/quantization.toml`` for the rules."""

    base: str
    output: str
    value: tuple[Rule, ...] = ()
    down: tuple[Rule, ...] = ()
    o: tuple[Rule, ...] = ()
    eight: bool = False

    def matrix_bytes(self, out: Dim, inner: Dim) -> Num:
        """Bytes of an out × in matrix in the base type."""
        return typed_bytes(self.base, out, inner, inner)


Packing = Plain | Grouped | Blocked | Flat | Mixed


class Scheme(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the weights of a model are kept.

    Args:
        name: ``awq-int4``, ``gptq-int4-g32``, ``q4_k_m``.
        title: Its name for people.
        packing: How a matrix is kept.
        sources: Keys of the bibliography.
        parts: Which parts of a model are packed; the rest stays in 16 bits.
        rate: The dtype whose units compute; None unpacks to 16 bits.
        capability: NVIDIA's oldest compute capability with kernels that unpack the weights.
        vendors: Whose chips have such kernels; ``*`` is every one.
        tiles: (n, k) multiples of a rank's matrix that fast kernels take, one pair of them.
        strict: The pair that older releases ask for.
        multiple: What both dimensions of a rank's matrix are padded to or must be multiples of.
        out_multiple: What a rank's outputs must be multiples of.
        others: How matrices of layers outside ``parts`` are kept; None leaves them in 16 bits.
        dealt: Whether blocks are dealt out whole to ranks, so that no width is refused.
        pad: Multiples to which kernels pad the experts of a rank: of their width, of D.
    """

    name: str
    title: str
    packing: Packing
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    parts: tuple[str, ...] = tuple(sorted(QUANTIZED))
    others: Packing | None = None
    rate: str | None = None
    capability: float | None = None
    vendors: tuple[str, ...] = ()
    tiles: tuple[tuple[int, int], ...] = ()
    strict: tuple[int, int] | None = None
    multiple: int = 1
    out_multiple: int = 1
    dealt: bool = False
    pad: tuple[int, int] = (1, 1)

    @property
    def in_unit(self) -> int:
        """Inputs of a matrix that share a scale and so must lie on one rank."""
        p = self.packing
        return p.group or 1 if isinstance(p, Grouped) else p.block_in if isinstance(
            p, Blocked) else 1  # fmt: skip

    @property
    def out_unit(self) -> int:
        """Outputs that share a scale."""
        return self.packing.block_out if isinstance(self.packing, Blocked) else 1

    @property
    def quantised(self) -> bool:
        """Whether anything is packed."""
        return not isinstance(self.packing, Plain)


def _eighth(bits: Any) -> Num:
    """Bits as bytes: an int where they are whole."""
    found: Num = bits // 8 if isinstance(bits, int) and bits % 8 == 0 else bits / 8
    return found


@functools.cache
def _data() -> dict[str, Any]:
    return read_data("quantization.toml")


@functools.cache
def schemes() -> dict[str, Scheme]:
    """Every scheme of the table by its name.

    Example:
        >>> [name for name in schemes() if "int4" in name]
        ['awq-int4', 'gptq-int4', 'int4']
    """
    found = {
        name: msgspec.convert({"name": name, **entry}, Scheme)
        for name, entry in _data()["scheme"].items()
    }
    mixes = _data()["mix"]
    for name, entry in mixes["type"].items():
        found[name] = Scheme(
            name=name, title=f"GGUF {name.upper()}", vendors=("*",),
            packing=msgspec.convert({"type": "mixed", **entry}, Mixed),
            sources=tuple(mixes["sources"]),
        )  # fmt: skip
    return found


def _plain(name: str) -> str:
    return "".join(c for c in name.lower().removeprefix("torch.") if c.isalnum())


@functools.cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for key, one in schemes().items():
        for spelling in (key, *one.aliases):
            assert names.setdefault(_plain(spelling), key) == key, spelling
    return names


def scheme(name: str) -> Scheme:
    """A scheme by name; ``-g64`` behind one with groups sets their size.

    Args:
        name: ``bf16``, ``fp8-block``, ``awq``, ``gptq-int4-g32``, ``gptq-int4-channel``,
            ``Q4_K_M``.

    Raises:
        UnknownNameError: If no scheme has that name.
        FieldError: If a group size is given to a scheme without groups.

    Example:
        >>> scheme("AWQ").name, scheme("gptq-int4-g32").in_unit, scheme("q4_k_m").title
        ('awq-int4', 32, 'GGUF Q4_K_M')
        >>> scheme("awq-int3")
        Traceback (most recent call last):
        ...
        scantling.errors.UnknownNameError: quant awq-int3 is not known; did you mean awq-int4?
    """
    known = _names()
    plain = _plain(name)
    aliases = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
    plain = aliases.get(plain, plain)
    if plain in known:
        return schemes()[known[plain]]
    base = plain.removesuffix("channel")
    if base != plain and base in known and known[base] in GROUPS:
        return _by_output(schemes()[known[base]])
    match = NAME.fullmatch(name.strip().lower())
    if match and _plain(match[1]) in known:
        return _sized(schemes()[known[_plain(match[1])]], int(match[2]))
    raise UnknownNameError("quant", shorten(name), schemes())


GROUPS = ("awq-int4", "gptq-int4", "gptq-int8", "int4")
"""Schemes whose group is a choice."""


def _by_output(one: Scheme) -> Scheme:
    """A scheme with one scale for all inputs of an output: group size −1."""
    assert isinstance(one.packing, Grouped)
    packing = replace(one.packing, group=0)
    title = one.title.replace("a group", "an output")
    return replace(one, name=f"{one.name}-channel", packing=packing, title=title)


def _sized(one: Scheme, group: int) -> Scheme:
    if one.name not in GROUPS or not isinstance(one.packing, Grouped):
        raise FieldError("quant", f"{one.name}-g{group}", "has a group size, and its groups are "
                         "fixed", f"use {one.name}")  # fmt: skip
    if group < 1 or group % 8:
        raise FieldError("quant", f"{one.name}-g{group}", "needs a group that is a multiple of 8",
                         "use 32, 64 or 128")  # fmt: skip
    if group == one.packing.group:
        return one
    packing = replace(one.packing, group=group)
    return replace(one, name=f"{one.name}-g{group}", packing=packing,
                   title=f"{one.title} of {group}")  # fmt: skip


def scheme_of(config: dict[str, Any]) -> Scheme | None:
    """The scheme that a config.json says its weights are in; None where it says none.

    Args:
        config: A parsed config.

    Raises:
        FieldError: If the method is none that a size is known of.

    Example:
        >>> scheme_of({"quantization_config": {"quant_method": "gptq", "bits": 4,
        ...            "group_size": 32}}).name
        'gptq-int4-g32'
    """
    found = quantization(config)
    if not found:
        return None
    method = str(found.get("quant_method") or found.get("quant_algo") or "").lower()
    if method == "modelopt":
        method = str(found.get("quant_algo") or "").lower()
    group = found.get("group_size")
    if method == "fp8" and found.get("expert_dtype") == "fp4":
        return scheme("mxfp4-fp8")
    if method == "fp8":
        return scheme("fp8-block" if found.get("weight_block_size") else "fp8-tensor")
    if method == "bitsandbytes" and found.get("load_in_8bit"):
        return scheme("int8")
    if method == "bitsandbytes" and found.get("bnb_4bit_use_double_quant"):
        return scheme("nf4-dq")
    if method == "compressed-tensors":
        one, left = _compressed(found), unpacked_parts(found)
        return replace(one, parts=tuple(p for p in one.parts if p not in left)) if left else one
    methods = _data()["methods"]
    if method not in methods:
        raise FieldError("quantization_config.quant_method", shorten(method) or None,
                         "is none whose size is known", f"known: {', '.join(methods)}")  # fmt: skip
    name = methods[method].format(bits=found.get("bits", 4))
    if name in GROUPS and type(group) is int:
        return scheme(f"{name}-g{group}" if group > 0 else f"{name}-channel")
    return scheme(name)


def released_scheme(quantization: dict[str, Any] | None) -> Scheme | None:
    """The scheme of released weights; None where nothing is said, or nothing of a known size.

    Example:
        >>> released_scheme({"quant_method": "mxfp4"}).name, released_scheme({"quant_method": "x"})
        ('mxfp4', None)
    """
    try:
        return scheme_of({"quantization_config": quantization}) if quantization else None
    except ScantlingError:
        return None


def _compressed(found: dict[str, Any]) -> Scheme:
    groups = found.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    weights = weights if isinstance(weights, dict) else {}
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "float":
        if bits == 4:
            return scheme("nvfp4")
        return scheme({"block": "fp8-block", "tensor": "fp8-tensor"}.get(
            str(weights.get("strategy")), "fp8"))  # fmt: skip
    if bits == 8:
        return scheme("int8")
    if bits == 4:
        return scheme(f"int4-g{group}") if type(group) is int and group > 0 else scheme("int4")
    raise FieldError("quantization_config.config_groups", bits, "has no width whose size is known")


# ---------------------------------------------------------------- GGUF types


@functools.cache
def _block(name: str) -> BlockType:
    found = block_type(name)
    assert found is not None, name
    return found


def typed_bytes(name: str, out: Dim, inner: Dim, row: Dim) -> Num:
    """Bytes of a matrix in a GGUF type, or in what replaces one whose blocks do not fit.

    Args:
        name: The type.
        out: Outputs held.
        inner: Inputs held.
        row: Inputs of the whole matrix, which decide whether blocks fit.

    Example:
        >>> typed_bytes("Q4_K", 1, 4096, 4096) * 8 / 4096, typed_bytes("Q4_K", 1, 896, 896) * 8 / 896
        (4.5, 5.5)
    """  # noqa: E501 - an example is one line
    each = _each(name)
    fallback = _data()["mix"]["fallback"].get(name)
    wide: Any = minimum(1, row % _block(name).block)  # 1 where blocks do not fit
    odd: Any = wide
    other = 2.0
    if fallback is not None:
        odd, other = minimum(1, row % _block(fallback).block), _each(fallback)
    factor: Num = each + wide * (other - each) + wide * odd * (2 - other)
    return product(out, inner) * factor


def replaced(name: str, inner: int) -> str:
    """What becomes of a GGUF type on a width, in words; empty where its blocks fit.

    Example:
        >>> replaced("Q6_K", 2880)
        '2880 inputs are 11.25 blocks of 256: Q6_K (6.5625 bits) becomes Q8_0 (8.5 bits)'
    """
    block = _block(name).block
    if inner % block == 0:
        return ""
    other = _data()["mix"]["fallback"].get(name)
    if other is None or inner % _block(other).block:
        other, bits = "F16", 16.0
    else:
        bits = 8 * _each(other)
    return (
        f"{inner} inputs are {inner / block:g} blocks of {block}: {name} ({8 * _each(name):g} bits)"
        f" becomes {other} ({bits:g} bits)"
    )


def _each(name: str) -> float:
    return _block(name).bytes / _block(name).block


def layers_of(rule: str, n_layer: Dim, shared: Num = 0) -> Num:
    """How many of n layers a rule of a mix holds of.

        more      n/8 + (n − 7n/8) + one in three of those between: (7n/8 − n/8) // 3
        eighth    n/8            sixteenth  n/16
        firstN    N              shared     n where four query heads or more share a KV head

    All divisions are floored.

    Example:
        >>> [layers_of(rule, 32) for rule in ("more", "eighth", "first2", "all")]
        [16, 4, 2, 32]
    """
    n: Any = n_layer
    low, high = n // 8, 7 * n // 8
    found: Num
    if rule.startswith("first"):
        found = minimum(int(rule.removeprefix("first")), n)
        return found
    more = low + (n - high) + (high - low) // 3
    found = {"all": n, "more": more, "eighth": low, "sixteenth": n // 16, "shared": n * shared}[
        rule
    ]
    return found


# ---------------------------------------------------------------- chips


UNPACKED = "unpacked to 16 bits as they are read: this saves memory and traffic, not arithmetic"


class Support(Struct, frozen=True):
    """What a chip can do with weights of a scheme."""

    verdict: Literal["native", "weights", "no"]
    """``native``: its units compute in the scheme's dtype; ``weights``: they are unpacked to 16
    bits and only memory is saved; ``no``: no kernel is known."""
    reason: str


def support(one: Scheme, chip: Chip) -> Support:
    """What a chip can do with a scheme.

    Example:
        >>> from scantling.hardware import chip
        >>> [support(scheme("fp8"), chip(c)).verdict for c in ("h100", "a100", "v100")]
        ['native', 'weights', 'no']
    """
    if not one.quantised:
        missing = one.name not in chip.dtypes and one.name != "fp32"
        has = ", ".join(chip.dtypes)
        if missing:
            return Support("no", f"{chip.name} has no {one.name} units (it has {has})")
        return Support("native", f"{one.title} on {chip.name}")
    if one.rate is not None and getattr(chip.rates, one.rate, None) is not None:
        return Support("native", f"{chip.name} computes in {one.rate}")
    if "*" in one.vendors:
        return Support("weights", f"weights in {one.title} are {UNPACKED}")
    if chip.vendor not in one.vendors:
        rate = f"no {one.rate} units and " if one.rate else ""
        return Support("no", f"{chip.name} has {rate}no known kernel that unpacks {one.name}")
    capability = float(chip.compute_capability or math.inf)
    if one.capability is not None and capability >= one.capability:
        what = f" has no {one.rate} units:" if one.rate else ":"
        return Support("weights", f"{chip.name}{what} weights are {UNPACKED}")
    needs = f"{one.capability:g}" if one.capability else "none"
    return Support("no", f"kernels of {one.name} need compute capability {needs}, "
                   f"{chip.name} has {chip.compute_capability}")  # fmt: skip


def require(one: Scheme, chip: Chip) -> Support:
    """As ``support``, but no kernel is an error.

    Raises:
        FieldError: If the chip has no kernel for the scheme; it names schemes that it has.

    Example:
        >>> from scantling.hardware import chip
        >>> require(scheme("fp8"), chip("v100"))
        Traceback (most recent call last):
        ...
        scantling.errors.FieldError: quant fp8 has no kernel on v100-sxm2-32gb: kernels of fp8 \
need compute capability 8, V100 SXM2 32GB has 7.0; use fp16, nf4 or q4_k_m
    """
    found = support(one, chip)
    if found.verdict == "no":
        wanted = ("bf16", "fp16", "fp8", "awq-int4", "nf4", "q4_k_m")
        can = [n for n in wanted if support(scheme(n), chip).verdict != "no"][:4]
        use = " or ".join(", ".join(can).rsplit(", ", 1))
        raise FieldError("quant", one.name, f"has no kernel on {chip.key}: {found.reason}",
                         f"use {use}" if use else "")  # fmt: skip
    return found
