"""Weights in and out: safetensors of Hugging Face layouts, as ``data/hf_weights.toml`` has them.

A stored tensor is one or several weights of ``ops.tensors`` side by side, kept in some form. The
lab's model turns neighbouring numbers of a head by position; most classes turn number i with
number i + h/2. So rows of queries and keys change places on the way in and out, which leaves every
product of a query with a key as it was.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from scantling.errors import FieldError
from scantling.formats import hf
from scantling.formats.json_file import read_object
from scantling.lab.model import Decoder
from scantling.lab.numerics import Numerics
from scantling.sources import read_data
from scantling.spec import GroupedAttention, LatentAttention, Rope, Spec

INDEX = "model.safetensors.index.json"
FILE = "model.safetensors"


class Layout(Struct, frozen=True):
    """How one model type keeps its weights."""

    name: str
    turns: str | tuple[str, bool]
    """``halves`` or ``pairs``; or a config key that says whether it is pairs, and its default."""
    forms: dict[str, str]
    tensors: dict[str, list[str]]
    numerics: dict[str, tuple[str, Any]]
    same: dict[str, str]

    def halves(self, config: dict[str, Any]) -> bool:
        """Whether rows of queries and keys must change places for a model of this config."""
        if isinstance(self.turns, str):
            return self.turns == "halves"
        key, default = self.turns
        return not config.get(key, default)

    def form(self, stored: str) -> str:
        """The form of a stored tensor."""
        return next((f for end, f in self.forms.items() if stored.endswith(end)), "")


@functools.cache
def layouts() -> dict[str, Layout]:
    """Every layout the lab knows.

    Example:
        >>> sorted(layouts())[:4]
        ['deepseek_v3', 'gemma2', 'gemma3_text', 'gpt2']
    """
    given = read_data("hf_weights.toml")["type"]

    def merged(name: str) -> dict[str, Any]:
        own = given[name]
        first: dict[str, Any] = merged(own["like"]) if "like" in own else {}
        both = {**first, **own}
        for key in ("tensors", "numerics"):
            mine = own.get(key, {})  # a weight that stands elsewhere stands there only
            kept = {k: v for k, v in first.get(key, {}).items() if v not in mine.values()}
            both[key] = {**kept, **mine}
        return both

    return {
        name: Layout(
            name,
            one["turns"],
            one.get("forms", {}),
            one["tensors"],
            one["numerics"],
            one.get("same", {}),
        )
        for name, one in ((name, merged(name)) for name in given)
    }


def layout_of(model_type: str) -> Layout:
    """The layout of a model type.

    Raises:
        FieldError: If the lab has none.
    """
    found = layouts().get(model_type)
    if found is None:
        raise FieldError("model_type", model_type, "has no weight layout in the lab",
                         f"it has {', '.join(sorted(layouts()))}")  # fmt: skip
    return found


def read_numerics(layout: Layout, config: dict[str, Any]) -> Numerics:
    """The small numbers of a config, or of its class where it does not say.

    Example:
        >>> read_numerics(layout_of("llama"), {"rms_norm_eps": 1e-5}).epsilon
        1e-05
    """
    return Numerics(**{
        field: config.get(key, default) for field, (key, default) in layout.numerics.items()
    })  # fmt: skip


def load(folder: str | Path, *, device: str = "cpu") -> Decoder:
    """A model with the weights of a folder: its config.json and its safetensors.

    Args:
        folder: As written by ``save``, by transformers, or fetched from a hub.
        device: Where to.

    Raises:
        FieldError: If the type has no layout here, the lab cannot run it, or a tensor is missing,
            of another shape, or left over.
    """
    folder = Path(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise FieldError("folder", str(folder), "has no config.json")
    config, _ = read_object(path)
    read = hf.read(config)
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    layout = layout_of(read.model_type if read.model_type in layouts() else
                       str(config.get("model_type", read.model_type)))  # fmt: skip
    model = Decoder(read.spec, numerics=read_numerics(layout, config))
    fill(model, layout, stored_tensors(folder), halves=layout.halves(config))
    return model.to(device)


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors, by name."""
    from safetensors.torch import load_file

    index = folder / INDEX
    names = [FILE]
    if index.is_file():
        names = sorted(set(read_object(index)[0].get("weight_map", {}).values()))
    found: dict[str, Tensor] = {}
    for name in names:
        path = folder / Path(name).name
        if not path.is_file():
            raise FieldError("folder", str(folder), f"has no {Path(name).name}")
        found |= load_file(path)
    return found


