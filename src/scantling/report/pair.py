"""Two models together: which weights load, what blocks merging, adapters, distilling, drafting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scantling import catalog
from scantling.costs.count import parameters
from scantling.costs.serve import Deployment, Times
from scantling.costs.serving_speed import Factors, speed
from scantling.errors import FieldError
from scantling.formats.transfer import Line, Transfer, adapter_targets, transfer
from scantling.hardware import Chip, chip
from scantling.quantity import Quantity
from scantling.spec import Spec, attention, dtype_bytes
from scantling.spec.differ import differences

MOST_GUESSES = 16
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Chances shown where none is given."""
MOST_TOKENIZER_BYTES = 64 * 2**20
ANSWER = 256
"""Tokens out, for the price of a step at a context."""
ROOM = 0.8
"""Share of the memory that weights may take where the number of chips is chosen here."""


def pair(
    given_a: Any, given_b: Any, a: catalog.Loaded, b: catalog.Loaded, *, dtype: str = "bf16",
    context: int = 4096, batch: int = 1, gpu: str = "h100-sxm", accept: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What of one model can load, merge, adapt, distil or draft for another.

    Args:
        given_a: As the first model was given; a tokenizer.json beside its config is read.
        given_b: As the second was.
        a: The first: its weights are what is loaded.
        b: The second: the model they are loaded into.
        dtype: Of the weights, for bytes.
        context: Tokens in the cache, for the price of drafting.
        batch: Sequences.
        gpu: The chip of that price.
        accept: Chance that a guess is right; None shows the best length for several.

    Raises:
        FieldError: If ``accept`` is no chance, or the chip is not known.

    Example:
        >>> from scantling import catalog
        >>> one, two = catalog.load("llama-3-8b"), catalog.load("llama-3.1-8b")
        >>> found = pair("llama-3-8b", "llama-3.1-8b", one, two)
        >>> found["load"]["loads"]["tensors"], found["merge"]["possible"]
        (291, True)
    """
    if accept is not None and not 0.0 <= accept <= 1.0:
        raise FieldError("accept", accept, "must be a chance between 0 and 1")
    found = transfer(a.spec, b.spec, a.model_type, b.model_type)
    token = tokenizers(given_a, given_b, a.spec, b.spec)
    return {
        "from": a.name, "to": b.name, "dtype": dtype,
        "load": _load(found, dtype), "tokenizer": token,
        "differences": [d._asdict() for d in differences(a.spec, b.spec)],
        "merge": _merge(found, a, b, token), "adapters": _adapters(a, b),
        "distil": _distil(a, b, token),
        "draft": _draft(a, b, token, chip(gpu), context, batch, accept),
    }  # fmt: skip


def _load(found: Transfer, dtype: str) -> dict[str, Any]:
    size = float(dtype_bytes(dtype))
    counts = {
        status: {**n, "bytes": round(n["parameters"] * size)}
        for status, n in found.counts().items()
    }
    fresh = sum(line.parameters for line in found.unfilled)
    return {
        "method": found.method, **counts,
        "unfilled": {"tensors": sum(line.tensors for line in found.unfilled), "parameters": fresh,
                     "bytes": round(fresh * size)},
        "filled_share": 1 - fresh / found.needed,
        "lines": [_line(line) for line in found.lines],
        "unfilled_lines": [_line(line) for line in found.unfilled],
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {"role": line.role, "name": line.name, "status": line.status,
            "shape": list(line.shape), "other": None if line.other is None else list(line.other),
            "tensors": line.tensors, "parameters": line.parameters}  # fmt: skip


def tokenizers(given_a: Any, given_b: Any, a: Spec, b: Spec) -> dict[str, Any]:
    """Whether two models share their tokens: by ``tokenizer.json`` where both have one.

    Equal sizes are no proof: Llama 2 and Mistral v0.1 both have 32,000 tokens, other ones.
    """
    sizes = [int(a.vocab_size), int(b.vocab_size)]
    found: dict[str, Any] = {"vocab_sizes": sizes, "same": None}
    tables = [_vocabulary(given) for given in (given_a, given_b)]
    if tables[0] is not None and tables[1] is not None:
        shared = sum(1 for token, i in tables[0].items() if tables[1].get(token) == i)
        found |= {"same": tables[0] == tables[1], "tokens": [len(t or {}) for t in tables],
                  "shared": shared}  # fmt: skip
    elif sizes[0] == sizes[1]:
        found["why"] = (
            "equal sizes are no proof of equal tokens: give two folders that hold tokenizer.json"
        )
    else:
        found["why"] = "sizes differ: two tokenizers, or one padded to two sizes"
    return found


def _vocabulary(given: Any) -> dict[str, int] | None:
    """Tokens with their numbers, from the tokenizer.json beside what was given."""
    path = Path(str(given)) if isinstance(given, str | Path) else None
    if path is None or not path.exists():
        return None
    file = (path if path.is_dir() else path.parent) / "tokenizer.json"
    if not file.is_file() or file.stat().st_size > MOST_TOKENIZER_BYTES:
        return None
    try:
        read = json.loads(file.read_text("utf-8"))
        vocab = read["model"]["vocab"]
        if isinstance(vocab, list):  # unigram: (token, score) in order
            vocab = {entry[0]: i for i, entry in enumerate(vocab)}
        more = {one["content"]: one["id"] for one in read.get("added_tokens", [])}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise FieldError("tokenizer.json", file, f"cannot be read: {error}") from None
    return {**vocab, **more}


def _merge(found: Transfer, a: catalog.Loaded, b: catalog.Loaded, token: dict[str, Any]) -> Any:
    """Averaging weights needs every tensor to be the other's, the same tokens and one ancestor."""
    every = differences(a.spec, b.spec)
    blocked = [f"{d.field}: {one} against {other}" for d in every
               if d.kind == "shape" for one, other in [_both(d.a, d.b)]]  # fmt: skip
    doubts = [f"{d.field}: {one} against {other}: the same weights compute another function"
              for d in every if d.kind == "function"
              for one, other in [_both(d.a, d.b)]]  # fmt: skip
    if token["same"] is False:
        blocked.append("tokenizer: the same row of the embedding stands for other tokens")
    if not found.whole and not blocked:
        blocked += [f"{line.role}: {line.shape} against {line.other}" for line in found.lines
                    if line.status not in {"loads", "renames"}]  # fmt: skip
    ancestor = _ancestor(a, b)
    if ancestor is None:
        doubts.append("common ancestor: not known; averages of models trained apart are useless "
                      "at equal shapes too")  # fmt: skip
    if token["same"] is None and token["vocab_sizes"][0] == token["vocab_sizes"][1]:
        doubts.append(f"tokenizer: {token['why']}")
    return {"possible": not blocked, "blocked_by": blocked, "doubts": doubts,
            "common_ancestor": ancestor}  # fmt: skip


def _both(a: Any, b: Any) -> tuple[str, str]:
    """Two values in short; where they look alike, with the settings that differ."""
    one, other = _short(a), _short(b)
    if one == other and isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
        one, other = (f"{one} ({', '.join(f'{k} {v.get(k)}' for k in keys)})" for v in (a, b))
    return one, other


def _short(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("rope_type") or value.get("type")
        factor = f" ×{value['factor']:g}" if isinstance(value.get("factor"), int | float) else ""
        return f"{kind}{factor}" if kind else f"{len(value)} settings"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ancestor(a: catalog.Loaded, b: catalog.Loaded) -> str | None:
    """The model of the catalogue that both began with."""
    lines = [_line_of_descent(m.name) for m in (a, b)]
    return next((name for name in lines[0] if name in lines[1]), None)


def _line_of_descent(name: str) -> list[str]:
    known, found = catalog.named(), []
    while name in known and name not in found:
        found.append(name)
        name = known[name].tuned_from or ""
    return found


def _adapters(a: catalog.Loaded, b: catalog.Loaded) -> dict[str, Any]:
    targets = adapter_targets(a.spec, b.spec, a.model_type)
    n = sum(t.layers for t in targets)
    fits = sum(t.fits for t in targets)
    rows = [{"role": t.role, "module": t.name, "shape": list(t.shape),
             "other": None if t.other is None else list(t.other), "layers": t.layers,
             "fits": t.fits} for t in targets]  # fmt: skip
    return {"fits": fits, "of": n, "all": fits == n, "targets": rows,
            "why": "a low-rank adapter fits where (out, in) is the same; it does what it learned "
            "only on the weights it was trained on, or on near kin of them"}  # fmt: skip


def _distil(a: catalog.Loaded, b: catalog.Loaded, token: dict[str, Any]) -> dict[str, Any]:
    """The larger teaches the smaller."""
    teacher, student = sorted((a, b), key=lambda m: -float(parameters(m.spec).total))
    one, other = teacher.spec, student.spec
    wide, narrow = int(one.d_model), int(other.d_model)
    same = token["vocab_sizes"][0] == token["vocab_sizes"][1] and token["same"] is not False
    project = None if wide == narrow else {"shape": [wide, narrow], "parameters": wide * narrow}
    heads = [None if x is None else int(x.n_head) for x in (attention(one), attention(other))]
    depth = [int(one.n_layer), int(other.n_layer)]
    matched = [round((i + 1) * depth[0] / depth[1]) - 1 for i in range(depth[1])]
    why = "both give logits over the same number of tokens" if same else (
        "logits are over other tokens: cut both to the tokens they share, or teach by text "
        "(sequence-level distillation)")  # fmt: skip
    return {
        "teacher": teacher.name, "student": student.name,
        "logits": {"possible": same, "vocab_sizes": [int(one.vocab_size), int(other.vocab_size)],
                   "why": why},
        "hidden": {"widths": [wide, narrow], "projection": project},
        "attention_maps": {"heads": heads, "possible": heads[0] == heads[1] is not None},
        "layers": matched,
    }  # fmt: skip


def _draft(
    a: catalog.Loaded, b: catalog.Loaded, token: dict[str, Any], where: Chip, context: int,
    batch: int, accept: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The smaller guesses for the larger: is it checked, what it costs, how far to guess."""
    target, small = sorted((a, b), key=lambda m: -float(parameters(m.spec).active))
    sizes = [int(target.spec.vocab_size), int(small.spec.vocab_size)]
    found: dict[str, Any] = {
        "target": target.name, "draft": small.name, "vocab_sizes": sizes,
        "possible": sizes[0] == sizes[1] and token["same"] is not False,
        "gpu": where.key, "context": context, "batch": batch,
    }  # fmt: skip
    if target.spec.encoder or small.spec.encoder:
        return found | {"possible": False, "why": "needs two models without an encoder"}
    d = Deployment(tp=_chips(target.spec, where))
    plain = speed(target.spec, where, d, context, ANSWER, batch)
    alone = speed(small.spec, where, Deployment(), context, ANSWER, batch)
    own, guess = plain.tpot_s, alone.tpot_s
    found |= {"gpus": int(d.tp), "cost_ratio": _ratio(guess, own)}
    if not found["possible"]:
        why = "their tokens are not the same: guesses cannot be checked token by token"
        return found | {"lengths": [], "why": why}
    rows = [
        _best(target.spec, small.spec, where, d, context, batch, float(own.value), chance)
        for chance in (ACCEPTANCES if accept is None else (accept,))
    ]
    why = "acceptance is given" if accept is not None else (
        "acceptance is not known from shapes: measure it and give --accept")  # fmt: skip
    return found | {"lengths": rows, "why": why}


def _chips(spec: Spec, where: Chip) -> int:
    """The least power of two of chips that hold the weights in 16 bits with room."""
    n = 1
    while float(parameters(spec).total) * 2 > ROOM * n * float(where.memory_bytes):
        n *= 2
    return n


def _ratio(guess: Times, own: Times) -> Any:
    """Step of the draft over step of the target; the interval takes both at their worst."""
    return Quantity(
        value=float(guess.value / own.value), low=float(guess.low / own.high),
        high=float(guess.high / own.low), unit="×", kind="fitted",
        why=("time of a decode step of the draft on one chip over one of the target",),
    ).to_json()  # fmt: skip


def _best(
    spec: Spec, small: Spec, where: Chip, d: Deployment, context: int, batch: int, own: float,
    chance: float,
) -> dict[str, Any]:  # fmt: skip
    """The length of guess with the least time a token (``costs.serving_speed``)."""
    at = {
        k: speed(spec, where, d, context, ANSWER, batch,
                 Factors(guesses=k, accept=chance, draft=small)).tpot_s
        for k in range(1, MOST_GUESSES + 1)
    }  # fmt: skip
    best = min(at, key=lambda k: float(at[k].value))
    gain = own / float(at[best].value)
    if gain <= 1:
        return {"accept": chance, "guesses": 0, "speedup": 1.0}
    return {"accept": chance, "guesses": best, "speedup": gain}


__all__ = ["pair", "tokenizers"]
