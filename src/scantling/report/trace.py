"""The walk of a token through the shapes of a model, in the eight stages of a decoder.

token → embedding → norm → Q/K/V → heads → attention → output → FFN or experts → head. Every
operator belongs to one stage, so stages sum to the parameters and to the FLOPs of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from scantling import catalog
from scantling.ops import Op, operators
from scantling.spec import GroupedAttention, LatentAttention, Spec, Stack, Workload

Word = Literal[
    "token", "embedding", "norm", "qkv", "heads", "attention", "output", "ffn", "experts", "head",
]  # fmt: skip
WORDS: tuple[str, ...] = get_args(Word)
FEEDFORWARD = {"ffn", "shared_experts", "experts", "router"}


class Stage(Struct, frozen=True):
    """One stage of the walk, of all equal layers together."""

    name: str
    word: Word
    layer: str
    """The layer kind it stands in, with its stack; empty outside the layers."""
    layers: int
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    ops: tuple[Op, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The contract of ``trace --json``."""
        weights = [
            {"name": t.name, "shape": list(t.shape), "copies": t.copies, "experts": t.experts,
             "new": 0 if t.alias or t.buffer else t.size(), "alias": t.alias}
            for op in self.ops for t in op.tensors
        ]  # fmt: skip
        return {
            "name": self.name, "stage": self.word, "layer": self.layer, "layers": self.layers,
            "in_shape": list(self.in_shape), "out_shape": list(self.out_shape),
            "weights": weights, "params": sum(w["new"] for w in weights),
            "flops": sum(op.flops() for op in self.ops),
            "operators": [{"name": op.name, "kind": op.kind, "flops": op.flops()}
                          for op in self.ops],
            "statistics": None,
        }  # fmt: skip


def trace(
    given: Any, *, batch: int = 1, context: int = 128, assume: bool = False
) -> dict[str, Any]:
    """Every stage of a forward pass with its shapes, weights, parameters and FLOPs.

    Equal layers are one stage with a count; FLOPs and parameters are of all of them together.

    Args:
        given: A model, as for ``analyze``.
        batch: Sequences B.
        context: Tokens of each, S.
        assume: For a model type in no table: go on past fields that are not understood.

    Example:
        >>> stages = trace("gpt2", context=128)["stages"]
        >>> [s["stage"] for s in stages[:6]]
        ['token', 'embedding', 'norm', 'qkv', 'heads', 'attention']
        >>> stages[4]["in_shape"], stages[4]["out_shape"]
        ([1, 128, 2304], [1, 12, 128, 64])
    """
    one = catalog.load(given, assume=assume)
    found = walk(one.spec, batch, context)
    return {
        "schema": 1, "model": one.name, "batch": batch, "context": context,
        "layout": [{"stack": name, "pattern": list(run.pattern), "layers": run.n}
                   for name, stack in _stacks(one.spec) for run in stack.layout],
        "stages": [stage.to_json() for stage in found],
    }  # fmt: skip


def walk(spec: Spec, batch: int, context: int) -> list[Stage]:
    """The stages of a prefill in the order of the operators, token first."""
    ops = operators(spec, Workload("prefill", batch, context))
    modules = dict(_modules(spec))
    rows = [batch, context]
    found = [Stage("token", "token", "", 1, tuple(rows), tuple(rows))]
    for path, group in _grouped(ops):
        if path.count(".") == 2:
            found += _module_stages(path, group, modules.get(path), batch)
        else:
            found.append(_outer_stage(path, group, batch))
    return found


def _stacks(spec: Spec) -> Iterator[tuple[str, Stack]]:
    if spec.encoder is not None:
        yield "encoder", spec.encoder
    yield "decoder", spec.decoder


