"""A spec as a plain decoder in torch, whose every stage can be watched.

Shapes ride on names: ``x_BTD`` is batch × tokens × width. H query heads, K key-value heads, h and
v widths of a key and of a value, E experts, F hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError
from scantling.formats.target import refuse_beyond
from scantling.lab.attention import Grouped, Latent
from scantling.lab.parts import Linear, Normed, activation
from scantling.spec import (
    Alibi,
    Block,
    Branch,
    Chunk,
    DeepNorm,
    Dense,
    Embeddings,
    Experts,
    Full,
    GroupedAttention,
    Head,
    LatentAttention,
    Layer,
    LearnedPosition,
    Norm,
    Plain,
    QKNorm,
    Rope,
    Router,
    Run,
    SharedExpert,
    Spec,
    Stack,
    Window,
)

Watch = Callable[[str, Tensor], None]
"""Called with the name of a stage, as the trace has it, and what comes out of it."""

GRAMMAR: dict[type, str] = {
    Spec: "d_model vocab_size decoder embeddings tied head max_context",
    Stack: "kinds layout final_norm",
    Run: "pattern n",
    Layer: "name blocks",
    Embeddings: "position d_embed project_bias norm scale",
    LearnedPosition: "rows",
    Head: "bias project softcap scale",
    Block: "branches pre post after residual",
    Branch: "module pre post",
    Norm: "kind scale bias",
    QKNorm: "scope norm",
    Plain: "scale",
    DeepNorm: "alpha",
    Full: "",
    Window: "window",
    Chunk: "chunk",
    Rope: "theta fraction scaling",
    Alibi: "",
    GroupedAttention: (
        "n_head n_kv_head d_head d_value qkv_bias out_bias qk_norm position span causal sinks "
        "gate key_is_value softcap scale"
    ),
    LatentAttention: (
        "n_head kv_rank d_nope d_rope d_value q_rank qkv_bias out_bias norm position span scale"
    ),
    Dense: "d_ff gated activation in_bias out_bias",
    Experts: "n_expert top_k d_expert gated activation bias router shared",
    Router: "scoring bias correction n_expert_group top_k_group",
    SharedExpert: "d_shared gate bias",
}
"""What this model runs; the rest is refused by name. A rotary scaling changes no shape and no
statistic of random weights worth showing, so positions turn unscaled."""

NAME = "the lab's model"


class Feed(nn.Module):
    """A dense feed-forward: down(act(gate x) · up x), or down(act(up x))."""

    def __init__(
        self, d_model: int, d_ff: int, act: str, *, gated: bool, in_bias: bool, out_bias: bool
    ) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=in_bias)
        self.gate = Linear(d_model, d_ff, bias=in_bias) if gated else None
        self.down = Linear(d_ff, d_model, bias=out_bias)
        self.act = activation(act)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The same shape back."""
        up_BTF = self.up(x_BTD)
        hidden_BTF = self.act(up_BTF) if self.gate is None else self.act(self.gate(x_BTD)) * up_BTF
        down_BTD: Tensor = self.down(hidden_BTF)
        return down_BTD


def side(x_nI: Tensor, weight_EOI: Tensor, bias_EO: Tensor | None, i: int) -> Tensor:
    """One expert's product with the tokens that chose it."""
    return functional.linear(x_nI, weight_EOI[i], None if bias_EO is None else bias_EO[i])


