"""Quantised tensors as files pack them, told from names, shapes and dtypes, and expanded.

Each scheme keeps a matrix of (out, in) weights as codes packed into wider integers, with scales,
zero points and other tensors beside it under a common name. The codes become one logical weight;
the rest is set apart. b is the bits of a code, g the weights that share a scale.

Sources of the layouts: AutoGPTQ and AutoAWQ (``qlinear`` modules), bitsandbytes
(``functional.QuantState``), compressed-tensors (``compressors``), DeepSeek-V3 (``fp8_cast_bf16``),
gpt-oss (``mxfp4`` integration in transformers), MLX (``mlx.nn.quantized``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from scantling.arith import ceil_div
from scantling.errors import FieldError, shorten
from scantling.formats.declared import quantization
from scantling.formats.stored import Stored, block_type, size

Role = Literal["weight", "scale", "zero", "order", "constant", "other"]
FP8 = {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}


class Weight(Struct, frozen=True):
    """A stored tensor and what it means."""

    name: str
    """Of a packed tensor the name it would have unpacked: ``….weight``."""
    shape: tuple[int, ...]
    """Logical: (out, in) of a packed matrix; flat where the file does not say."""
    role: Role
    scheme: str
    """How it is packed; empty for plain tensors."""
    stored: Stored
    scale_bytes: int = 0
    """Bytes of its own that are scales (GGUF keeps them inside the blocks)."""

    @property
    def elements(self) -> int:
        """Logical elements."""
        return size(self.shape)


class _Pack:
    """The tensors of a checkpoint by name, and what has been explained of them."""

    def __init__(self, tensors: list[Stored], config: dict[str, Any]) -> None:
        self.tensors = {t.name: t for t in tensors}
        self.found: dict[str, Weight] = {}
        self.config = config

    def get(self, name: str) -> Stored | None:
        return self.tensors.get(name)

    def weight(self, t: Stored, name: str, shape: tuple[int, ...], scheme: str) -> None:
        self.found[t.name] = Weight(name, shape, "weight", scheme, t)

    def beside(self, prefix: str, scheme: str, roles: dict[str, Role]) -> None:
        for suffix, role in roles.items():
            t = self.tensors.get(prefix + suffix)
            if t is not None and t.name not in self.found:
                self.found[t.name] = Weight(t.name, t.shape, role, scheme, t)

    @property
    def quantization(self) -> dict[str, Any]:
        return quantization(self.config)

    def number(self, key: str, default: int, of: str = "") -> int:
        """A whole number of the quantization config, of one module where it has its own."""
        found = self.quantization
        own = found.get(of)
        value = (own if isinstance(own, dict) else found).get(key, found.get(key))
        return value if type(value) is int and 0 < value <= 2**20 else default


def expand(tensors: list[Stored], config: dict[str, Any]) -> tuple[Weight, ...]:
    """Every tensor with its meaning, packed ones at their logical shape.

    Args:
        tensors: What the files hold.
        config: The model's config.json, empty if there is none: bits and group size are read
            from its ``quantization_config`` where shapes do not tell.

    Raises:
        FieldError: If a packed tensor and the tensors beside it contradict each other.

    Example:
        >>> codes = Stored("q.qweight", (512, 4096), "I32", 2**23, "x")  # 4096 x 4096 in 4 bits
        >>> zeros = Stored("q.qzeros", (32, 512), "I32", 2**16, "x")
        >>> scales = Stored("q.scales", (32, 4096), "F16", 2**18, "x")
        >>> [(w.name, w.shape, w.role) for w in expand([codes, zeros, scales], {})][0]
        ('q.weight', (4096, 4096), 'weight')
    """
    pack = _Pack(tensors, config)
    for t in tensors:
        for suffix, explain in RULES:
            if t.name.endswith(suffix) and t.name not in pack.found:
                explain(pack, t, t.name.removesuffix(suffix))
    for t in tensors:
        if t.name not in pack.found:
            kind = block_type(t.dtype) if t.file.endswith(".gguf") else None
            packed = kind is not None and kind.block > 1
            scales = t.bytes // kind.bytes * kind.scale_bytes if kind and packed else 0
            scheme = t.dtype if packed else ""
            pack.found[t.name] = Weight(t.name, t.shape, "weight", scheme, t, scales)
    return tuple(pack.found[t.name] for t in tensors)


def _matrix(t: Stored) -> tuple[int, int]:
    if len(t.shape) != 2 or 0 in t.shape:
        what = f"has the shape {shorten(t.shape)}; packed weights need two dimensions"
        raise FieldError(f"{t.file}: tensor {shorten(t.name)}", None, what)
    return t.shape[0], t.shape[1]


def _whole(t: Stored, value: int, by: int, what: str) -> int:
    if by <= 0 or value % by:
        raise FieldError(f"{t.file}: tensor {shorten(t.name)}", shorten(t.shape), what)
    return value // by


def _gptq_awq(pack: _Pack, t: Stored, prefix: str) -> None:
    """GPTQ packs along in: codes (in b/32, out); AWQ along out: codes (in, out b/32).

    Both keep scales (groups, out) and zeros (groups, out b/32), so the scales' width tells which
    it is and, with the codes or the zeros, b. AWQ's GEMV layout keeps (out, in b/32).
    """
    rows, columns = _matrix(t)
    scales, zeros = pack.get(prefix + ".scales"), pack.get(prefix + ".qzeros")
    where = "contradicts its scales or zeros"
    bits = pack.number("bits", 4)
    out = scales.shape[-1] if scales is not None and scales.shape else columns
    scheme = "gptq"
    if pack.quantization.get("version") == "gemv":
        scheme, shape = "awq", (rows, _whole(t, columns * 32, bits, where))
    elif out == columns:
        if zeros is not None and zeros.shape and zeros.shape[-1]:
            bits = _whole(t, 32 * zeros.shape[-1], columns, where)
        shape = (out, _whole(t, rows * 32, bits, where))
    else:
        _whole(t, columns * 32, out, where)
        scheme, shape = "awq", (out, rows)
    pack.weight(t, prefix + ".weight", shape, scheme)
    pack.beside(prefix, scheme, {".scales": "scale", ".qzeros": "zero", ".g_idx": "order"})


def _bitsandbytes(pack: _Pack, _: Stored, prefix: str) -> None:
    """Two codes a byte in a column; the shape stands in the quant_state's data, not in a header."""
    codes = pack.get(prefix)
    if codes is None:
        return
    scheme = "bitsandbytes-4bit"
    pack.weight(codes, codes.name, (2 * codes.elements,), scheme)
    pack.beside(prefix, scheme, {
        ".absmax": "scale", ".quant_map": "other", ".nested_absmax": "scale",
        ".nested_quant_map": "other", ".quant_state.bitsandbytes__nf4": "other",
        ".quant_state.bitsandbytes__fp4": "other",
    })  # fmt: skip