def _modules(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Every module by the path its operators have; a second one of a name is numbered."""
    for name, stack in _stacks(spec):
        for layer in stack.kinds:
            seen: dict[str, int] = {}
            for block in layer.blocks:
                for branch in block.branches:
                    n = seen[branch.name] = seen.get(branch.name, 0) + 1
                    own = branch.name if n == 1 else f"{branch.name}{n}"
                    yield f"{name}.{layer.name}.{own}", branch.module


def _grouped(ops: tuple[Op, ...]) -> Iterator[tuple[str, list[Op]]]:
    """Operators that follow each other in one module, with its path.

    Outside the layers the paths are ``embedding``, ``<stack>.embedding``, ``<stack>.norm`` and
    ``head``.
    """
    path = ""
    group: list[Op] = []
    closed: set[str] = set()
    seen: set[str] = set()
    for op in ops:
        place = op.name.rpartition(".")[0]
        if place.count(".") < 2:
            place = _outer_path(place, seen)
        else:
            seen.add(place.partition(".")[0])
        if place != path and place not in closed:
            if group:
                yield path, group
            closed.add(path)
            path, group = place, []
        group.append(op)  # what ends a block of several branches stays with the last one
    if group:
        yield path, group


def _outer_path(place: str, seen: set[str]) -> str:
    """Where an operator outside the layers stands: before or after those of its stack."""
    if place != "model":
        return f"{place}.norm" if place in seen else f"{place}.embedding"
    if "decoder" in seen:
        return "head"
    return "decoder.embedding" if "encoder" in seen else "embedding"


def _outer_stage(path: str, group: list[Op], batch: int) -> Stage:
    last: Any = group[-1]
    length = last.m // batch
    words: dict[str, Word] = {"embedding": "embedding", "head": "head"}
    word = words.get(path.rpartition(".")[2], "norm")
    out = (batch, length, last.n)
    into: tuple[int, ...] = (batch, length) if word == "embedding" else out
    if word == "head":
        first: Any = group[0]
        into = (batch, length, first.k if first.kind == "matmul" else first.n)
    elif word == "embedding":
        wide = [op.n for op in group if ".per_layer_" not in op.name]  # those are no stream
        out = (batch, length, max(wide))
    return Stage(path, word, "", 1, into, out, tuple(group))


def _module_stages(path: str, group: list[Op], module: Any, batch: int) -> list[Stage]:
    words = list(_words(group, module))
    order = list(dict.fromkeys(words))
    if any(op.kind == "attention" for op in group) and "heads" not in order:
        order.insert(order.index("attention"), "heads")
    layer = path.rpartition(".")[0]
    times: Any = group[0].times
    if times == 0:  # a kind that stands in a pattern longer than its run
        return []
    found = []
    for word in order:
        own = tuple(op for op, w in zip(group, words, strict=True) if w == word)
        found.append(Stage(f"{path}.{word}", word, layer, int(times), (), (), own))
    return _shaped(found, group, module, batch)


def _words(group: list[Op], module: Any) -> Iterator[Word]:
    """The stage of each operator of a module, by what it does and what came before it."""
    word: Word = "norm"
    after_core = started = False
    for op in group:
        of_stream = op.name.endswith(("depth_router", "stream_router"))
        if op.kind == "matmul" and op.part in FEEDFORWARD and not of_stream:
            started = True
            word = "experts" if op.part != "ffn" else word if word == "experts" else "ffn"
        elif op.kind in {"attention", "scan"}:
            started = after_core = True
            word = "attention"
        elif op.kind == "matmul" and op.part in {"attention", "mixer"}:
            started = True
            word = "output" if after_core else "qkv"
        elif op.kind == "norm" and op.part == "attention" and not after_core:
            word = "heads" if isinstance(module, GroupedAttention) else word
        elif not started:
            word = "norm"
        yield word


def _shaped(stages: list[Stage], group: list[Op], module: Any, batch: int) -> list[Stage]:
    """Stages with their shapes: what flows in and out of each, tokens before width."""
    lengths: Any = next(op.m for op in group if op.kind != "attention")
    place = (batch, lengths // batch)
    known = [op.n for op in group if op.name.endswith((".residual", "pre_norm"))]
    stream: Any = [*known, *(op.k for op in group if op.kind == "matmul")][0]
    heads = _heads(group, module, batch)
    found = []
    for stage in stages:
        products = [op for op in stage.ops if op.kind == "matmul"]
        into: tuple[Any, ...] = (*place, stream)
        out: tuple[Any, ...] = (*place, stream)
        if stage.word == "qkv":
            into = (*place, products[0].k)
            out = (*place, _projected(module, products))
        elif stage.word == "heads":
            into = (*place, _projected(module, _of(stages, "qkv")))
            out = heads[0]
        elif stage.word == "attention":
            into, out = heads
            if not any(op.kind == "attention" for op in stage.ops):
                scan: Any = [op for op in stage.ops if op.kind == "scan"][-1]
                into = out = (*place, scan.n)
        elif stage.word == "output" and products:
            into = (*place, products[0].k)
        found.append(replace(stage, in_shape=into, out_shape=out))
    return found


def _of(stages: list[Stage], word: str) -> list[Op]:
    return [op for s in stages if s.word == word for op in s.ops if op.kind == "matmul"]


def _projected(module: Any, products: list[Op]) -> Any:
    """Width of queries, keys and values together, as they come out of their projections."""
    if isinstance(module, LatentAttention):
        a = module
        return a.n_head * (2 * a.d_nope + a.d_rope + a.d_value) + a.d_rope
    return sum((op.n for op in products), 0)


def _heads(group: list[Op], module: Any, batch: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The queries of all heads, and what attention makes of them."""
    core: Any = [op for op in group if op.kind == "attention"]
    if not core:
        return (), ()
    heads = core[-1].repeat // (batch * core[-1].times)
    place = (batch, heads, core[-1].m)
    if isinstance(module, LatentAttention):
        return (*place, module.d_nope + module.d_rope), (*place, module.d_value)
    if isinstance(module, GroupedAttention):
        value = module.d_head if module.d_value is None else module.d_value
        return (*place, module.d_head), (*place, value)
    return (*place, core[-1].k), (*place, core[-1].k)
