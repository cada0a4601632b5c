"""Everything exact about one model, with the usual approximations beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from scantling import catalog
from scantling.arith import Num
from scantling.costs.cache import CACHE_READINGS, KVCache, PagedKV, kv_cache, paged_kv
from scantling.costs.count import (
    Convention,
    Flops,
    Parameters,
    forward_flops,
    parameters,
)
from scantling.costs.count import flops as model_flops
from scantling.costs.features import features
from scantling.costs.quantize import Scheme, released_scheme
from scantling.costs.readings import READINGS, readings
from scantling.costs.weights import weight_memory
from scantling.errors import FieldError
from scantling.formats.checkpoint import Checkpoint, describe
from scantling.formats.compare import Comparison, compare
from scantling.laws import Features
from scantling.ops import operators
from scantling.search import Candidate, budget, candidate, explain
from scantling.search.candidate import DIMENSIONS, counted_json
from scantling.search.shape_findings import rule_findings, unseen_findings
from scantling.spec import (
    Chunk,
    Spec,
    Stack,
    Window,
    Workload,
    dimensions,
    dtype_bytes,
    has,
    kv_dtype_bytes,
)
from scantling.spec.vary import nodes
from scantling.units import parse_context, parse_count

ADAMW_BYTES = 18
"""Per parameter of mixed-precision AdamW: bf16 weight 2, fp32 gradient 4, master weight 4 and two
moments 8 (Megatron's count; korthikanti2022)."""


class Analysis(Struct, frozen=True, kw_only=True):
    """What a shape implies, at one workload."""

    name: str
    model_type: str
    spec: Spec
    params: Parameters
    flops: Flops
    unpadded: Num
    """Forward FLOPs without the padding of chunked scans; as ``full`` where there are none."""
    cache: KVCache
    workload: Workload
    features: Features
    dims: dict[str, int]
    notes: tuple[str, ...]
    n_mtp: int
    towers: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    released: Scheme | None = None
    """How the released weights are packed; None where they are in 16 or 32 bits, or nobody says."""

    @property
    def released_bytes(self) -> int | None:
        """Bytes of the weights as released, scales included; without what predicts later tokens."""
        return None if self.released is None else int(weight_memory(self.spec, self.released).bytes)

    @property
    def weights_bytes(self) -> float:
        """Bytes of the weights at the workload's dtype, buffers not counted."""
        return float(self.params.total * dtype_bytes(self.workload.dtype))

    @property
    def paged(self) -> PagedKV | None:
        """The cache as an engine reserves it that pages each kind of layer by its own need."""
        w = self.workload
        return paged_kv(self.spec, w.batch, w.context, w.kv_dtype)

    def readings(self) -> dict[str, Any]:
        """The counts of parameters in circulation for this model."""
        return readings(self.spec, self.n_mtp, self.towers)

    def shape(self) -> dict[str, float]:
        """Ratios that engineers compare."""
        f, d = self.features, self.dims
        found: dict[str, float] = {**d, "D/L": d["d_model"] / d["n_layer"]}
        if "d_ff" in d:
            found["F/D"] = d["d_ff"] / d["d_model"]
        for name, value in (("MLP/attention", f.mlp_attention_ratio), ("H/K", f.kv_group),
                            ("Hh/D", f.attention_width_ratio)):  # fmt: skip
            if value is not None:
                found[name] = float(value)
        found["embedding share"] = self.params.embedding / self.params.total  # type: ignore[assignment]
        return found

    def approximations(self) -> dict[str, dict[str, float]]:
        """Rules of thumb beside the exact number, each with its error here."""
        p, d, tokens = self.params, self.dims, self.flops.tokens
        rules: dict[str, tuple[float, float]] = {
            "body_12LD2": (12 * d["n_layer"] * d["d_model"] ** 2, float(p.body)),
            "forward_2N_per_token": (2.0 * float(p.active), float(self.flops.forward / tokens)),
            "train_6N_per_token": (6.0 * float(p.active), float(self.flops.train / tokens)),
        }
        if self.cache.bytes_per_token:
            size = kv_dtype_bytes(self.workload.kv_dtype)
            rules["kv_2LD_if_it_were_MHA"] = (
                2 * d["n_layer"] * d["d_model"] * size, float(self.cache.bytes_per_token)
            )  # fmt: skip
        return {
            name: {"value": value, "exact": exact, "error": value / exact - 1}
            for name, (value, exact) in rules.items()
        }

    def findings(self) -> list[dict[str, str]]:
        """What the rules of lint say of the shape at this context, and what loss does not see."""
        told = rule_findings(self.spec, int(self.workload.context))
        return told + unseen_findings(self.features)

    def peers(self) -> list[str]:
        """The known models nearest in size and vocabulary, itself left out."""
        near = catalog.nearest(int(self.params.total), self.dims["vocab_size"], 4)
        return [m.name for m in near if m.name != self.name and m.spec != self.spec][:3]

    def compared(self) -> Comparison:
        """The given checkpoint against what the spec implies."""
        assert self.checkpoint is not None
        return compare(self.checkpoint, self.spec, self.model_type)

    def weights(self) -> dict[str, Any]:
        """What the given checkpoint holds, and where that is not what its config implies."""
        assert self.checkpoint is not None
        return {**describe(self.checkpoint), "comparison": self.compared().to_json()}

    def to_json(self) -> dict[str, Any]:
        """The contract of ``analyze --json``."""
        p, f, w, tokens = self.params, self.flops, self.workload, self.flops.tokens
        counts = self.readings()
        return {
            "schema": 1,
            "model": self.name,
            "model_type": self.model_type,
            "params": {
                **counted_json(p),
                "readings": counts, "readings_mean": {name: READINGS[name] for name in counts},
            },
            "flops": {
                "forward": f.forward, "train": f.train, "forward_unpadded": self.unpadded,
                "per_token_forward": f.forward / tokens, "per_token_train": f.train / tokens,
                "macs_forward": f.forward // 2 if isinstance(f.forward, int) else f.forward / 2,
                "convention": f.convention, "batch": w.batch, "context": w.context,
            },
            "kv_cache": {
                **msgspec.to_builtins(self.cache), "paged": msgspec.to_builtins(self.paged),
                "readings_mean": CACHE_READINGS, "kv_dtype": w.kv_dtype,
                "batch": w.batch, "context": w.context,
            },
            "memory": {
                "weights_bytes": self.weights_bytes, "dtype": w.dtype,
                **({} if self.released is None else {
                    "released_bytes": self.released_bytes, "released": self.released.name}),
                "weights_and_kv_bytes": self.weights_bytes + float(self.cache.bytes),
                "adamw_states_bytes": float(p.total) * ADAMW_BYTES,
            },
            "shape": self.shape(),
            "approximations": self.approximations(),
            "peers": self.peers(),
            "findings": self.findings(),
            "notes": list(self.notes),
            **({} if self.checkpoint is None else {"checkpoint": self.weights()}),
        }  # fmt: skip


def analyze(
    given: str | Path | dict[str, Any] | Spec, *, batch: int | str = 1,
    context: int | str | None = None,
    dtype: str = "bf16", kv_dtype: str = "bf16", flops: Convention = "full",
    loaded: catalog.Loaded | None = None, assume: bool = False,
) -> Analysis:  # fmt: skip
    """Count everything about one model.

    Args:
        given: A catalogue name, a path, a parsed config or a spec (see ``scantling.load``).
        batch: Sequences.
        context: Tokens of each; by default 8192 or the model's own limit if that is shorter.
        dtype: Dtype of the weights.
        kv_dtype: Dtype of the cache.
        flops: The convention: ``full``, ``unpadded``, ``causal``, ``palm`` or ``megatron``.
        loaded: The model, where it is loaded already.
        assume: For a model type in no table: go on past fields that are not understood.

    Raises:
        ScantlingError: If the model cannot be read, or an option is wrong.

    Example:
        >>> a = analyze("llama-3.1-8b", context=8192)
        >>> a.params.total, a.cache.bytes_per_token
        (8030261248, 131072)
    """
    one = catalog.load(given, assume=assume) if loaded is None else loaded
    spec = one.spec
    batch = parse_count(batch, "batch")
    context = None if context is None else parse_context(context, "context")
    if context is None:
        context = min(8192, int(spec.max_context or 8192))
    for name, value in (("batch", batch), ("context", context)):
        if not 1 <= value <= 2**40:
            raise FieldError(name, value, "must be at least 1 (and at most 2^40)")
    work = Workload("prefill", batch, context, dtype=dtype, kv_dtype=kv_dtype)
    dtype_bytes(dtype)  # what is no dtype is said before anything is printed
    forward = operators(spec, work)
    train = operators(spec, msgspec.structs.replace(work, phase="train"))
    counted = parameters(spec)
    if flops == "megatron":  # the one convention that is no sum over operators
        work_flops = model_flops(spec, batch, context, flops, one.mtp_passes)
    else:
        work_flops = Flops(forward_flops(forward, flops), forward_flops(train, flops),
                           batch * context, flops)  # fmt: skip
    return Analysis(
        name=one.name, model_type=one.model_type, spec=spec, params=counted, flops=work_flops,
        unpadded=forward_flops(forward, "unpadded"),
        cache=kv_cache(spec, batch, context, kv_dtype, ops=forward), workload=work,
        features=features(spec, 1.0, counted), dims=dims(spec), notes=one.notes, n_mtp=one.n_mtp,
        towers=one.towers,
        checkpoint=one.checkpoint, released=released_scheme(one.quantization),
    )  # fmt: skip


EXTRA = ("n_expert", "top_k", "d_expert", "d_shared", "kv_rank", "q_rank", "window", "chunk")


def dims(spec: Spec) -> dict[str, int]:
    """Every dimension a model has, by its short name."""
    found = dimensions(spec)
    return {name: int(found[name]) for name in (*DIMENSIONS, *EXTRA) if name in found}


def why(a: Analysis, field: str, **limits: Any) -> list[str]:
    """Reasons for one field of an existing model: its neighbours, and who shares it.

    Prices are for training on 20 tokens per parameter unless ``limits`` say otherwise.
    """
    return explain(as_candidate(a, **limits), field, existing=True).lines()


def as_candidate(a: Analysis, **limits: Any) -> Candidate:
    """An existing model as a row of a search: priced under a budget of its own size."""
    given = {"params": int(a.params.total), "vocab_size": a.dims["vocab_size"]}
    return candidate(a.spec, budget(**{**given, **limits}), a.name)


def spans(spec: Spec) -> list[str]:
    """Layer kinds in words: ``52 local (window 1024), 10 global``.

    Example:
        >>> spans(catalog.load({"model_type": "t5"}).spec)
        ['6 layers in the encoder', '6 layers in the decoder']
    """
    found = _kinds(spec, spec.decoder)
    if spec.encoder is None:
        return found
    inside = [(text, "encoder") for text in _kinds(spec, spec.encoder)]
    inside += [(text, "decoder") for text in found]
    return [f"{text} in the {where}" for text, where in inside]


def _kinds(spec: Spec, stack: Stack) -> list[str]:
    found = []
    for name, n in stack.occurrences().items():
        kind = stack.kind(name)
        limits = [f"window {node.window}" for _, node in nodes(kind) if isinstance(node, Window)]
        limits += [f"chunk {node.chunk}" for _, node in nodes(kind) if isinstance(node, Chunk)]
        if has(spec, "n_expert") and any("n_expert" in n.__struct_fields__ for _, n in nodes(kind)):
            limits.append("experts")
        word = "layers" if name == "layer" and n > 1 else name
        found.append(f"{n} {word}" + (f" ({', '.join(limits)})" if limits else ""))
    return found
