"""The options of ``scantling design``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from scantling.cli.options import BYTES, CONTEXT, COUNT, SECONDS, SHARE, hardware, pairs
from scantling.errors import FieldError
from scantling.units import parse_count

F = TypeVar("F", bound=Callable[..., Any])


def limits(function: F) -> F:
    """What a budget allows, its kinds and its axes."""
    for option in reversed((
        click.option("--params", type=COUNT, help="Total parameters: 7B."),
        click.option("--flops", type=COUNT,
                     help="Training FLOPs: 1e22; sizes the model and its tokens."),
        click.option("--vocab", type=COUNT, help="Vocabulary; 128,256, or 50,304 below a billion."),
        click.option("--context", type=CONTEXT, help="Context in training and serving."),
        click.option("--train-context", type=CONTEXT, help="Context in training."),
        click.option("--serve-context", type=CONTEXT, help="Context when it generates."),
        click.option("--serve-batch", type=COUNT,
                     help="Sequences generated together; 1 by default."),
        hardware,
        click.option("--tolerance", type=SHARE,
                     help="Distance from --params accepted: 1%; 0.005 unless said."),
        click.option("--active", type=COUNT,
                     help="Parameters a token passes: 3B; a mixture of experts."),
        click.option("--moe", is_flag=True,
                     help="A mixture of experts; --dense, the default, is none."),
        click.option("--dense", is_flag=True, help="Dense feed-forwards."),
        click.option("--kind", help="decoder (unless said) or encoder-decoder; its depths split by "
                     "--fix encoder_ratio=1,2,12."),
        click.option("--mixer", help="gqa (unless said), mla, hybrid (states of both kinds), "
                     "gated-delta or mamba2."),
        click.option("--layout", help="full, or local to global layers: 5:1."),
        click.option("--schedule", help="Feed-forward widths over depth: linear-ffn:0.5-1.5, or "
                     "1.5-0.5-1.5 with a narrow middle."),
        click.option("--window", type=CONTEXT, help="Window of the local layers: 1024."),
        click.option("--tied", is_flag=True, help="Tie embeddings and head."),
        click.option("--untied", is_flag=True, help="Do not tie them."),
        click.option("--qk-norm", is_flag=True, help="Norms on queries and keys (Qwen3)."),
        click.option("--tp", type=COUNT, help="Tensor-parallel degree that must divide."),
        click.option("--days", type=float, help="Most training days."),
        click.option("--gpu-hours", type=COUNT, help="Most GPU-hours."),
        click.option("--unique-tokens", type=COUNT,
                     help="Unique tokens there are; more are repeats."),
        click.option("--memory", type=BYTES, help="Most training memory a chip: 80GiB."),
        click.option("--kv-bytes", type=BYTES, help="Largest KV cache of all sequences: 16GiB."),
        click.option("--ttft", type=SECONDS, help="Longest time to the first token: 500ms."),
        click.option("--serve-gpu", help="Chip that serves; --gpu by default."),
        click.option("--serve-gpus", type=COUNT, help="Chips that serve one copy."),
        click.option("--price", type=float, help="Money a chip-hour."),
        click.option("--cost-per-million", type=float, help="Most money a million output tokens."),
        click.option("--pp", type=COUNT, help="Pipeline-parallel degree that must divide."),
        click.option("--ep", type=COUNT, help="Expert-parallel degree that must divide."),
        click.option("--quant",
                     help="Quantisation whose groups must shard (scantling serve --quant)."),
        click.option("--runtime",
                     help="Runtime whose kernels must take it: vllm, sglang, tensorrt-llm, "
                     "llama.cpp."),
        click.option("--equal", help="What shapes have alike: tokens, flops, "
                     "wall-clock."),
        click.option("--prior", help="A shape prior of the field, by name; list lists them."),
        click.option("--beat", metavar="MODEL", help="A model whose loss the shapes must reach."),
        click.option("--kv-bytes-per-token", type=BYTES,
                     help="Largest KV cache of a sequence at its context, a token: 128KiB."),
        click.option("--tpot", type=SECONDS, help="Longest time per output token: 10ms."),
        click.option("--fix", multiple=True, metavar="FIELD=V",
                     help="Fix an axis: --fix d_head=128, "
                     "or list its values: d_head=64,128."),
        click.option("--bound", multiple=True, metavar="FIELD=a:b", help="Bound an axis."),
        click.option("--objective", metavar="NAME=W,…", help="Weigh loss, training_days, "
                     "kv_bytes_per_token, decode_s, ttft_s, memory_bytes, kv_bytes, "
                     "cost_per_million, tile_waste; or give an order: loss,decode_s."),
        click.option("--multiple", type=COUNT, help="Alignment of widths; 128 by default."),
        click.option("--dtype", help="Dtype of training and weights; bf16."),
        click.option("--kv-dtype", help="Dtype of the KV cache; bf16."),
        click.option("--law", help="Law of the loss (scantling laws), or a law file."),
    )):  # fmt: skip
        function = option(function)
    return function


def questions(function: F) -> F:
    """What is asked beside the front, and how the answer is shown."""
    for option in reversed((
        click.option("--like", metavar="MODEL",
                     help="Its size, vocabulary and costs are the budget."),
        click.option("--from", "origin", metavar="MODEL", help="Only what its weights can become."),
        click.option("--ladder", metavar="N,N,…",
                     help="The recipe at these sizes: 125M,350M,1B,7B."),
        click.option("--task", help="What ablations say of it: reasoning, retrieval, arithmetic, "
                     "classification."),
        click.option("--explain", metavar="FIELD|all",
                     help="The long reason of one field, or the whole trail."),
        click.option("--baseline", multiple=True, metavar="MODEL",
                     help="Models as rows beside the front."),
        click.option("--rows", type=COUNT, default=12, help="Shapes to print."),
        click.option("--save", type=click.Path(path_type=Path), metavar="DIR",
                     help="Write a config per "
                     "shape, front.json and report.html."),
        click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
                     help="The front as a "
                     "picture: front.svg."),
        click.option("--depths", metavar="L,L,…",
                     help="Price this size at these depths, the first as "
                     "reference, instead of at a ladder of them: equal tokens, FLOPs, wall-clock."),
        click.option("--no-depths", is_flag=True, help="Price no depths."),
        click.option("--engine", default="auto",
                     help="Where the sweep runs: here, pool (all cores), "
                     "ray (a cluster), slurm (jobs); auto is the pool above 30 million shapes."),
        click.option("--workers", type=COUNT,
                     help="Processes of the engine; all cores by default."),
        click.option("--backtest", metavar="MODEL", help="Judge a released shape: asked before it "
                     "was trained, is one better? With --tokens where they are not known."),
        click.option("--list-legal", is_flag=True,
                     help="List legal (D, H, h, K); needs --fix d_model=…"),
    )):  # fmt: skip
        function = option(function)
    return function


def read_limits(given: dict[str, Any]) -> dict[str, Any]:
    """The limits of a budget as they were typed, under the names of ``budget``."""
    if given["tied"] and given["untied"]:
        raise FieldError("--tied", None, "contradicts --untied", "give one of them")
    contexts = {
        f"{phase}_context": given[f"{phase}_context"] or given["context"]
        for phase in ("train", "serve")
    }
    for name in ("moe", "active"):
        if given[name] and given["dense"]:
            raise FieldError(f"--{name}", None, "contradicts --dense", "give one of them")
    fixed, listed = read_fixed(given["fix"])
    weights, order = _weights(given["objective"])
    found = {
        "params": given["params"], "tokens": given["tokens"], "flops": given["flops"],
        "vocab_size": given["vocab"], "chip": given["gpu"], "n_gpu": given["gpus"],
        "tied": True if given["tied"] else False if given["untied"] else None,
        "tpot_s": given["tpot"], "ttft_s": given["ttft"], "serve_chip": given["serve_gpu"],
        "fixed": fixed, "listed": listed, "bounded": _bounded(given["bound"]),
        "weights": weights, "lexicographic": order, **contexts,
    }  # fmt: skip
    for name in ("days", "price", "cost_per_million"):
        if given[name] is not None and not 0 < given[name] < 1e9:
            raise FieldError(f"--{name.replace('_', '-')}", given[name],
                             "must be above zero and below 1e9")  # fmt: skip
    found |= {name: given[name] for name in PASSED}
    found |= {name: given[name] or None for name in ("moe", "qk_norm")}
    # what was not said is left to the budget, or to the model it is like
    return {k: v for k, v in found.items() if v is not None and v not in ({}, ())}


def legal_takes(given: dict[str, Any]) -> set[str]:
    """Options that ``--list-legal`` reads: of experts, of a model, or of a width."""
    fixed = read_fixed(given["fix"])
    if "d_expert" in {**fixed[0], **fixed[1]}:
        return {"list_legal", "fix", "tp", "quant"}
    return {"list_legal", "tp", "like"} if given["like"] else {"list_legal", "fix", "tp", "params"}


def refuse_beside(asked: str, takes: set[str] | None) -> None:
    """Refuse what was typed beside a question that does not read it; None reads all of it.

    Raises:
        FieldError: For the first such option.
    """
    context = click.get_current_context()
    taken = {*(takes or ()), "as_json"}
    for option in context.command.params if takes is not None else ():
        source = context.get_parameter_source(option.name or "")
        typed = source is click.core.ParameterSource.COMMANDLINE and option.expose_value
        if typed and option.name not in taken:
            read = ", ".join(o.opts[0] for o in context.command.params
                             if o.name in taken and o.opts[0] != asked)  # fmt: skip
            raise FieldError(option.opts[0], None, f"is not read by {asked}", f"it takes {read}")


MOST_ROWS = 10_000
"""More rows than a front has shapes, or a reader patience."""


def check_shown(given: dict[str, Any]) -> None:
    """How much is shown, and what runs the search.

    Raises:
        FieldError: For rows beyond every front, or workers of no engine.
    """
    if given["rows"] > MOST_ROWS:
        raise FieldError("--rows", given["rows"], "is more than any front has",
                         f"at most {MOST_ROWS:,}")  # fmt: skip
    if given["workers"] is not None and given["engine"] == "here":
        raise FieldError("--workers", given["workers"], "has no effect with --engine here",
                         "use --engine pool")  # fmt: skip


PASSED = (
    "serve_batch", "tolerance", "tp", "days", "gpu_hours", "kv_bytes_per_token",
    "multiple", "dtype", "kv_dtype", "law", "active", "kind", "mixer", "layout", "window",
    "schedule", "unique_tokens", "memory", "kv_bytes", "serve_gpus", "price", "cost_per_million",
    "pp", "ep", "quant", "runtime", "equal", "prior", "beat",
)  # fmt: skip
"""Limits of a budget whose option has their own name."""


def read_fixed(texts: tuple[str, ...]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Axes with one value, and axes with a list of them."""
    fixed, listed = {}, {}
    for name, text in pairs(texts, "--fix").items():
        values = tuple(parse_count(v, f"--fix {name}") for v in text.split(","))
        if len(values) == 1:
            fixed[name] = values[0]
        else:
            listed[name] = values
    return fixed, listed


