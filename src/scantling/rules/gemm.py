"""Products: what their dimensions must or should be multiples of (SC301 to SC311)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scantling.arith import ceil_div
from scantling.costs.parallel import near_multiple
from scantling.errors import FieldError
from scantling.rules.price import faster
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.setting import facts
from scantling.rules.subject import Subject
from scantling.spec import Dense, Experts, GroupedAttention, LatentAttention

LOAD = 8
"""Elements of 16 bits in a load of 16 bytes."""


class Width(NamedTuple):
    """A dimension of products, as the rank of a split has it."""

    field: str
    path: str
    whole: int
    degree: int

    @property
    def own(self) -> int:
        """Of one rank; the whole where it cannot be cut."""
        return self.whole if self.whole % self.degree else self.whole // self.degree

    @property
    def text(self) -> str:
        """With the split."""
        return f"{self.whole} / {self.degree} = {self.own}" if self.degree > 1 else f"{self.whole}"


def widths(s: Subject) -> list[Width]:
    """Every width that products of a model have, each once."""
    tp = s.setting.tp
    etp = 1 if s.setting.ep > 1 else tp
    found = [Width("d_model", "model", int(s.legal.d_model), 1)]
    for path, node in s.modules:
        if isinstance(node, GroupedAttention):
            head, kv = int(node.d_head), int(node.n_kv_head)
            found.append(Width("n_head", f"{path}.q", int(node.n_head) * head, tp))
            found.append(Width("n_kv_head", f"{path}.k", kv * head, min(tp, kv)))
        elif isinstance(node, LatentAttention):
            found.append(Width("kv_rank", path, int(node.kv_rank), 1))
            if node.q_rank is not None:
                found.append(Width("q_rank", path, int(node.q_rank), 1))
        elif isinstance(node, Dense):
            found.append(Width("d_ff", path, int(node.d_ff), tp))
        elif isinstance(node, Experts):
            found.append(Width("d_expert", path, int(node.d_expert), etp))
            if node.shared is not None:
                found.append(Width("d_shared", path, int(node.shared.d_shared), tp))
    once = {(w.field, w.whole, w.degree): w for w in found}
    return list(once.values())


def _round(s: Subject, w: Width, step: int) -> Fix | None:
    """The nearest width that is a multiple on every rank, if it can be changed alone."""
    value = near_multiple(w.whole, step * w.degree)
    if w.field not in {"d_ff", "d_expert", "d_shared", "kv_rank", "q_rank"}:
        return Fix(text=f"a multiple of {step * w.degree}: {value}")
    near = abs(value / w.whole - 1) <= 0.02
    key = s.key(w.field)
    distinct = {v.whole for v in widths(s) if v.field == w.field}
    if len(distinct) != 1 or key == "n_shared_experts":
        return Fix(text=f"{key} {value}")
    return Fix(text=f"{key} {value}", spec={w.field: value}, keeps=("params",) if near else ())


@rule("SC301", "gemm-load", "nvidia-matmul-guide", "mleng-performance")
def gemm_load(s: Subject) -> Iterator[Found]:
    """The widths of products are multiples of 16 bytes: 8 elements of 16 bits.

    Tensor cores are fed by loads of 16 bytes; a row that is no multiple of it is read in smaller
    ones. The one published H100 case, a gated feed-forward of width 4096: 272.7 TFLOPS at
    F = 10922, 395.0 to 398.4 at 10848, 10944 and 11008: −31 %. Since cuBLAS 11 they are used all
    the same, so this costs time and refuses nothing. F = 8 D/3 taken literally is the usual way
    in: 10922 at D = 4096.

    The gain is the time of the whole step on the chip, with the prior's interval.

    Exceptions: none in 182 released models, whose widths are all multiples of 64; vocabularies
    are SC501.
    """
    for w in widths(s):
        if w.whole % LOAD:
            fix = _round(s, w, 64)
            value = fix.spec.get(w.field) if fix is not None else None
            gain = None if value is None else faster(s, w.field, value)
            yield Found("warning", s.key(w.field), f"{w.path}: {w.whole} is no multiple of {LOAD}: "
                        "rows of it are not loaded 16 bytes at a time", fix, gain)  # fmt: skip


@rule("SC302", "gemm-line", "nvidia-matmul-guide", "mleng-performance")
def gemm_line(s: Subject) -> Iterator[Found]:
    """The widths of products are multiples of 128 bytes: 64 elements of 16 bits.

    NVIDIA prints it for A100 alone (64 elements of FP16, 128 of INT8, 32 of TF32), as what is most
    efficient. On H100 the one published sweep shows no step between 16 and 512 bytes, so this is
    a warning on Ampere and a note elsewhere, until measured.

    Exceptions: models that run on other chips: SC310 for TPUs.
    """
    chip = s.setting.chip
    ampere = chip is not None and chip.architecture == "Ampere"
    level: Level = "warning" if ampere else "info"
    for w in widths(s):
        if w.whole % 64 and w.whole % LOAD == 0:
            fix = _round(s, w, 64)
            yield Found(level, s.key(w.field), f"{w.path}: {w.whole} is no multiple of 64 (128 "
                        "bytes)", fix)  # fmt: skip


@rule("SC303", "gemm-shard", "nvidia-matmul-guide", "mleng-performance")
def gemm_shard(s: Subject) -> Iterator[Found]:
    """What holds of a width holds of a rank's share of it.

    The product that runs has F/t columns, H h/t queries: a width that is aligned whole may not be
    in parts (6400 over 32 is 200; 8208 over 8 is 1026, no multiple of 8 any more). A multiple of
    64 t is aligned on every rank.

    Exceptions: those of SC301 and SC302.
    """
    for w in widths(s):
        if w.degree == 1 or w.whole % w.degree:
            continue
        if any(w.own % step and not w.whole % step for step in (LOAD, 64)):
            level: Level = "warning" if w.own % LOAD or w.own < 64 else "info"
            yield Found(level, s.key(w.field), f"{w.path}: {w.text} on a rank is no multiple of 64",
                        _round(s, w, 64))  # fmt: skip


@rule("SC304", "low-precision-widths", "torch-scaled-mm", "transformer-engine-fp8",
      "transformer-engine-2026")  # fmt: skip
def low_precision_widths(s: Subject) -> Iterator[Found]:
    """In FP8 every dimension of a weight is a multiple of 16 on its rank; in MXFP8 and NVFP4 of 32.

    ``torch._scaled_mm`` (2.13) refuses K and both sides of the weight that are not multiples of
    16; TransformerEngine asks for 16 along the last dimension and 8 along the others, and blocks
    of 32 in MXFP8 (both sides), rows and columns of 32 in NVFP4's kernels. No library version
    changes it.

    Exceptions: torchtitan leaves such a layer in BF16.
    """
    dtype = s.setting.dtype
    multiple = facts()["multiples"].get(dtype, 1) if dtype else 1
    for w in widths(s):
        if w.own % multiple:
            fix = _round(s, w, max(64, multiple))
            yield Found("error", s.key(w.field), f"{w.path}: {w.text} is no multiple of "
                        f"{multiple}, "
                        f"which {dtype} asks for", fix)  # fmt: skip


@rule("SC305", "low-precision-tokens", "transformer-engine-fp8")
def low_precision_tokens(s: Subject) -> Iterator[Found]:
    """Tokens are a dimension of products too: batch × context is a multiple of 8 in FP8.

    The gradient of a weight multiplies activations along the tokens. TransformerEngine asks for 8
    there (32 in MXFP8), so 50 tokens are padded to 56.

    Exceptions: inference kernels that pad by themselves.
    """
    own = s.setting
    if own.dtype is None or own.context is None or facts()["multiples"].get(own.dtype, 1) == 1:
        return
    step = 32 if own.dtype == "mxfp8" else 8
    tokens = (own.batch or 1) * own.context // own.cp
    if tokens % step:
        padded = tokens + -tokens % step
        level: Level = "error" if own.phase == "train" else "warning"
        yield Found(level, "context", f"{tokens} tokens are no multiple of {step}, which "
                    f"{own.dtype}"
                    f" asks of every dimension: pad to {padded}",
                    Fix(text=f"batch × context {padded}"))  # fmt: skip


@rule("SC306", "dtype-on-chip", "mleng-accelerators")
def dtype_on_chip(s: Subject) -> Iterator[Found]:
    """The chip has units for the dtype that is computed in.

    V100 and T4 have no BF16, A100 no FP8, H100 no FP4. Weights alone may be kept narrower: that is
    ``--quant``.

    Exceptions: none; emulation is no unit.
    """
    chip, dtype = s.setting.chip, s.setting.dtype
    if chip is None or dtype is None:
        return
    name = {"mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(dtype, dtype)
    try:
        chip.rate(name)
    except FieldError as error:
        if dtype == "fp32":
            return
        yield Found("error", "dtype", f"{error.path} {error.value} {error.rule}",
                    Fix(text=error.hint) if error.hint else None)  # fmt: skip
        return
    if dtype == "mxfp8" and float(chip.compute_capability or 0) < 10:
        yield Found("error", "dtype", f"{chip.name} has no units for MXFP8's scales of 32: it came "
                    "with Blackwell", Fix(text="--dtype fp8"))  # fmt: skip


@rule("SC307", "old-tensor-cores", "nvidia-matmul-guide")
def old_tensor_cores(s: Subject) -> Iterator[Found]:
    """Before cuBLAS 11.0 and cuDNN 7.6.3 tensor cores were used at multiples of 8 alone (INT8: 16).

    From those versions on they always are (table 1 of NVIDIA's guide). Asked only where the old
    stack is named: ``--runtime cublas-10``.

    Exceptions: TF32 and FP64 had no such rule.
    """
    if s.setting.runtime != "cublas-10":
        return
    step = facts()["era"]["cublas-10"]["int8" if s.setting.dtype == "int8" else "fp16"]
    vocabulary = Width("vocab_size", "head", int(s.legal.vocab_size), 1)
    for w in (*widths(s), vocabulary):
        if w.own % step:
            fix = _round(s, w, 64) if w.field != "vocab_size" else Fix(
                text=f"a multiple of 64: {near_multiple(w.whole, 64)}")  # fmt: skip
            yield Found("error", s.key(w.field), f"{w.path}: {w.text} is no multiple of {step}: "
                        "this "
                        "cuBLAS uses no tensor cores for it", fix)  # fmt: skip


@rule("SC308", "tile-waste", "nvidia-matmul-guide", "mleng-performance")
def tile_waste(s: Subject) -> Iterator[Found]:
    """Products fill their tiles: M N / (⌈M/128⌉ 128 ⌈N/128⌉ 128) is 0.9 or more.

    A block computes a tile of the result whether all of it is there or not. Tiles of 256 × 128 and
    128 × 128 are the efficient ones; a library takes smaller ones where these do not fit, at less
    reuse, so this is an upper bound of the waste. Told with a chip, a batch and a context.

    Exceptions: products that wait for memory (few tokens), whose time is not their arithmetic.
    """
    own = s.setting
    if own.chip is None or own.context is None or own.chip.vendor == "Google":
        return
    tokens = (own.batch or 1) * own.context
    for w in widths(s):
        share = _filled(tokens, w.own, 128)
        if share < 0.9 and tokens >= 128 and w.own >= 64:
            yield Found("info", s.key(w.field), f"{w.path}: {tokens} × {w.own} fills "
                        f"{share:.0%} of "
                        "its tiles of 128 × 128", _round(s, w, 128))  # fmt: skip


def _filled(m: int, n: int, tile: int) -> float:
    blocks = int(ceil_div(m, tile)) * int(ceil_div(n, tile))
    return m * n / (blocks * tile * tile)


@rule("SC309", "wave-waste", "nvidia-matmul-guide", "mleng-performance")
def wave_waste(s: Subject) -> Iterator[Found]:
    """Tiles come in waves of as many as there are SMs; a last wave that is nearly empty costs one.

    C tiles on S SMs take ⌈C/S⌉ rounds: 109 on 108 take two. Told where less than 0.85 of the
    rounds is used and there are few of them. A library that splits the depth (stream-K) hides it.

    Exceptions: more than ten rounds, where the last one is lost in the rest.
    """
    own = s.setting
    if own.chip is None or own.context is None or own.chip.sm_count is None:
        return
    tokens, sms = (own.batch or 1) * own.context, own.chip.sm_count
    for w in widths(s):
        tiles = int(ceil_div(tokens, 128)) * int(ceil_div(w.own, 256))
        rounds = -(-tiles // sms)
        used = tiles / (rounds * sms)
        if used < 0.85 and 1 < rounds <= 10 and tokens >= 128:
            yield Found("info", s.key(w.field), f"{w.path}: {tokens} × {w.own} is {tiles} tiles of "
                        f"128 × 256 on {sms} SMs: {rounds} rounds, {used:.0%} used",
                        Fix(text=f"{rounds * sms} or {(rounds - 1) * sms} tiles"))  # fmt: skip
            return


@rule("SC310", "tpu-tile", "scaling-book-tpu", "maxtext-custom-model")
def tpu_tile(s: Subject) -> Iterator[Found]:
    """On a TPU widths are multiples of the matrix unit: 128, and 256 from v6e on.

    The unit multiplies 128 × 128 tiles up to v5p and 256 × 256 from Trillium; both axes of a weight
    are padded to it. MaxText says the same of head widths: 128, or 256.

    Exceptions: chips that are no TPU; told with ``--gpu`` alone.
    """
    chip = s.setting.chip
    if chip is None or chip.vendor != "Google":
        return
    wide = any(name in f"{chip.name} {chip.architecture}" for name in ("v6", "v7", "Trillium",
                                                                     "Ironwood"))  # fmt: skip
    step = facts()["tpu"]["wide" if wide else "default"]
    for w in widths(s):
        if w.own % step:
            padded = int(ceil_div(w.own, step)) * step
            yield Found("warning", s.key(w.field), f"{w.path}: {w.text} is padded to {padded} on "
                        f"{chip.name} (units of {step})", _round(s, w, step))  # fmt: skip
    for path, a in s.attentions:
        if int(a.d_head) % 128:
            yield Found("info", s.key("d_head"), f"{path}: heads of {int(a.d_head)} are padded to "
                        "lanes of 128", None)  # fmt: skip
            return


@rule("SC311", "deepep-width", "deepep")
def deepep_width(s: Subject) -> Iterator[Found]:
    """DeepEP's low-latency kernels are compiled for eight widths and at most 11 experts a token.

    2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192 (``kernels/legacy/launch.cuh``); current buffers
    ask for widths of a multiple of 16 bytes only. gpt-oss (2880) must be padded to 3072. Told when
    experts are spread over ranks to serve, or with ``--runtime deepep``.

    Exceptions: engines with other dispatchers.
    """
    asked = s.setting.runtime == "deepep" or (s.setting.ep > 1 and s.setting.phase == "serve")
    if not asked or not s.experts:
        return
    limits, width = facts()["deepep"], int(s.legal.d_model)
    if width not in limits["widths"]:
        above = [w for w in limits["widths"] if w > width]
        padded = f"; padded to {above[0]} (+{above[0] / width - 1:.1%})" if above else ""
        yield Found("warning", s.key("d_model"), f"width {width} is not among those DeepEP's "
                    f"low-latency kernels are compiled for{padded}",
                    Fix(text=f"one of {', '.join(map(str, limits['widths']))}"))  # fmt: skip
    for _, e in s.experts:
        if int(e.top_k) > limits["top_k"]:
            yield Found("warning", s.key("top_k"), f"{int(e.top_k)} experts a token; DeepEP's "
                        f"low-latency kernels take {limits['top_k']}")  # fmt: skip
            return


@rule("SC312", "grouped-tokens", "torchtitan-groups")
def grouped_tokens(s: Subject) -> Iterator[Found]:
    """Grouped products pad every expert's tokens: to 16 in FP8, 32 in MXFP8, 8 in older BF16.

    On average each expert's group is short of half a unit, so E groups waste E (unit − 1)/2 rows of
    the T k that are routed. Told in FP8 and MXFP8, with a batch and a context.

    Exceptions: BF16 kernels since 2025, which need no padding.
    """
    own = s.setting
    unit = {"fp8": 16, "mxfp8": 32}.get(own.dtype or "", 1)
    if unit == 1 or own.context is None:
        return
    for path, e in s.experts:
        rows = (own.batch or 1) * own.context * int(e.top_k)
        waste = int(e.n_expert) * (unit - 1) / 2 / rows
        if waste > 0.05:
            yield Found("warning", "batch", f"{path}: {rows} routed rows in {int(e.n_expert)} "
                        "groups "
                        f"of a multiple of {unit}: about {waste:.0%} padding",
                        Fix(text="more tokens a step, or experts spread over ranks"))  # fmt: skip
            return
