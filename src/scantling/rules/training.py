"""Training: pipelines, residuals, initial values, precision (SC951 to SC957)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scantling.rules.price import exact
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject
from scantling.spec import DeepNorm


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


@rule("SC951", "pipeline-bubble", "megatron-2026", "narayanan2021")
def pipeline_bubble(s: Subject) -> Iterator[Found]:
    """The bubble of a pipeline is (p − 1)/(m + p − 1) of a step: at most a tenth.

    One of m micro-batches passes p stages in p − 1 steps before the last stage works. As a share of
    the total it is (p − 1)/(v m + p − 1) with v chunks a stage; Narayanan et al. print
    (p − 1)/(v m) of the ideal time. It does not grow with L. m is ``--batch``;
    v is ``--virtual``, and what interleaving asks of m is SC215.

    Exceptions: zero-bubble schedules; serving.
    """
    p, m, v = s.setting.pp, s.setting.batch, s.setting.virtual
    if p == 1 or m is None or not s.setting.in_phase("train"):
        return
    bubble = (p - 1) / (v * m + p - 1)
    if bubble > 0.1:
        least = -(-9 * (p - 1) // v)
        chunks = f" of {v} chunks" if v > 1 else ""
        yield Found("warning", "batch", f"{m} micro-batches over {p} stages{chunks}: {bubble:.0%} "
                    "of a step is bubble",
                    Fix(text=f"{least} micro-batches or more, or interleaved stages"),
                    exact(bubble, "of a step"))  # fmt: skip


@rule("SC952", "deepnorm-scales", "deepnet2022")
def deepnorm_scales(s: Subject) -> Iterator[Found]:
    """DeepNorm: x' = LN(α x + f(x)), α = (2L)^(1/4) of one stack, (3M)^(1/4) of a decoder of two.

    The gain of the initial FFN, value and output matrices is β = (8L)^(−1/4), or (12M)^(−1/4). An
    encoder of N beside a decoder of M: α = 0.81 (N⁴ M)^(1/16), β = 0.87 (N⁴ M)^(−1/16). (The
    released code divides where the paper multiplies in the last one: 1.32 times as much.)

    Exceptions: none; other scales lose the bound the paper proves.
    """
    spec = s.legal
    for path, node in s.each(DeepNorm):
        layers = int(spec.decoder.n_layer)
        encoder = None if spec.encoder is None else int(spec.encoder.n_layer)
        if path.startswith("encoder") and encoder is not None:
            right = 0.81 * (encoder**4 * layers) ** (1 / 16)
        else:
            right = (2 * layers) ** 0.25 if encoder is None else (3 * layers) ** 0.25
        if abs(node.alpha / right - 1) > 0.02:
            beta = (8 * layers) ** -0.25 if encoder is None else (12 * layers) ** -0.25
            yield Found("warning", "alpha", f"{path}: α {node.alpha:g}, DeepNorm has "
                        f"{right:.4g} at "
                        f"{layers} layers", Fix(text=f"α {right:.4g}, β {beta:.4g}"))  # fmt: skip
            return


@rule("SC953", "initial-values", "gpt2-2019", "megatron-2026", reads="config")
def initial_values(s: Subject) -> Iterator[Found]:
    """Weights begin near 0.02, and never at 0 or 1.

    A product of D inputs keeps the scale of its input at 1/√D: 0.0156 at 4096. Classes take 0.02;
    √(2/(5 D)) is the small form. At 0 no gradient flows, far above 0.1 the first logits are noise.

    Exceptions: T5 (factor 1.0 of its own scheme), BLOOM's 0.02 for all sizes; scaled embeddings.
    """
    part = s.raw
    value = _number(part.config.get("initializer_range"))
    if value is None:
        return
    width = part.whole("d_model") or 1024
    usual = 1 / math.sqrt(width)
    if value <= 0:
        yield Found("warning", "initializer_range", f"initial values of {value:g}: all weights "
                    "begin "
                    "equal, and stay so", Fix(text="initializer_range 0.02",
                    config={"initializer_range": 0.02}))  # fmt: skip
    elif not 0.05 * usual <= value <= 20 * usual:
        yield Found("warning", "initializer_range", f"initial values of {value:g} at width "
                    f"{width}; "
                    f"1/√D is {usual:.3g}", Fix(text="initializer_range 0.02",
                    config={"initializer_range": 0.02}))  # fmt: skip


@rule("SC954", "norm-epsilon", "transformers", reads="config")
def norm_epsilon(s: Subject) -> Iterator[Found]:
    """The ε of a norm is small beside the variance and not below what the numbers hold.

    1e-5 and 1e-6 are usual. 0 divides by zero on padding; 1e-2 and above flattens small
    activations; in FP16 anything below 6e-8 is 0.

    Exceptions: BERT's 1e-12, in FP32.
    """
    part = s.raw
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"):
        value = _number(part.config.get(key))
        if value is None:
            continue
        half = s.setting.dtype == "fp16"
        if value <= 0 or value > 1e-3 or (half and value < 6e-8):
            why = "is 0 in FP16" if half and 0 < value < 6e-8 else (
                "divides by zero" if value <= 0 else "flattens small activations")  # fmt: skip
            yield Found("warning", key, f"{key} {value:g} {why}", Fix(text=f"{key} 1e-05",
                        config={key: 1e-5}))  # fmt: skip


@rule("SC955", "half-precision", "mleng-performance")
def half_precision(s: Subject) -> Iterator[Found]:
    """Training is in BF16 where the chip has it.

    FP16 ends at 65504: losses must be scaled, and activations of large models overflow. FP32 alone
    leaves the tensor cores to TF32.

    Exceptions: V100 and T4, which have no BF16.
    """
    own = s.setting
    if own.phase != "train" or own.dtype not in {"fp16", "fp32"}:
        return
    able = own.chip is None or "bf16" in own.chip.dtypes
    if not able:
        return
    level: Level = "warning" if own.dtype == "fp16" else "info"
    text = "losses must be scaled: its range ends at 65504" if own.dtype == "fp16" else (
        "tensor cores take TF32 at best")  # fmt: skip
    yield Found(level, "dtype", f"training in {own.dtype}: {text}", Fix(text="--dtype bf16"))


@rule("SC956", "dropout", "transformers", reads="config")
def dropout(s: Subject) -> Iterator[Found]:
    """A dropout is a share: below one, and near zero where data is seen once.

    In one pass over data nothing is overfitted, and a mask costs memory and time (5 S² bytes a head
    unfused). Half or more drops most of what is said.

    Exceptions: BERT and GPT-2, trained over many passes at 0.1.
    """
    for key in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
                "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout",
                "activation_dropout", "residual_dropout", "embedding_dropout"):  # fmt: skip
        value = _number(s.raw.config.get(key))
        if value is None or 0 <= value < 0.5:
            continue
        level: Level = "error" if not 0 <= value <= 1 else "warning"
        what = "no share at all" if level == "error" else "most of what passes is dropped"
        yield Found(level, key, f"{key} {value:g}: {what}", Fix(text=f"{key} 0", config={key: 0.0})
        )  # fmt: skip


@rule("SC957", "logits-precision", "mleng-performance", reads="config")
def logits_precision(s: Subject) -> Iterator[Found]:
    """A soft cap on logits is well above what logits are.

    tanh(x/c) c of Gemma 2 has c = 30 at the output and 50 at attention. A cap below ten flattens
    the distribution: the best log-probability is bounded by it. A cap rules out kernels that have
    none.

    Exceptions: none.
    """
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "logits_soft_cap"):
        value = _number(s.raw.config.get(key))
        if value is not None and value < 10:
            yield Found("warning", key, f"{key} {value:g} flattens the logits",
                        Fix(text=f"{key} 30", config={key: 30.0}))  # fmt: skip