def _bounded(texts: tuple[str, ...]) -> dict[str, Any]:
    from scantling.search import Range

    found = {}
    for name, value in pairs(texts, "--bound").items():
        low, sign, high = value.partition(":")
        if not sign:
            raise FieldError("--bound", f"{name}={value}", "is no range", "write FIELD=low:high")
        found[name] = Range(_bound(low, name), _bound(high, name))
    return found


def _bound(text: str, name: str) -> float:
    """An end of a range: a count, or a ratio such as 1.5."""
    try:
        return float(text)
    except ValueError:
        return parse_count(text, f"--bound {name}")


def _weights(text: str | None) -> tuple[dict[str, float], tuple[str, ...]]:
    """Weights (``loss=2,decode_s=1``), or an order without any (``loss,decode_s``)."""
    if text and "=" not in text:
        return {}, tuple(text.split(","))
    found = {}
    for name, value in pairs(tuple(text.split(",")) if text else (), "--objective").items():
        try:
            found[name] = float(value)
        except ValueError:
            raise FieldError("--objective", f"{name}={value}", "has a weight that is no number") \
                from None  # fmt: skip
    return found, ()


def read_depths(given: dict[str, Any]) -> tuple[int, ...] | None:
    """The depths to price; empty is a ladder of them, None none."""
    if given["no_depths"] and given["depths"] is not None:
        raise FieldError("--depths", given["depths"], "contradicts --no-depths")
    from scantling.search.budget import LARGEST_DEPTH

    found = parsed(given["depths"], "--depths")
    for n in found:
        if n > LARGEST_DEPTH:
            raise FieldError("--depths", n, f"must be at most {LARGEST_DEPTH:,}")
    return None if given["no_depths"] else found


def parsed(text: str | None, option: str) -> tuple[int, ...]:
    """A list of counts: ``125M,350M,1B``; nothing where it is not given."""
    return () if text is None else tuple(parse_count(n, option) for n in text.split(","))
