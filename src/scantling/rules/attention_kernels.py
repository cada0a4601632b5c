"""Heads against kernels of attention, by engine and chip (SC331 to SC337)."""

from __future__ import annotations

from collections.abc import Iterator

from scantling.costs.backends import Backend, backends
from scantling.costs.deployment import head_widths, width_note
from scantling.rules.price import exact
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject

PORTABLE = (64, 128, 256)
"""Head widths that every backend of the table takes as they are."""
KERNELS = ("flash-attention-2026", "pytorch-sdpa", "flashinfer")


def _shown(key: int, value: int) -> str:
    return str(key) if key == value else f"{key} with values of {value}"


def _advice(key: int) -> Fix:
    near = min(PORTABLE, key=lambda w: (abs(w - key), w))
    return Fix(text=f"heads of {near} (64, 128 and 256 are taken everywhere)")


def _candidates(s: Subject) -> list[Backend]:
    """The backends that may run: those of the runtime, on the chip, where these were named."""
    known = backends()
    named = s.runtime.kernels if s.runtime is not None else ()
    names = named or tuple(n for n, b in known.items() if b.general)
    return [known[n] for n in names if known[n].runs_on(s.setting.chip)]


def _applies(b: Backend, *, decodes: bool) -> bool:
    """Latents are read by kernels made for them: a general one would expand them."""
    return not (decodes and b.uneven and b.name in {"sdpa-efficient", "xformers-cutlass", "flex"})


@rule("SC331", "head-width-kernel", *KERNELS)
def head_width_kernel(s: Subject) -> Iterator[Found]:
    """Some fused kernel of the engine, on the chip, takes each width of head.

    FlashAttention 2 takes multiples of 8 up to 256 from Ampere on; 3 the same on Hopper, and
    (576, 512) of an absorbed latent; 4 on Blackwell up to 128, (192, 128), (256, 256) and 512;
    FlashInfer 64, 128, 256, 512 and latents; TensorRT-LLM thirteen widths; ggml twelve;
    PyTorch's memory-efficient kernel any multiple of 8, slowly. Without one the scores of all
    pairs go through memory. An error where the engine named has no other way, else a warning.
    All kinds of layer are asked, not the first alone: Gemma 4's global layers are 512 wide.

    Exceptions: latents, of whose kernels in TensorRT-LLM no limit was found: never an error;
    decoding an absorbed latent on chips that have a kernel in another engine (vLLM's
    Triton); asked only with a chip or a runtime.
    """
    own = s.setting
    if own.chip is None and s.runtime is None:
        return
    able = _candidates(s)
    if not able or all(b.slow for b in able):
        return
    for (key, value), where in head_widths(s.legal).items():
        decodes = where.endswith(", decode")
        asked = [b for b in able if _applies(b, decodes=decodes)]
        found = [(b, b.takes(key, value)) for b in asked]
        fast = [(b, t) for b, t in found if t.verdict == "yes" and not b.slow]
        if fast:
            continue
        padded = [(b, t) for b, t in found if t.verdict == "padded" and not b.slow]
        slow = [b for b, t in found if t.verdict != "no" and b.slow]
        place = where.partition(",")[0]
        field = s.key("d_head") if key == value else s.key("d_value")
        if padded:
            b, t = padded[0]
            width = t.width or key
            yield Found("warning", field, f"{place}: {b.title} runs heads of {_shown(key, value)} "
                        f"padded to {width}", _advice(key),
                        exact(2 * width / (key + value) - 1, "attention work for nothing"),
                        b.sources)  # fmt: skip
            continue
        fallback = s.runtime is None or s.runtime.fallback or bool(slow)
        level: Level = "warning" if fallback or key != value else "error"
        names = ", ".join(b.title for b in able if not b.slow) or "no fused kernel"
        left = f"; {slow[0].title} is left" if slow else ""
        left = left or (
            "; it has no other way" if level == "error" else "; scores go through memory"
        )
        text = f"{place}: no fused kernel takes heads of {_shown(key, value)} ({names}){left}"
        if own.chip is not None and s.runtime is None:
            text += f": {width_note(own.chip, key, value)}"
        fix = None if decodes else _advice(key)
        yield Found(level, field, text, fix)


@rule("SC332", "head-width-rounded", "flash-attention-2026")
def head_width_rounded(s: Subject) -> Iterator[Found]:
    """A head between the widths kernels are compiled for costs as much as the next of them.

    FlashAttention 2 works at multiples of 32 up to 128, then 192 and 256; FlashAttention 3 at 64,
    96, 128, 192, 256. A head of 80 does the work of 96: 20 % for nothing. The gain is that share
    of the attention kernels.

    Exceptions: phi-2, StableLM 3B and GPT-NeoX (80, 96) run; asked only with a chip or a runtime.
    """
    if s.setting.chip is None and s.runtime is None:
        return
    for (key, value), where in head_widths(s.legal).items():
        if key != value:
            continue
        options = [(b, b.takes(key, value)) for b in _candidates(s)
                   if b.rounds and not b.slow]  # fmt: skip
        taken = [(b, t.width) for b, t in options if t.verdict == "yes" and t.width]
        if not taken:
            continue
        b, width = min(taken, key=lambda one: one[1])
        if width > key:
            yield Found("warning", s.key("d_head"), f"{where}: heads of {key} do the work of "
                        f"{width} in {b.title}", _advice(key),
                        exact(width / key - 1, "attention work for nothing"), b.sources
            )  # fmt: skip