class Routed(nn.Module):
    """Routed experts: each token passes ``top_k`` of them; all weights of a side in one tensor."""

    def __init__(self, e: Experts, d_model: int) -> None:
        super().__init__()
        self.e, n, f = e, int(e.n_expert), int(e.d_expert)
        self.router = Linear(d_model, n, bias=e.router.bias)
        sides = 2 if e.gated else 1
        self.up_EFD = nn.Parameter(torch.randn(n, sides * f, d_model) * d_model**-0.5)
        self.down_EDF = nn.Parameter(torch.randn(n, d_model, f) * f**-0.5)
        self.up_bias_EF = nn.Parameter(torch.zeros(n, sides * f)) if e.bias else None
        self.down_bias_ED = nn.Parameter(torch.zeros(n, d_model)) if e.bias else None
        if e.router.correction == "parameter":
            self.correction_E = nn.Parameter(torch.zeros(n))
        elif e.router.correction:
            self.register_buffer("correction_E", torch.zeros(n))
        self.act = activation(e.activation)
        s = e.shared
        self.shared = None if s is None else Feed(
            d_model, int(s.d_shared), e.activation, gated=e.gated, in_bias=s.bias, out_bias=s.bias
        )  # fmt: skip
        self.shared_gate = Linear(d_model, 1, bias=False) if s is not None and s.gate else None

    def chosen(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The weight and the number of each token's experts."""
        e = self.e
        logits_NE = self.router(x_ND)
        scores_NE = logits_NE.sigmoid() if e.router.scoring == "sigmoid" else logits_NE.softmax(-1)
        rank_NE = scores_NE + self.correction_E if e.router.correction else scores_NE
        groups = int(e.router.n_expert_group or 1)
        if groups > 1:
            by_group_NGE = rank_NE.unflatten(-1, (groups, -1))
            best_NG = by_group_NGE.topk(min(2, by_group_NGE.shape[-1]), -1).values.sum(-1)
            kept = best_NG.topk(int(e.router.top_k_group or 1), -1).indices
            open_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter(-1, kept, value=True)
            rank_NE = by_group_NGE.masked_fill(~open_NG[..., None], -torch.inf).flatten(-2)
        which_Nk = rank_NE.topk(int(e.top_k), -1).indices
        weight_Nk = scores_NE.gather(-1, which_Nk)
        return weight_Nk / weight_Nk.sum(-1, keepdim=True), which_Nk

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The weighted sum of each token's experts, and the shared expert."""
        x_ND = x_BTD.flatten(0, -2)
        weight_Nk, which_Nk = self.chosen(x_ND)
        out_ND = torch.zeros_like(x_ND)
        for i in sorted(set(which_Nk.flatten().tolist())):
            token, slot = (which_Nk == i).nonzero(as_tuple=True)
            up = side(x_ND[token], self.up_EFD, self.up_bias_EF, i)
            if self.e.gated:
                gate, up = up.chunk(2, -1)
                up = self.act(gate) * up
            else:
                up = self.act(up)
            down = side(up, self.down_EDF, self.down_bias_ED, i)
            out_ND = out_ND.index_add(0, token, down * weight_Nk[token, slot, None])
        if self.shared is not None:
            shared_ND = self.shared(x_ND)
            if self.shared_gate is not None:
                shared_ND = self.shared_gate(x_ND).sigmoid() * shared_ND
            out_ND = out_ND + shared_ND
        return out_ND.view_as(x_BTD)


def _module(module: Any, d_model: int) -> nn.Module:
    if isinstance(module, GroupedAttention):
        return Grouped(module, d_model)
    if isinstance(module, LatentAttention):
        return Latent(module, d_model)
    if isinstance(module, Experts):
        return Routed(module, d_model)
    assert isinstance(module, Dense)
    return Feed(d_model, int(module.d_ff), module.activation, gated=module.gated,
                in_bias=module.in_bias, out_bias=module.out_bias)  # fmt: skip


class Branched(nn.Module):
    """Branches side by side around one residual."""

    def __init__(self, block: Block, names: list[str], d_model: int) -> None:
        super().__init__()
        self.block, self.names = block, names
        self.pre = Normed.maybe(block.pre, d_model)
        self.post = Normed.maybe(block.post, d_model)
        self.after = Normed.maybe(block.after, d_model)
        self.inner = nn.ModuleList(_module(b.module, d_model) for b in block.branches)
        self.own_pre = nn.ModuleList(Normed.maybe(b.pre, d_model) for b in block.branches)
        self.own_post = nn.ModuleList(Normed.maybe(b.post, d_model) for b in block.branches)

    def forward(self, x_BTD: Tensor, path: str, watch: Watch) -> Tensor:
        """The stream after the block."""
        normed_BTD = self.pre(x_BTD)
        if self.block.pre is not None:
            watch(f"{path}.{self.names[0]}.norm", normed_BTD)
        total: Tensor | None = None
        for name, inner, pre, post, branch in zip(
            self.names, self.inner, self.own_pre, self.own_post, self.block.branches, strict=True
        ):
            own_BTD = pre(normed_BTD)
            if branch.pre is not None:
                watch(f"{path}.{name}.norm", own_BTD)
            if isinstance(inner, Grouped | Latent):
                own_BTD = inner(own_BTD, f"{path}.{name}", watch)
            else:
                own_BTD = inner(own_BTD)
                word = "experts" if isinstance(inner, Routed) else "ffn"
                watch(f"{path}.{name}.{word}", own_BTD)
            own_BTD = post(own_BTD)
            total = own_BTD if total is None else total + own_BTD
        assert total is not None, "a block has a branch"
        out_BTD: Tensor = self.post(total)
        residual = self.block.residual
        if isinstance(residual, DeepNorm):
            out_BTD = residual.alpha * x_BTD + out_BTD
        else:
            assert isinstance(residual, Plain)
            out_BTD = x_BTD + residual.scale * out_BTD
        after_BTD: Tensor = self.after(out_BTD)
        return after_BTD


class Layered(nn.Module):
    """One layer of a kind: its blocks in order."""

    def __init__(self, layer: Layer, d_model: int) -> None:
        super().__init__()
        self.path = f"decoder.{layer.name}"
        seen: dict[str, int] = {}
        blocks = []
        for block in layer.blocks:
            names = []
            for branch in block.branches:
                n = seen[branch.name] = seen.get(branch.name, 0) + 1
                names.append(branch.name if n == 1 else f"{branch.name}{n}")
            blocks.append(Branched(block, names, d_model))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x_BTD: Tensor, watch: Watch) -> Tensor:
        """The stream after the layer."""
        for block in self.blocks:
            x_BTD = block(x_BTD, self.path, watch)
        return x_BTD