def fill(model: Decoder, layout: Layout, stored: dict[str, Tensor], *, halves: bool) -> None:
    """Copy stored tensors into a model.

    Raises:
        FieldError: If one is missing, has another shape, or has no place.
    """
    left = set(stored)
    ends = _by_end(stored)
    for name, parts in _placed(model, layout):
        found = ends(name)
        if found is None:
            raise FieldError(f"tensor {name}", None, "is missing in the file")
        left.discard(found)
        given = _opened(stored[found], layout.form(name))
        sizes = [p.tensor.shape[-1 if p.tensor.dim() == 1 else p.axis] for p in parts]
        axis = parts[0].axis
        want = list(parts[0].tensor.shape)
        want[axis] = sum(sizes)
        if list(given.shape) != want:
            raise FieldError(f"tensor {name}", tuple(stored[found].shape),
                             f"has another shape than the config's {tuple(want)}")  # fmt: skip
        for part, piece in zip(parts, torch.split(given, sizes, axis), strict=True):
            with torch.no_grad():
                part.tensor.copy_(part.inward(piece) if halves else piece)
    left = {n for n in left if not n.endswith(("rotary_emb.inv_freq", ".attn.bias",
                                                ".attn.masked_bias"))}  # fmt: skip
    if model.spec.tied:
        left.discard("lm_head.weight")
    if left:
        raise FieldError(f"tensor {min(left)}", None, f"has no place in this {layout.name}")


def tensors_of(model: Decoder, layout: Layout, *, halves: bool) -> dict[str, Tensor]:
    """A model's weights as a layout stores them.

    Raises:
        FieldError: If a weight has no place in it.
    """
    found: dict[str, Tensor] = {}
    placed: set[tuple[str, int | None]] = set()
    for name, parts in _placed(model, layout):
        pieces = [(p.outward(p.tensor) if halves else p.tensor).detach() for p in parts]
        placed |= {(p.name, p.layer) for p in parts}
        found[name] = _closed(torch.cat(pieces, parts[0].axis), layout.form(name)).contiguous()
    for weight in model.named():
        if (weight.name, weight.layer) not in placed:
            raise FieldError(f"weight {weight.name}", None, f"has no place in a {layout.name}")
    return found