@rule("SC333", "head-width-portable", *KERNELS)
def head_width_portable(s: Subject) -> Iterator[Found]:
    """Heads of 64, 128 or 256 are taken by every kernel; other widths lose some engines.

    192 and 512 are taken by the newest kernels and by those of latents. The note lists the
    backends that refuse the width.

    Exceptions: 16 of 182 released models have another width.
    """
    seen = set()
    for _, a in s.attentions:
        head = int(a.d_head)
        if head in PORTABLE or head in seen:
            continue
        seen.add(head)
        lost = [b.title for b in backends().values() if b.vendors[0] == "NVIDIA"
                and b.name not in {"flashmla", "flash4"}
                and b.takes(head, head).verdict == "no"]  # fmt: skip
        if lost:
            yield Found("info", s.key("d_head"), f"heads of {head} are not taken by "
                        f"{', '.join(lost)}", _advice(head))  # fmt: skip


@rule("SC334", "consumer-training-heads", "pytorch-sdpa")
def consumer_training_heads(s: Subject) -> Iterator[Found]:
    """On consumer boards the flash kernel does not train heads above 192.

    PyTorch refuses widths in (192, 224], and in (224, 256] with dropout, on compute capability 8.6
    to 8.9 and 12.x, whose blocks have 99 KiB of shared memory (``sdp_utils.cpp``, 001f694).

    Exceptions: inference; widths above 224 without dropout.
    """
    chip = s.setting.chip
    if chip is None or not s.setting.in_phase("train") or chip.compute_capability is None:
        return
    capability = float(chip.compute_capability)
    if not (8.6 <= capability <= 8.9 or 12.0 <= capability < 13.0):
        return
    for path, a in s.attentions:
        head = int(a.d_head)
        if 192 < head <= 256:
            when = "" if head <= 224 else " with dropout"
            yield Found("warning" if head <= 224 else "info", s.key("d_head"),
                        f"{path}: PyTorch's flash kernel does not train heads of {head}{when} on "
                        f"{chip.name}", _advice(head))  # fmt: skip
            return


@rule("SC335", "group-power-of-two", "torch-flex", "flashinfer")
def group_power_of_two(s: Subject) -> Iterator[Found]:
    """Query heads to a KV head are a power of two, or decoding loses a kernel.

    FlexAttention's decoding kernel asks for it and falls back to the slower main kernel;
    FlashInfer's CUDA-core decoding takes 1, 2, 3, 4, 6 and 8, and falls back to tensor cores.
    25 and 30 of 182 released models are outside.

    Exceptions: Qwen3-14B (5), GLM-4.5 (12); other engines do not care.
    """
    for path, a in s.attentions:
        group = int(a.n_head) // max(1, int(a.n_kv_head))
        flex = group & (group - 1) != 0
        flashinfer = group not in backends()["flashinfer"].groups
        named = s.setting.runtime
        if not (flex or flashinfer):
            continue
        lost = [name for name, is_lost in (("FlexAttention's decoding kernel", flex),
                                            ("FlashInfer's CUDA-core decoding", flashinfer))
                if is_lost]  # fmt: skip
        hit = (named == "flex" and flex) or (named == "flashinfer" and flashinfer)
        yield Found("warning" if hit else "info", s.key("n_kv_head"), f"{path}: {group} query "
                    "heads "
                    f"to a KV head: without {' and '.join(lost)}")  # fmt: skip
        return


@rule("SC336", "low-precision-heads", "flash-attention-2026", "cudnn-frontend")
def low_precision_heads(s: Subject) -> Iterator[Found]:
    """In FP8 attention takes heads that are multiples of 16.

    16 bytes are 16 elements of 8 bits: FlashAttention 3 and 4 and cuDNN check it. Below Hopper
    FlashAttention has no FP8 at all.

    Exceptions: FP8 of the linear layers alone, attention in BF16.
    """
    if s.setting.dtype != "fp8":
        return
    for path, a in s.attentions:
        head = int(a.d_head)
        if head % 16:
            yield Found("warning", s.key("d_head"), f"{path}: heads of {head} are no multiple "
                        "of 16,"
                        " which attention in FP8 asks for: it stays in BF16",
                        Fix(text=f"heads of {round(head / 16) * 16 or 16}"))  # fmt: skip
            return