class Decoder(nn.Module):
    """A spec as a model: token numbers in, logits out.

    Raises:
        FieldError: If the spec has a part this model does not run, by its name.

    Example:
        >>> from scantling import catalog
        >>> from scantling.lab.shrink import shrink
        >>> spec = shrink(catalog.model("qwen3-0.6b"))
        >>> model = Decoder(spec)
        >>> tuple(model(torch.zeros(1, 8, dtype=torch.long)).shape) == (1, 8, spec.vocab_size)
        True
    """

    def __init__(self, spec: Spec) -> None:
        refuse_beyond(spec, GRAMMAR, NAME)
        super().__init__()
        e, d, v = spec.embeddings, int(spec.d_model), int(spec.vocab_size)
        width = d if e.d_embed is None else int(e.d_embed)
        self.spec = spec
        self.table = nn.Embedding(v, width)
        self.position = None if e.position is None else nn.Embedding(int(e.position.rows), d)
        self.norm = Normed.maybe(e.norm, width)
        self.project_in = None if e.d_embed is None else Linear(width, d, bias=e.project_bias)
        kinds = {layer.name: layer for layer in spec.decoder.kinds}
        self.layers = nn.ModuleList(Layered(kinds[name], d) for name in spec.decoder.expand())
        self.final = Normed.maybe(spec.decoder.final_norm, d)
        head = spec.head
        assert head is not None, "the grammar refuses a model without a head"
        self.project_out = Linear(d, width, bias=False) if head.project else None
        self.head = Linear(width, v, bias=head.bias)
        if spec.tied:  # one table serves both: sized for the head, as a product is
            nn.init.normal_(self.table.weight, std=width**-0.5)
            self.head.weight = self.table.weight

    def forward(self, tokens_BT: Tensor, watch: Watch = lambda _name, _value: None) -> Tensor:
        """Logits of every position; ``watch`` sees what comes out of each stage."""
        e, head = self.spec.embeddings, self.spec.head
        x_BTD: Tensor = self.table(tokens_BT)
        if e.scale is not None:
            x_BTD = x_BTD * e.scale
        x_BTD = self.norm(x_BTD)
        if self.project_in is not None:
            x_BTD = self.project_in(x_BTD)
        if self.position is not None:
            length = tokens_BT.shape[-1]
            if length > self.position.num_embeddings:
                raise FieldError("context", length, "exceeds the learned positions "
                                 f"{self.position.num_embeddings}")  # fmt: skip
            x_BTD = x_BTD + self.position.weight[:length]
        watch("embedding", x_BTD)
        for layer in self.layers:
            x_BTD = layer(x_BTD, watch)
        x_BTD = self.final(x_BTD)
        if self.spec.decoder.final_norm is not None:
            watch("decoder.norm", x_BTD)
        if self.project_out is not None:
            x_BTD = self.project_out(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        assert head is not None, "checked when built"
        if head.scale is not None:
            logits_BTV = logits_BTV * head.scale
        if head.softcap is not None:
            logits_BTV = head.softcap * torch.tanh(logits_BTV / head.softcap)
        watch("head", logits_BTV)
        return logits_BTV