def _bitsandbytes_8(pack: _Pack, _: Stored, prefix: str) -> None:
    codes = pack.get(prefix + ".weight")
    if codes is not None:
        pack.weight(codes, codes.name, codes.shape, "bitsandbytes-8bit")
        roles: dict[str, Role] = {".SCB": "scale", ".weight_format": "other"}
        pack.beside(prefix, "bitsandbytes-8bit", roles)


WEIGHT_BESIDE: dict[str, Role] = {
    ".weight_scale": "scale", ".weight_scale_2": "scale", ".weight_scale_inv": "scale",
    ".weight_global_scale": "scale", ".input_scale": "scale", ".input_global_scale": "scale",
    ".weight_zero_point": "zero", ".input_zero_point": "zero", ".output_scale": "scale",
    ".weight_shape": "other", ".weight_g_idx": "order", ".k_scale": "scale", ".v_scale": "scale",
}  # fmt: skip


def _compressed(pack: _Pack, t: Stored, prefix: str) -> None:
    """Codes (out, ceil(in b/32)) in 32-bit integers, or (out, in/2) in bytes of two 4-bit codes.

    Scales are (out, in/g), so g and b of the config's group must give one in.
    """
    out, columns = _matrix(t)
    if t.dtype in {"U8", "I8"}:
        inner = 2 * columns
    else:
        scales = pack.get(prefix + ".weight_scale")
        inner = _compressed_inner(pack, columns, scales.shape[-1:] if scales else ())
    pack.weight(t, prefix + ".weight", (out, inner), "compressed-tensors")
    pack.beside(prefix, "compressed-tensors", WEIGHT_BESIDE)


