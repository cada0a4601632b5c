"""Softmax attention of the lab's model: grouped (also across to an encoder) and latent."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.lab.disentangled import Distances, Relative
from scantling.lab.flow import Flow, Kernel, slopes, turned
from scantling.lab.numerics import Numerics
from scantling.lab.parts import Factored, Fused, Named, Normed
from scantling.lab.selected import Blocks, Index
from scantling.spec import (
    Alibi,
    Disentangled,
    GroupedAttention,
    LatentAttention,
    RelativeBias,
    Rope,
)
from scantling.spec.rotation import mscale, scaling_settings


def attend(
    q_BHTh: Tensor, k_BKSh: Tensor, v_BKSv: Tensor, seen: Tensor | None, *, scale: float,
    causal: bool, kernel: Kernel | None, softcap: float | None = None,
    sinks_H: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Softmax attention; a sink is one more logit a head, which takes weight and gives nothing.

    Args:
        q_BHTh: Queries.
        k_BKSh: Keys; H / K heads of queries read each.
        v_BKSv: Values.
        seen: A mask that broadcasts to H × T × S; None for all, or for plain causal.
        scale: On the logits.
        causal: Whether None means plain causal.
        kernel: Does it in one, where there is no cap and no sink; None writes all out.
        softcap: Cap on the logits.
        sinks_H: One logit a head.
        bias: Added to the logits, H × T × S.
    """
    h, k = q_BHTh.shape[-3], k_BKSh.shape[-3]
    if kernel is not None and softcap is None and sinks_H is None:
        mask = seen
        if bias is not None:
            mask = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
            mask = mask if mask.dim() == 4 else mask[None]  # the kernel takes 2 axes or 4
        plain = causal and mask is None
        return kernel(q_BHTh, k_BKSh, v_BKSv, mask, plain, scale)
    if h != k:
        k_BKSh, v_BKSv = (t.repeat_interleave(h // k, -3) for t in (k_BKSh, v_BKSv))
    logits_BHTS = scores(q_BHTh, k_BKSh, scale=scale, softcap=softcap, bias=bias)
    return shares(logits_BHTS, seen, sinks_H) @ v_BKSv


def one_kernel(
    q_BHTh: Tensor, k_BKSh: Tensor, v_BKSv: Tensor, mask: Tensor | None,
    plain: bool, scale: float,
) -> Tensor:  # fmt: skip
    """Attention in one kernel.

    That of a CPU takes keys and values of one width, else torch falls back to writing all weights
    out, so the narrower ones get zeros, which change nothing.
    """
    key, value = k_BKSh.shape[-1], v_BKSv.shape[-1]
    trained = mask is not None and mask.requires_grad  # no kernel of a CPU does that
    if q_BHTh.is_cpu and not trained:
        if key < value:
            q_BHTh, k_BKSh = (functional.pad(t, (0, value - key)) for t in (q_BHTh, k_BKSh))
        elif value < key:
            v_BKSv = functional.pad(v_BKSv, (0, key - value))
    return functional.scaled_dot_product_attention(
        q_BHTh, k_BKSh, v_BKSv, mask, is_causal=plain, scale=scale,
        enable_gqa=q_BHTh.shape[-3] != k_BKSh.shape[-3],
    )[..., :value]  # fmt: skip


def scores(
    q_BHTh: Tensor, k_BHSh: Tensor, *, scale: float, softcap: float | None, bias: Tensor | None
) -> Tensor:
    """The logits of attention, H × T × S, before any mask."""
    logits_BHTS = (q_BHTh * scale) @ k_BHSh.mT
    if softcap is not None:
        logits_BHTS = softcap * torch.tanh(logits_BHTS / softcap)
    return logits_BHTS if bias is None else logits_BHTS + bias


def shares(logits_BHTS: Tensor, seen: Tensor | None, sinks_H: Tensor | None) -> Tensor:
    """The weight of each key; with sinks they sum to less than one."""
    if seen is not None:
        logits_BHTS = logits_BHTS.masked_fill(~seen, -torch.inf)
    if sinks_H is None:
        return logits_BHTS.softmax(-1)
    sink = sinks_H[:, None, None].expand(*logits_BHTS.shape[:-1], 1)
    return torch.cat((logits_BHTS, sink), -1).softmax(-1)[..., :-1]


def total(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of what there is."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


class Grouped(nn.Module):
    """MHA, GQA and MQA, with windows, sinks, gates, softcaps and norms of queries and keys.

    Queries and keys stand side by side in one product, so one complex multiply turns both.
    """

    attend = staticmethod(attend)

    def __init__(
        self, a: GroupedAttention, d_model: int, numerics: Numerics, *, first: bool
    ) -> None:
        super().__init__()
        self.a, epsilon = a, numerics.epsilon
        self.h, self.k, self.width = int(a.n_head), int(a.n_kv_head), int(a.d_head)
        self.value = int(a.d_head if a.d_value is None else a.d_value)
        keys = {"k": self.k * self.width, "v": 0 if a.key_is_value else self.k * self.value}
        gates = {None: 0, "head": self.h, "element": self.h * self.value}[a.gate]
        own = {"q": self.h * self.width, **({} if a.shares_kv or a.cross else keys), "gate": gates}
        self.d_in = d_model if a.d_input is None else int(a.d_input)
        plain = "" if a.key_bias else "k"
        self.qkv = Fused(self.d_in, own, bias=a.qkv_bias, plain=plain)
        crosses = a.cross and not a.shares_kv
        self.kv = Fused(d_model, keys, bias=a.qkv_bias, plain=plain) if crosses else None
        self.o = Fused(self.h * self.value, {"o": d_model}, bias=a.out_bias, role="out")
        self.sinks_H = nn.Parameter(torch.zeros(self.h)) if a.sinks else None
        self.scale = numerics.attention_scale(self.width) if a.scale is None else a.scale
        self.q_norm: Normed | None = None
        self.k_norm: Normed | None = None
        self.wide_norm = False
        if a.qk_norm is not None:
            norm, scope = a.qk_norm.norm, a.qk_norm.scope
            self.wide_norm = scope == "width"
            shapes = [{"head": (self.width,), "each_head": (n, self.width),
                       "width": (n * self.width,)}[scope] for n in (self.h, self.k)]  # fmt: skip
            self.q_norm = Normed(norm, *shapes[0], epsilon=epsilon)
            self.k_norm = None if a.shares_kv else Normed(norm, *shapes[1], epsilon=epsilon)
        has_v = a.value_norm is not None and not a.shares_kv
        self.v_norm = Normed(a.value_norm, self.value, epsilon=epsilon) if has_v else None  # type: ignore[arg-type]
        self.out_norm = None
        if a.out_norm is not None:
            self.out_norm = Normed(a.out_norm, self.h * self.value, epsilon=epsilon)
        self.relative_NH: nn.Parameter | None = None
        if isinstance(a.position, RelativeBias) and (first or a.position.each_layer):
            self.relative_NH = nn.Parameter(torch.zeros(int(a.position.n_bucket), self.h))
        self.blocks = None
        if a.selector is not None:
            self.blocks = Blocks(a.selector, self.d_in, self.width, epsilon, causal=a.causal)
        self.relative = None
        if isinstance(a.position, Disentangled):
            table = Distances(a.position, self.d_in, epsilon) if first else None
            self.relative = Relative(a.position, self.h, self.width, self.d_in, table)
            if a.scale is None:
                self.scale *= self.relative.terms**-0.5
        self.shared = repr((a.span, a.position, self.k, self.width, self.value))
        """What a layer and one that reads its keys have in common."""
        self.joint = "k" in own and a.qk_norm is None and isinstance(a.position, Rope)
        """Whether queries and keys are turned as one tensor."""

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        yield from self.qkv.named()
        if self.kv is not None:
            yield from self.kv.named()
        for name in ("q_norm", "k_norm", "v_norm", "out_norm"):
            norm = getattr(self, name)
            if norm is not None:
                yield from norm.named(name)
        for part in (self.blocks, self.relative):
            if part is not None:
                yield from part.named()
        if self.sinks_H is not None:
            yield "sinks", self.sinks_H
        if self.relative_NH is not None:
            assert isinstance(self.a.position, RelativeBias)
            yield "layer_bias" if self.a.position.each_layer else "relative_bias", self.relative_NH
        yield from self.o.named()

    def adapter(self, d_model: int) -> nn.ModuleDict | None:
        """The low-rank additions to the projections that one use of these weights has."""
        if self.a.adapter_rank is None:
            return None
        rank = int(self.a.adapter_rank)
        parts = {"qkv": (self.d_in, self.qkv), "kv": (d_model, self.kv)}
        return nn.ModuleDict({
            name: Factored(width, {f"{out}_adapter": n for out, n in part.outs.items()}, rank,
                           role="zero")
            for name, (width, part) in parts.items() if part is not None
        })  # fmt: skip

    def heads(self, x_BTw: Tensor, n: int, norm: Normed | None) -> Tensor:
        """Vectors of all heads, normed by their scope and turned."""
        if norm is not None and self.wide_norm:
            x_BTw = norm(x_BTw)
        x_BTnh = x_BTw.view(*x_BTw.shape[:-1], n, -1)
        return x_BTnh if norm is None or self.wide_norm else norm(x_BTnh)

    def made(self, x_BTD: Tensor, flow: Flow, path: str) -> dict[str, Tensor]:
        """What the projections make: each by its name, or queries and keys as ``both``."""
        added = flow.adapter
        qkv_BTw = self.qkv(x_BTD)
        if added is not None:
            qkv_BTw = qkv_BTw + added["qkv"](x_BTD)
        if flow.watch is not None:
            flow.watch(f"{path}.qkv", qkv_BTw)
        names, widths = list(self.qkv.outs), list(self.qkv.outs.values())
        if self.joint:
            names, widths = ["both", *names[2:]], [widths[0] + widths[1], *widths[2:]]
        made = dict(zip(names, torch.split(qkv_BTw, widths, -1), strict=True))
        if self.kv is not None:
            assert flow.source_BSD is not None, "cross attention has a source"
            kv_BSw = self.kv(flow.source_BSD)
            if added is not None:
                kv_BSw = kv_BSw + added["kv"](flow.source_BSD)
            widths = list(self.kv.outs.values())
            made |= dict(zip(self.kv.outs, torch.split(kv_BSw, widths, -1), strict=True))
        elif self.joint and self.a.key_is_value:
            made["k"] = made["both"][..., self.h * self.width :]
        return made

    def queries_and_keys(
        self, made: dict[str, Tensor], turns: Tensor | None, key_turns: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Queries and keys by head, turned: as one tensor, or each after its norm."""
        both = made.get("both")
        if both is not None:
            heads = both.view(*both.shape[:-1], self.h + self.k, self.width)
            assert turns is not None, "else there is nothing to do for both at once"
            # a split, whose backward pass is one copy; two slices would fill two with zeros
            both_heads = torch.split(turned(heads, turns), [self.h, self.k], -2)
            return both_heads[0], both_heads[1]
        q = self.heads(made["q"], self.h, self.q_norm)
        k = self.heads(made["k"], self.k, self.k_norm) if "k" in made else None
        if turns is not None:
            key_turns = turns if key_turns is None else key_turns
            q, k = turned(q, turns), None if k is None else turned(k, key_turns)
        return q, k

    def values(self, made: dict[str, Tensor]) -> Tensor:
        """Values by head, heads before tokens."""
        v_BSw = made["k" if self.a.key_is_value else "v"]
        v_BSKv = v_BSw.view(*v_BSw.shape[:-1], self.k, -1)
        v_BSKv = v_BSKv if self.v_norm is None else self.v_norm(v_BSKv)
        return v_BSKv.transpose(-3, -2)

    def chosen(self, x_BTD: Tensor, flow: Flow) -> tuple[Tensor | None, Tensor | None]:
        """Which keys a selector lets each query read, and its slope."""
        if self.blocks is None:
            return None, None
        found: tuple[Tensor, Tensor] = self.blocks(x_BTD, self.h, self.a.position, flow)
        return found

    def bias(self, flow: Flow) -> Tensor | None:
        """What positions add to the logits."""
        a, places = self.a, flow.places
        keys = flow.source if a.cross else None
        if isinstance(a.position, Alibi):
            distance = places.distance(keys).abs()
            far = distance if distance.dim() == 2 else distance[:, None]
            return places.once(("alibi", self.h, far.shape), lambda: -slopes(self.h).to(
                far.device)[:, None, None] * far)  # fmt: skip
        if not isinstance(a.position, RelativeBias):
            return None
        if self.relative_NH is not None:
            flow.once["bias"] = self.relative_NH
        table_NH: Tensor = flow.once["bias"]  # the first layer has it
        causal = a.causal and not a.cross
        found = table_NH[places.buckets(a.position, keys, causal=causal)]
        return found.movedim(-1, -3)

    def keys_and_values(
        self, k: Tensor | None, made: dict[str, Tensor], flow: Flow
    ) -> tuple[Tensor, Tensor]:
        """This layer's, which later ones may read; or those of an earlier one."""
        if k is None:
            return flow.kept[self.shared]
        found = k.transpose(-3, -2), self.values(made)
        if not self.a.cross:
            flow.kept[self.shared] = found
        return found

    def seen(self, flow: Flow, bias: Tensor | None) -> Tensor | None:
        """Which keys each query sees, where the kernel does not know it by itself."""
        a = self.a
        if a.cross:
            return None
        seen = flow.places.seen(a.span, causal=a.causal)
        written = flow.kernel is None or a.softcap is not None or self.sinks_H is not None
        if seen is None and a.causal and (written or bias is not None):
            return flow.places.causal()
        return seen

    def gated(self, out_BHTv: Tensor, made: dict[str, Tensor]) -> Tensor:
        """What attention made, gated and normed: B × T × (H v)."""
        if self.a.gate == "head":
            out_BHTv = out_BHTv * made["gate"].sigmoid().mT[..., None]
        out_BTw = out_BHTv.transpose(-3, -2).flatten(-2)
        if self.a.gate == "element":
            out_BTw = out_BTw * made["gate"].sigmoid()
        return out_BTw if self.out_norm is None else self.out_norm(out_BTw)

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        a, watch = self.a, flow.watch
        if x_BTD.shape[-1] != self.d_in:  # Zamba: the stream beside the embedding
            assert flow.embedded_BTD is not None, "the decoder says what it embedded"
            x_BTD = torch.cat((x_BTD, flow.embedded_BTD), -1)
        made = self.made(x_BTD, flow, path)
        rope = isinstance(a.position, Rope)
        turns = flow.places.turns(a.position, self.width) if rope else None  # type: ignore[arg-type]
        key_turns = None
        if rope and a.cross and flow.source is not None:
            key_turns = flow.source.turns(a.position, self.width)  # type: ignore[arg-type]
        q, k = self.queries_and_keys(made, turns, key_turns)
        q_BHTh = q.transpose(-3, -2)
        k_BKSh, v_BKSv = self.keys_and_values(k, made, flow)
        if watch is not None:
            watch(f"{path}.heads", q_BHTh)
        bias = self.bias(flow)
        if self.relative is not None:
            k_BHSh = k_BKSh.repeat_interleave(self.h // self.k, -3)
            bias = self.scale * self.relative(q_BHTh, k_BHSh, self.qkv, flow)
        seen, (open_, slope) = self.seen(flow, bias), self.chosen(x_BTD, flow)
        if open_ is not None:
            seen = flow.places.causal() if seen is None and a.causal else seen
            seen, bias = open_ if seen is None else open_ & seen, total(bias, slope)
        out_BHTv = self.attend(
            q_BHTh, k_BKSh, v_BKSv, seen, scale=self.scale,
            causal=a.causal and not a.cross, kernel=flow.kernel, softcap=a.softcap,
            sinks_H=self.sinks_H, bias=bias,
        )  # fmt: skip
        if watch is not None:
            watch(f"{path}.attention", out_BHTv)
        out_BTD: Tensor = self.o(self.gated(out_BHTv, made))
        if watch is not None:
            watch(f"{path}.output", out_BTD)
        return out_BTD


class Latent(nn.Module):
    """Multi-head latent attention, expanded to H keys and values as in training."""

    attend = staticmethod(attend)

    def __init__(self, a: LatentAttention, d_model: int, numerics: Numerics) -> None:
        super().__init__()
        self.a, self.h, epsilon = a, int(a.n_head), numerics.epsilon
        self.nope, self.rope, self.value = int(a.d_nope), int(a.d_rope), int(a.d_value)
        query = self.h * (self.nope + self.rope)
        kv_down = {"kv_down": int(a.kv_rank) + self.rope}
        self.q_norm: Normed | None = None
        if a.q_rank is None:  # a bias belongs to the down projections only
            self.down = Fused(d_model, kv_down, bias=a.qkv_bias)
            self.q = Fused(d_model, {"q": query})
        else:
            self.down = Fused(d_model, {"q_down": int(a.q_rank), **kv_down}, bias=a.qkv_bias)
            self.q_norm = Normed(a.norm, int(a.q_rank), epsilon=epsilon)
            self.q = Fused(int(a.q_rank), {"q_up": query})
        self.kv_norm = Normed(a.norm, int(a.kv_rank), epsilon=epsilon)
        self.kv_up = Fused(int(a.kv_rank), {"kv_up": self.h * (self.nope + self.value)})
        self.gate = Fused(d_model, {"gate": self.h}) if a.gate else None
        self.index = None
        if a.indexer is not None:
            inner = d_model if a.q_rank is None else int(a.q_rank)
            self.index = Index(a.indexer, d_model, inner, self.rope)
        self.o = Fused(self.h * self.value, {"o": d_model}, bias=a.out_bias, role="out")
        width = self.nope + self.rope
        self.scale = numerics.attention_scale(width) * _stretch(a) if a.scale is None else a.scale

    def named(self) -> Named:
        """Its weights by their names in ``ops``."""
        for part in (self.down, self.q, self.kv_up, self.gate, self.index, self.o):
            if part is not None:
                yield from part.named()
        if self.q_norm is not None:
            yield from self.q_norm.named("q_norm")
        yield from self.kv_norm.named("kv_norm")

    def forward(self, x_BTD: Tensor, flow: Flow, path: str) -> Tensor:
        """The same shape back."""
        a, h, watch = self.a, self.h, flow.watch
        down = self.down.split(x_BTD)
        q_in = x_BTD if self.q_norm is None else self.q_norm(down["q_down"])
        q_BTw = self.q(q_in)
        latent_BTr, shared_BTr = torch.split(down["kv_down"], [int(a.kv_rank), self.rope], -1)
        kv_BTw = self.kv_up(self.kv_norm(latent_BTr))
        if watch is not None:
            watch(f"{path}.qkv", torch.cat((q_BTw, kv_BTw, shared_BTr), -1))
        q_BTHh, kv_BTHw = (t.view(*t.shape[:-1], h, -1) for t in (q_BTw, kv_BTw))
        k_nope, v_BTHv = torch.split(kv_BTHw, [self.nope, self.value], -1)
        q_nope, q_turn = torch.split(q_BTHh, [self.nope, self.rope], -1)
        k_turn = shared_BTr[..., None, :]
        if isinstance(a.position, Rope):
            turns = flow.places.turns(a.position, self.rope)
            q_turn, k_turn = turned(q_turn, turns), turned(k_turn, turns)
        q_BHTh = torch.cat((q_nope, q_turn), -1).transpose(-3, -2)
        k_turn = k_turn.expand(*k_nope.shape[:-1], -1)
        k_BHTh = torch.cat((k_nope, k_turn), -1).transpose(-3, -2)
        if watch is not None:
            watch(f"{path}.heads", q_BHTh)
        seen, slope = flow.places.seen(a.span, causal=True), None
        if seen is None and (flow.kernel is None or self.index is not None):
            seen = flow.places.causal()
        if self.index is not None:
            open_B1TS, slope = self.index(x_BTD, q_in, a.position, flow)
            seen = open_B1TS & seen
        out_BHTv = self.attend(q_BHTh, k_BHTh, v_BTHv.transpose(-3, -2), seen, scale=self.scale,
                          causal=True, kernel=flow.kernel, bias=slope)  # fmt: skip
        if watch is not None:
            watch(f"{path}.attention", out_BHTv)
        if self.gate is not None:
            out_BHTv = out_BHTv * self.gate(x_BTD).sigmoid().mT[..., None]
        out_BTD: Tensor = self.o(out_BHTv.transpose(-3, -2).flatten(-2))
        if watch is not None:
            watch(f"{path}.output", out_BTD)
        return out_BTD


def _stretch(a: LatentAttention) -> float:
    """YaRN's scale of the logits, which DeepSeek's classes apply here: mscale², weighed."""
    settings = scaling_settings(a.position if isinstance(a.position, Rope) else None)
    weight = settings.get("mscale_all_dim")
    return mscale(float(settings["factor"]), float(weight)) ** 2 if weight else 1.0
