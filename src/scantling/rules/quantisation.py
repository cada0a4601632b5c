"""Quantised weights: groups, blocks, kernels and chips (SC401 to SC408)."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.arith import round_up
from scantling.costs.deployment import FIELDS, Cut, cuts, nearest_shape, valid_tp
from scantling.costs.parallel import tp_reasons
from scantling.costs.quantize import Mixed, Scheme, replaced, require, support
from scantling.costs.weights import ALONE, weight_memory
from scantling.errors import FieldError, ScantlingError
from scantling.rules.price import changed, exact, held
from scantling.rules.registry import Fix, Found, rule
from scantling.rules.subject import Subject
from scantling.spec import Spec

SCHEMES = ("quantization-kernels", "vllm-0.33")


def _sides(s: Subject) -> tuple[Cut, ...]:
    """Sides of packed matrices on a rank; none where heads or columns cannot be cut at all."""
    own, plan = s.scheme, s.setting.plan
    asked = s.setting.quant is not None or plan.tp > 1
    if own is None or not own.quantised or not asked:
        return ()
    found: tuple[Cut, ...] | None = s.worked_out.get("cuts")
    if found is None:
        found = () if any(tp_reasons(s.legal, plan.tp)) else cuts(s.legal, own, plan)
        s.worked_out["cuts"] = found
    return found


def _field(c: Cut) -> str:
    leaf = c.tensor.rpartition(".")[2]
    return "n_kv_head" if leaf in {"k", "v"} else FIELDS.get(leaf, c.tensor)


def _distinct(bad: list[Cut]) -> Iterator[Cut]:
    """One side of each width and field: gate and up are cut alike."""
    yield from {(_field(c), c.width, c.degree, c.unit): c for c in reversed(bad)}.values()


def _fix(s: Subject, own: Scheme) -> Fix | None:
    plan = s.setting.plan
    etp = plan.expert_tp
    good = valid_tp(s.legal, own, most=2 * plan.tp, expert_tp=etp)
    degrees = f"valid TP: {', '.join(map(str, good)) or 'none'}"
    if s.experts and s.setting.ep == 1 and plan.tp > 1:
        degrees += "; or whole experts on ranks (--ep)"
    try:
        near = nearest_shape(s.legal, plan.tp, own, etp)
    except ScantlingError:
        near = {}
    if not near or changed(s.legal, **near) is None:
        return Fix(text=degrees)
    changes = held(s.legal, near, 128 * plan.tp)
    new = changed(s.legal, **changes)
    if new is None or not _whole(new, own, s):
        changes = near
    words = s.said(changes)
    return Fix(text=f"{words}; or {degrees}", spec=changes)


def _whole(spec: Spec, own: Scheme, s: Subject) -> bool:
    plan = s.setting.plan
    return not any(tp_reasons(spec, plan.tp)) and all(c.ok for c in cuts(spec, own, plan))


@rule("SC401", "quant-groups", *SCHEMES)
def quant_groups(s: Subject) -> Iterator[Found]:
    """The inputs that share a scale lie on one rank: (inputs/t) mod group = 0.

    Tensor parallelism cuts the inputs of ``o`` and ``down``. Where a rank's share is no whole
    number of groups its first and last scales belong to two ranks, and loaders refuse it. It is
    often not the FFN: 896/2 = 448 inputs of ``o`` are 3.5 groups of 128 (Qwen2.5-0.5B at TP 2).

    Exceptions: schemes with one scale an output have no groups.
    """
    own = s.scheme
    bad = [c for c in _sides(s) if not c.ok]
    if own is None or own.out_unit > 1 or not bad:
        return
    fix = _fix(s, own)
    for c in _distinct(bad):
        yield Found("error", s.key(_field(c)), f"{own.name}: {c.text}", fix)


@rule("SC402", "quant-blocks", "deepseek-v3-fp8", *SCHEMES)
def quant_blocks(s: Subject) -> Iterator[Found]:
    """A block of 128 × 128 is never cut: inputs and outputs of a rank are multiples of 128.

    vLLM and SGLang check the inputs of row-parallel layers, every output of column-parallel and
    merged ones (gate and up each for itself), and F_e/t of experts. Of 182 released models 15, 45
    and 68 fail at TP 2, 4 and 8: F_e = 1408 is 11 blocks at TP 1 and 5.5 at TP 2. F as a multiple
    of 128 t, smaller t, or whole experts on ranks mends it.

    Exceptions: none; 16-bit weights have no blocks.
    """
    own = s.scheme
    bad = [c for c in _sides(s) if not c.ok]
    if own is None or own.out_unit == 1 or not bad:
        return
    fix = _fix(s, own)
    for c in _distinct(bad):
        yield Found("error", s.key(_field(c)), f"{own.name}: {c.text}", fix)


@rule("SC403", "quant-kernel-tile", *SCHEMES)
def quant_kernel_tile(s: Subject) -> Iterator[Found]:
    """The fast 4-bit kernel takes a rank's matrix: n % 64 and k % 128, or n % 128 and k % 64.

    Marlin's tiles (vLLM 0.33); other matrices are padded with zeros, or run on a slower kernel.
    Older releases take the first pair alone. FP8 and NVFP4 kernels pad to 16 and 32.

    Exceptions: none; it runs.
    """
    told = set()
    for c in _sides(s):
        if c.ok and c.kernel and c.kernel not in told:
            told.add(c.kernel)
            known = FIELDS.get(c.tensor.rpartition(".")[2])
            fix = Fix(text=f"{s.key(known)} a multiple of 128 on every rank") if known else None
            yield Found("warning", s.key(_field(c)), f"{c.tensor}: {c.kernel}", fix)


@rule("SC404", "kquant-rows", "llama-cpp-quant")
def kquant_rows(s: Subject) -> Iterator[Found]:
    """GGUF's K-quants are blocks of 256 inputs: a width that is none falls back to a larger type.

    llama.cpp then takes a type of blocks of 32: Q4_K (4.5 bits) becomes Q5_0 (5.5), Q6_K becomes
    Q8_0. 24 of 182 released models have such a width (gpt-oss 2880, gpt2-xl 1600, Gemma 3 1B 1152).

    Exceptions: none; files are larger than the type's name says.
    """
    own = s.scheme
    if own is None or not isinstance(own.packing, Mixed) or s.setting.quant is None:
        return
    spec = s.legal
    inputs = {"d_model": int(spec.d_model)}
    for _, a in s.attentions:
        inputs["n_head"] = int(a.n_head) * int(a.d_head)
    from scantling.spec import Dense

    for _, node in s.each(Dense):
        inputs["d_ff"] = int(node.d_ff)
    for _, e in s.experts:
        inputs["d_expert"] = int(e.d_expert)
    for field, width in inputs.items():
        text = replaced(own.packing.base, width)
        if text:
            bits = float(weight_memory(spec, own).bits_per_weight)
            up = int(round_up(width, 256))
            yield Found("warning", s.key(field), f"{own.name}: {text}",
                        Fix(text=f"{up}, a multiple of 256"),
                        exact(round(bits, 3), "bits a weight in all"))  # fmt: skip


@rule("SC405", "mxfp4-padding", *SCHEMES)
def mxfp4_padding(s: Subject) -> Iterator[Found]:
    """MXFP4 kernels pad experts to multiples of 128 of their width and 256 of the model's.

    vLLM 0.33 rounds up by backend when it loads. gpt-oss, 2880 wide, is computed on 2944 × 3072:
    the gain is the memory of the padding.

    Exceptions: gpt-oss itself runs so.
    """
    own = s.scheme
    if own is None or own.pad == (1, 1):
        return
    found = weight_memory(s.legal, own, ALONE)
    extra = float(found.loaded_bytes) - float(found.bytes)
    if extra <= 0:
        return
    for _, e in s.experts:
        width, model = int(e.d_expert), int(s.legal.d_model)
        f, d = (int(round_up(n, p)) for n, p in zip((width, model), own.pad, strict=True))
        yield Found("warning", s.key("d_expert"), f"{own.name}: kernels pad experts of {width} × "
                    f"{model} to {f} × {d}", Fix(text=f"widths that are multiples of {own.pad[0]} "
                    f"and {own.pad[1]}"), exact(extra, "bytes of padding"))  # fmt: skip
        return


@rule("SC406", "quant-on-chip", *SCHEMES)
def quant_on_chip(s: Subject) -> Iterator[Found]:
    """The chip has a kernel for the scheme.

    Marlin needs compute capability 8.0 (7.5 in newer vLLM), GPTQ 6.0, FP8 weights 8.0; FP4 units
    came with Blackwell. Where it has none the model cannot be served so.

    Exceptions: GGUF, whose kernels run everywhere.
    """
    own, chip = s.scheme, s.setting.chip
    if own is None or chip is None or not own.quantised:
        return
    try:
        require(own, chip)
    except FieldError as error:
        yield Found("error", "quant", f"{own.name} {error.rule}",
                    Fix(text=error.hint) if error.hint else None)  # fmt: skip


@rule("SC407", "quant-unpacked", *SCHEMES)
def quant_unpacked(s: Subject) -> Iterator[Found]:
    """Weights that are unpacked to 16 bits save memory and traffic, no arithmetic.

    A prompt, which waits for arithmetic, is as fast as in 16 bits or slower; a token of a small
    batch, which waits for weights, is faster.

    Exceptions: schemes whose dtype the chip computes in.
    """
    own, chip = s.scheme, s.setting.chip
    if own is None or chip is None or s.setting.quant is None or not own.quantised:
        return
    found = support(own, chip)
    if found.verdict == "weights":
        yield Found("info", "quant", found.reason)