def _compressed_inner(pack: _Pack, columns: int, groups: tuple[int, ...]) -> int:
    declared = pack.quantization.get("config_groups")
    choices: list[tuple[int, int | None]] = []
    for one in declared.values() if isinstance(declared, dict) else ():
        weights = one.get("weights") if isinstance(one, dict) else None
        bits, group = (weights.get("num_bits"), weights.get("group_size")) if isinstance(
            weights, dict) else (None, None)  # fmt: skip
        if type(bits) is int and 1 <= bits <= 16:
            choices.append((bits, group if type(group) is int and 0 < group < 2**20 else None))
    choices = choices or [(4, 128), (4, 32), (8, 128)]
    for bits, group in choices:
        if group and groups and ceil_div(groups[0] * group * bits, 32) == columns:
            return groups[0] * group
    return columns * 32 // choices[0][0]


def _scaled(pack: _Pack, t: Stored, prefix: str) -> None:
    """One weight an element (FP8, int8) with scales beside, or two 4-bit codes a byte.

    DeepSeek's FP8 keeps one scale a block of 128 x 128 in ``weight_scale_inv``.
    """
    codes = pack.get(prefix)
    if codes is None or codes.name in pack.found:
        return
    shape, scheme = codes.shape, "int8" if codes.dtype == "I8" else "fp8"
    if t.name.endswith("_scale_inv"):
        scheme = "fp8-block"
    elif codes.dtype == "U8" and t.dtype not in {"F16", "BF16", "F32"} and codes.shape:
        shape, scheme = (*shape[:-1], 2 * shape[-1]), "fp4"
    elif codes.dtype not in FP8 | {"I8"}:
        scheme = ""
    pack.weight(codes, codes.name, shape, scheme)
    pack.beside(prefix, scheme, {"_scale": "scale", "_scale_inv": "scale"})
    pack.beside(prefix.removesuffix(".weight"), scheme, WEIGHT_BESIDE)


def _mxfp4(pack: _Pack, t: Stored, prefix: str) -> None:
    """Blocks (…, in/32, 16): 32 codes of 4 bits in 16 bytes, one scale byte a block."""
    scales = pack.get(prefix + "_scales")
    if scales is None or t.dtype != "U8" or len(t.shape) < 2 or t.shape[:-1] != scales.shape:
        return
    shape = (*t.shape[:-2], t.shape[-2] * t.shape[-1] * 2)
    pack.weight(t, prefix, shape, "mxfp4")
    pack.beside(prefix, "mxfp4", {"_scales": "scale"})


def _mlx(pack: _Pack, t: Stored, prefix: str) -> None:
    """Codes (…, out, in b/32) in 32-bit integers, scales and biases (…, out, in/g)."""
    codes = pack.get(prefix + ".weight")
    if codes is None or codes.dtype != "U32" or not codes.shape or not t.shape:
        return
    quantization = pack.quantization
    group = pack.number("group_size", 32 if t.dtype == "U8" else 64, prefix)
    inner = t.shape[-1] * group
    if codes.shape[:-1] != t.shape[:-1] or (32 * codes.shape[-1]) % inner:
        what = f"contradicts its scales {shorten(t.shape)} at group_size {group}"
        hint = "" if quantization else "its config.json should hold the quantization"
        raise FieldError(f"{codes.file}: tensor {shorten(codes.name)}", shorten(codes.shape),
                         what, hint)  # fmt: skip
    pack.weight(codes, codes.name, (*codes.shape[:-1], inner), "mlx")
    pack.beside(prefix, "mlx", {".scales": "scale", ".biases": "zero"})


def _cache_scale(pack: _Pack, t: Stored, prefix: str) -> None:
    """Scales of an FP8 cache or of activations, without a packed weight of their own."""
    del prefix
    pack.found[t.name] = Weight(t.name, t.shape, "scale", "fp8", t)


RULES = (
    (".qweight", _gptq_awq),
    (".absmax", _bitsandbytes),
    (".SCB", _bitsandbytes_8),
    (".weight_packed", _compressed),
    ("_scale_inv", _scaled),
    ("_scale", _scaled),
    ("_blocks", _mxfp4),
    (".scales", _mlx),
    (".k_scale", _cache_scale),
    (".v_scale", _cache_scale),
    (".kv_scale", _cache_scale),
    (".input_scale", _cache_scale),
)
"""What a name's end may mean; each explains the tensors of one module."""


def schemes(weights: tuple[Weight, ...]) -> Iterator[str]:
    """The schemes of the packed weights, one a tensor."""
    return (w.scheme for w in weights if w.role == "weight" and w.scheme)