def save(model: Decoder, folder: str | Path, like: str | None = None) -> Path:
    """Write a model as transformers reads it: config.json and model.safetensors.

    Args:
        model: The model.
        folder: Made where it is missing.
        like: The model type to write; by default the first that says the same spec.

    Raises:
        FieldError: If no layout of the lab can hold it.
    """
    from safetensors.torch import save_file

    config = hf.write(model.spec, like)
    layout = layout_of(config["model_type"])
    for field, (key, default) in layout.numerics.items():
        config[key] = getattr(model.numerics, field)
        if config[key] is None:
            config[key] = default
    config |= {key: config[other] for key, other in layout.same.items()}
    config["torch_dtype"] = str(model.table.weight.dtype).removeprefix("torch.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = tensors_of(model, layout, halves=layout.halves(config))
    save_file(stored, folder / FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    return folder


# ---------------------------------------------------------------- one weight in its place


class Part(Struct, frozen=True):
    """One weight of the model, the axis along which it stands beside others, how its rows turn."""

    name: str
    layer: int | None
    tensor: Tensor
    axis: int
    heads: int
    """Heads along the axis whose numbers turn; 0 if none do."""
    skipped: int
    """Numbers of each head before those that turn."""
    turning: int
    """Numbers of a head that turn."""

    def _order(self, width: int, *, inward: bool) -> Tensor:
        each = width // self.heads
        order = torch.arange(each)
        halves = torch.arange(self.turning).view(2, -1).mT.reshape(-1) + self.skipped
        order[self.skipped : self.skipped + self.turning] = halves
        if not inward:
            order = order.argsort()
        return (torch.arange(self.heads)[:, None] * each + order).flatten()

    def inward(self, stored: Tensor) -> Tensor:
        """Halves to pairs."""
        if not self.turning:
            return stored
        axis = self.axis
        return stored.index_select(axis, self._order(stored.shape[axis], inward=True))

    def outward(self, own: Tensor) -> Tensor:
        """Pairs to halves."""
        if not self.turning:
            return own
        axis = self.axis
        order = self._order(own.shape[axis], inward=False).to(own.device)
        return own.index_select(axis, order)


def _placed(model: Decoder, layout: Layout) -> Iterator[tuple[str, list[Part]]]:
    """Each stored tensor that a model has, by its name, and the weights in it."""
    outside: dict[str, Part] = {}
    layers: dict[int, dict[str, Part]] = {}
    modules = _attentions(model.spec)
    for w in model.named():
        kind, _, local = w.name.removeprefix("decoder.").partition(".")
        if w.layer is None:
            outside[w.name] = Part(w.name, None, w.tensor, 0, 0, 0, 0)
            continue
        turns = _turns(modules.get(kind), local)
        axis = 1 if local.startswith("ffn.experts_") else 0
        layers.setdefault(w.layer, {})[local] = Part(w.name, w.layer, w.tensor, axis, *turns)
    for stored, names in layout.tensors.items():
        if "{i}" not in stored:
            if names[0] in outside:
                yield stored, [outside[n] for n in names]
            continue
        for i, there in layers.items():
            if names[0] not in there:
                continue
            parts = [there[n] for n in names]
            if "{e}" not in stored:
                yield stored.replace("{i}", str(i)), parts
                continue
            for e in range(parts[0].tensor.shape[0]):
                own = [Part(p.name, p.layer, p.tensor[e], 0, 0, 0, 0) for p in parts]
                yield stored.replace("{i}", str(i)).replace("{e}", str(e)), own


def _attentions(spec: Spec) -> dict[str, Any]:
    """The attention of each kind of layer."""
    return {
        kind.name: branch.module
        for kind in spec.decoder.kinds for block in kind.blocks for branch in block.branches
        if isinstance(branch.module, GroupedAttention | LatentAttention)
    }  # fmt: skip


def _turns(a: Any, local: str) -> tuple[int, int, int]:
    """Heads, numbers before those that turn, and numbers that turn, of one weight's rows."""
    if a is None or not isinstance(a.position, Rope):
        return 0, 0, 0
    name = local.removeprefix("attention.").removesuffix("_bias")
    if isinstance(a, LatentAttention):
        rope = int(a.d_rope)
        before = {"q": int(a.d_nope), "q_up": int(a.d_nope), "kv_down": int(a.kv_rank)}
        heads = 1 if name == "kv_down" else int(a.n_head)
        return (heads, before[name], rope) if name in before else (0, 0, 0)
    turning = int(int(a.d_head) * a.position.fraction)
    name = name.removesuffix("_norm_scale").removesuffix("_norm")
    if name not in {"q", "k"}:
        return 0, 0, 0
    heads = int(a.n_head if name == "q" else a.n_kv_head)
    if "norm" in local and a.qk_norm is not None and a.qk_norm.scope == "head":
        heads = 1
    return heads, 0, turning


def _by_end(stored: dict[str, Tensor]) -> Any:
    """Looks a name up as it is, behind a prefix of the file, or without its first word."""

    def find(name: str) -> str | None:
        short = name.partition(".")[2]
        for one in (name, f"language_model.{name}", f"model.language_model.{short}", short):
            if one in stored:
                return one
        return None

    return find


def _opened(t: Tensor, form: str) -> Tensor:
    """A stored tensor as (…, out, in), its matrices one after the other."""
    if form.endswith("in_out"):
        t = t.mT
    if form == "less_one":
        return t + 1
    if form.startswith("woven"):
        axis = -2 if form == "woven_in_out" else -1
        return torch.cat((t[..., ::2, :], t[..., 1::2, :]) if axis == -2 else
                         (t[..., ::2], t[..., 1::2]), axis)  # fmt: skip
    return t


def _closed(t: Tensor, form: str) -> Tensor:
    """The way back of ``_opened``."""
    if form == "less_one":
        return t - 1
    if form.startswith("woven"):
        axis = -2 if form == "woven_in_out" else -1
        t = torch.stack(t.chunk(2, axis), axis).flatten(axis - 1, axis)
    return t.mT if form.endswith("in_out") else t
