"""``scantling design``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from scantling.cli.options import (
    BYTES,
    CONTEXT,
    COUNT,
    SECONDS,
    as_json,
    hardware,
    pairs,
    show_json,
)
from scantling.errors import FieldError
from scantling.units import parse_count

SLOW_SHAPES = 3_000_000
"""A sweep of more shapes takes over two seconds and shows its progress."""


@click.command()
@click.option("--params", type=COUNT, help="Total parameters: 7B.")
@click.option("--flops", type=COUNT, help="Training FLOPs: 1e22; sizes the model and its tokens.")
@click.option("--vocab", type=COUNT, help="Vocabulary; 128,256, or 50,304 below a billion.")
@click.option("--context", type=CONTEXT, help="Context in training and serving.")
@click.option("--train-context", type=CONTEXT, help="Context in training.")
@click.option("--serve-context", type=CONTEXT, help="Context when it generates.")
@click.option("--serve-batch", type=COUNT, default=1, help="Sequences generated together.")
@hardware
@click.option("--tolerance", type=float, default=0.005, help="Distance from --params accepted.")
@click.option("--active", type=COUNT, help="Parameters a token passes: 3B; a mixture of experts.")
@click.option("--moe", is_flag=True, help="A mixture of experts; --dense, the default, is none.")
@click.option("--dense", is_flag=True, help="Dense feed-forwards.")
@click.option("--mixer", default="gqa", help="gqa, mla or hybrid.")
@click.option("--layout", default="full", help="full, or local to global layers: 5:1.")
@click.option("--window", type=CONTEXT, help="Window of the local layers: 1024.")
@click.option("--tied", is_flag=True, help="Tie embeddings and head.")
@click.option("--untied", is_flag=True, help="Do not tie them.")
@click.option("--qk-norm", is_flag=True, help="Norms on queries and keys (Qwen3).")
@click.option("--tp", type=COUNT, default=1, help="Tensor-parallel degree that must divide.")
@click.option("--days", type=float, help="Most training days.")
@click.option("--gpu-hours", type=COUNT, help="Most GPU-hours.")
@click.option("--unique-tokens", type=COUNT, help="Unique tokens there are; more are repeats.")
@click.option("--memory", type=BYTES, help="Most training memory a chip: 80GiB.")
@click.option("--kv-bytes", type=BYTES, help="Largest KV cache of all sequences: 16GiB.")
@click.option("--ttft", type=SECONDS, help="Longest time to the first token: 500ms.")
@click.option("--serve-gpu", help="Chip that serves; --gpu by default.")
@click.option("--serve-gpus", type=COUNT, default=1, help="Chips that serve one copy.")
@click.option("--price", type=float, help="Money a chip-hour.")
@click.option("--cost-per-million", type=float, help="Most money a million output tokens.")
@click.option("--pp", type=COUNT, default=1, help="Pipeline-parallel degree that must divide.")
@click.option("--ep", type=COUNT, default=1, help="Expert-parallel degree that must divide.")
@click.option("--quant", help="Quantisation whose groups must shard (scantling serve --quant).")
@click.option("--runtime", help="Runtime whose kernels must take it: vllm, sglang, tensorrt-llm, "
              "llama.cpp.")  # fmt: skip
@click.option("--equal", default="tokens", help="What shapes have alike: tokens, flops, "
              "wall-clock.")  # fmt: skip
@click.option("--prior", help="A shape prior of the field (depth from size, D = 96 L, …).")
@click.option("--beat", metavar="MODEL", help="A model whose loss the shapes must reach.")
@click.option("--kv-bytes-per-token", type=BYTES, help="Largest KV cache of a token: 128KiB.")
@click.option("--tpot", type=SECONDS, help="Longest time per output token: 10ms.")
@click.option("--fix", multiple=True, metavar="FIELD=V", help="Fix an axis: --fix d_head=128, "
              "or list its values: d_head=64,128.")  # fmt: skip
@click.option("--bound", multiple=True, metavar="FIELD=a:b", help="Bound an axis.")
@click.option("--objective", metavar="NAME=W,…", help="Weigh loss, training_days, "
              "kv_bytes_per_token, decode_s; or give an order: loss,decode_s.")  # fmt: skip
@click.option("--multiple", type=COUNT, default=128, help="Alignment of widths.")
@click.option("--dtype", default="bf16", help="Dtype of training and weights.")
@click.option("--kv-dtype", default="bf16", help="Dtype of the KV cache.")
@click.option("--law", default="aspect", help="Law of the loss (scantling laws).")
@click.option("--baseline", multiple=True, metavar="MODEL", help="Models as rows beside the front.")
@click.option("--rows", type=COUNT, default=12, help="Shapes to print.")
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Write a config per "
              "shape, front.json and report.html.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="The front as a "
              "picture: front.svg.")  # fmt: skip
@click.option(
    "--depths",
    metavar="L,L,…",
    help="Price this size at these depths, the first as "
    "reference, instead of at a ladder of them: equal tokens, FLOPs, wall-clock.",
)
@click.option("--no-depths", is_flag=True, help="Price no depths.")  # fmt: skip
@click.option("--engine", default="auto", help="Where the sweep runs: here, pool (all cores), "
              "ray (a cluster); auto is the pool above 30 million shapes.")  # fmt: skip
@click.option("--workers", type=COUNT, help="Processes of the engine; all cores by default.")
@click.option("--backtest", metavar="MODEL", help="Judge a released shape: asked before it was "
              "trained, is one better? --tokens where they are not known.")  # fmt: skip
@click.option("--list-legal", is_flag=True, help="List legal (D, H, h, K); needs --fix d_model=…")
@as_json
def design(**given: Any) -> int:
    """From a budget to the shapes worth training.

    Example: scantling design --params 7B --vocab 128256 --context 8192 --gpu h100-sxm --gpus 64
    --tokens 2T
    """
    from scantling import search

    if given["list_legal"]:
        return _list_legal(given)
    if given["backtest"] is not None:
        return _backtest(given["backtest"], given["tokens"], as_json=given["as_json"])
    b = search.budget(**_limits(given))
    if given["plot"] is not None:
        from scantling.report.figure import check_path

        check_path(given["plot"])
    names = given["baseline"] or None
    with _progress(b) as progress:
        front = search.design(b, baselines=names, progress=progress, engine=given["engine"],
                              workers=given["workers"])  # fmt: skip
    if front.swept.stopped:
        seen = f"{front.swept.evaluated:,} of {front.swept.considered:,} shapes"
        click.echo(f"stopped after {seen}: what follows is the best of those", err=True)
    if given["save"] is not None and front.feasible:
        from scantling.report.save import save

        written = save(front, given["save"], lambda text: click.echo(text, err=True))
        click.echo(f"wrote {len(written)} files to {given['save']}", err=True)
    if given["plot"] is not None and front.feasible:
        from scantling.report.figure import save_front

        click.echo(f"wrote {save_front(front, given['plot'])}", err=True)
    depths = _depths(given, front)
    if given["as_json"]:
        from scantling.report.depths import depths_json

        more = {"depths": depths_json(depths)} if depths else {}
        show_json(search.front_json(front) | more)
        return _status(front)
    from scantling.report import text

    out = text.console()
    if not front.feasible:
        text.print_infeasible(out, front)
        return _status(front)
    text.print_front(out, front, given["rows"])
    if depths:
        from scantling.report.depths import depth_lines

        click.echo("\n" + "\n".join(depth_lines(depths)))
    return _status(front)


def _status(front: Any) -> int:
    """0 yes, 1 nothing is feasible, 130 (as shells say) an interrupt left the answer partial."""
    if front.swept.stopped:
        return 130
    return 0 if front.feasible else 1


def _depths(given: dict[str, Any], front: Any) -> list[Any]:
    """The depths asked for, or a ladder of them beside the choice."""
    from scantling.report.depths import ladder, price_depths

    if given["depths"] is not None:
        if given["no_depths"]:
            raise FieldError("--depths", given["depths"], "contradicts --no-depths")
        asked = [parse_count(n, "--depths") for n in given["depths"].split(",")]
        rows = price_depths(front.budget, asked)
        lost = set(asked) - {row.candidate.spec.n_layer for row in rows}
        for n in sorted(lost):
            click.echo(f"note: no feasible shape of this size has {n} layers", err=True)
        return rows
    if given["no_depths"] or not front.feasible:
        return []
    rows = price_depths(front.budget, ladder(front.budget), front.chosen)
    return rows if len(rows) > 1 else []


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    if given["tied"] and given["untied"]:
        raise FieldError("--tied", None, "contradicts --untied", "give one of them")
    contexts = {
        f"{phase}_context": given[f"{phase}_context"] or given["context"]
        for phase in ("train", "serve")
    }
    if given["moe"] and given["dense"]:
        raise FieldError("--moe", None, "contradicts --dense", "give one of them")
    fixed, listed = _fixed(given["fix"])
    weights, order = _weights(given["objective"])
    found = {
        "params": given["params"], "tokens": given["tokens"], "flops": given["flops"],
        "vocab_size": given["vocab"], "chip": given["gpu"], "n_gpu": given["gpus"],
        "tied": True if given["tied"] else False if given["untied"] else None,
        "tpot_s": given["tpot"], "ttft_s": given["ttft"], "serve_chip": given["serve_gpu"],
        "fixed": fixed, "listed": listed, "bounded": _bounded(given["bound"]),
        "weights": weights, "lexicographic": order, **contexts,
    }  # fmt: skip
    for name in ("days", "tolerance", "price", "cost_per_million"):
        if given[name] is not None and not 0 < given[name] < 1e9:
            raise FieldError(f"--{name.replace('_', '-')}", given[name], "must be above zero")
    found |= {name: given[name] for name in PASSED}
    return {k: v for k, v in found.items() if v is not None}


PASSED = (
    "serve_batch", "tolerance", "qk_norm", "tp", "days", "gpu_hours", "kv_bytes_per_token",
    "multiple", "dtype", "kv_dtype", "law", "active", "moe", "mixer", "layout", "window",
    "unique_tokens", "memory", "kv_bytes", "serve_gpus", "price", "cost_per_million", "pp", "ep",
    "quant", "runtime", "equal", "prior", "beat",
)  # fmt: skip
"""Limits of a budget whose option has their own name."""


def _fixed(texts: tuple[str, ...]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
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


def _backtest(name: str, tokens: int | None, *, as_json: bool) -> int:
    from scantling.report.backtest import backtest_json, backtest_lines
    from scantling.search.backtest import backtest

    verdict, others = backtest(name, tokens)
    if as_json:
        show_json(backtest_json(verdict, len(others.rows)))
    else:
        click.echo("\n".join(backtest_lines(verdict, len(others.rows))))
    return 0 if verdict.holds else 1


def _list_legal(given: dict[str, Any]) -> int:
    from scantling import search
    from scantling.report import text

    fixed, _ = _fixed(given["fix"])
    if "d_model" not in fixed:
        raise FieldError("--list-legal", None, "needs a width", "add --fix d_model=4096")
    b = search.Budget(params=given["params"] or 10**9, tokens=1, tp=given["tp"], fixed=fixed)
    rows = search.list_legal(fixed["d_model"], given["tp"], b)
    if given["as_json"]:
        show_json({"schema": 1, "legal": rows})
        return 0 if rows else 1
    found = text.table(*((name, "right") for name in ("d_model", "d_head", "n_head", "n_kv_head",
                                                      "H h/D")))  # fmt: skip
    for row in rows:
        found.add_row(*(f"{v:g}" for v in row.values()))
    text.show_table(text.console(), found)
    return 0 if rows else 1


class _progress:  # noqa: N801 - used as a function
    """A progress bar on standard error for sweeps over two seconds; silent when piped."""

    def __init__(self, b: Any) -> None:
        from scantling.search.space import space

        self.bar: Any = None
        if sys.stderr.isatty() and space(b).size > SLOW_SHAPES:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Callable[[int, int], None] | None:
        if self.bar is None:
            return None
        self.bar.start()
        task = self.bar.add_task("shapes", total=None)
        return lambda done, total: self.bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
