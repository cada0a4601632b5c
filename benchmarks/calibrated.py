"""Forward passes and training steps of five small transformers, against what a chip file says.

    scantling calibrate --threads 1 --out cpu.toml
    python benchmarks/calibrated.py cpu.toml

No shape here is one that ``calibrate`` measures, and the models are written anew in plain torch.
The number of threads and the clock are those of the file. Runs of all models take turns, and the
fastest of each stands.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import scantling
from scantling import catalog
from scantling.costs.time import total_time
from scantling.costs.train import training_step
from scantling.hardware import cluster
from scantling.ops import operators
from scantling.spec.plan import Plan, Recipe

RUNS = 7
RECIPE = Recipe(
    dtype="fp32", weights="fp32", gradients="fp32", master=None, moments="fp32", reduce="fp32",
    attention="flash2", fused=False, logits="fp32",
)  # fmt: skip


class Shape(NamedTuple):
    kind: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    d_head: int
    d_ff: int
    vocab: int
    batch: int
    tokens: int


MODELS = {
    "gpt, wide vocabulary": Shape("gpt", 2, 768, 12, 12, 64, 3072, 50304, 1, 512),
    "gpt, small": Shape("gpt", 4, 256, 4, 4, 64, 1024, 8192, 4, 256),
    "llama, grouped heads": Shape("llama", 6, 384, 6, 2, 64, 1024, 16384, 2, 512),
    "llama, deep and narrow": Shape("llama", 12, 256, 8, 2, 32, 688, 4096, 8, 128),
    "llama, long context": Shape("llama", 3, 512, 4, 2, 128, 1408, 32000, 1, 1024),
}


def config(s: Shape) -> dict:
    if s.kind == "llama":
        return {
            "model_type": "llama", "num_hidden_layers": s.layers, "hidden_size": s.width,
            "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
            "head_dim": s.d_head, "intermediate_size": s.d_ff, "vocab_size": s.vocab,
            "tie_word_embeddings": False, "max_position_embeddings": s.tokens,
        }  # fmt: skip
    return {
        "model_type": "gpt2", "n_layer": s.layers, "n_embd": s.width, "n_head": s.heads,
        "n_inner": s.d_ff, "vocab_size": s.vocab, "n_positions": s.tokens,
    }  # fmt: skip


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q = nn.Linear(s.width, s.heads * s.d_head, bias=s.kind == "gpt")
        self.k = nn.Linear(s.width, s.kv_heads * s.d_head, bias=s.kind == "gpt")
        self.v = nn.Linear(s.width, s.kv_heads * s.d_head, bias=s.kind == "gpt")
        self.o = nn.Linear(s.heads * s.d_head, s.width, bias=s.kind == "gpt")

    def forward(self, x: Tensor) -> Tensor:
        s, (b, t, _) = self.s, x.shape
        q = self.q(x).view(b, t, s.heads, s.d_head).transpose(1, 2)
        k = self.k(x).view(b, t, s.kv_heads, s.d_head).transpose(1, 2)
        v = self.v(x).view(b, t, s.kv_heads, s.d_head).transpose(1, 2)
        if s.kind == "llama":
            q, k = rotated(q), rotated(k)
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads
        )
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        norm = nn.RMSNorm if s.kind == "llama" else nn.LayerNorm
        self.first, self.second, self.attention = norm(s.width), norm(s.width), Attention(s)
        self.up = nn.Linear(s.width, s.d_ff, bias=s.kind == "gpt")
        self.gate = nn.Linear(s.width, s.d_ff, bias=False) if s.kind == "llama" else None
        self.down = nn.Linear(s.d_ff, s.width, bias=s.kind == "gpt")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        up = self.up(y)
        hidden = functional.gelu(up) if self.gate is None else functional.silu(self.gate(y)) * up
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.places = None if s.kind == "llama" else nn.Embedding(s.tokens, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.width) if s.kind == "llama" else nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, s.vocab, bias=False)
        if s.kind == "gpt":
            self.head.weight = self.tokens.weight

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.tokens(numbers)
        if self.places is not None:
            x = x + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def runs(s: Shape) -> dict:
    """The two calls that are timed."""
    model = Model(s)
    numbers = torch.randint(s.vocab, (s.batch, s.tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def forward() -> None:
        with torch.no_grad():
            model(numbers)

    def step() -> None:
        loss = functional.cross_entropy(model(numbers).view(-1, s.vocab), numbers.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"forward": forward, "step": step}


def main(file: str) -> None:
    chip = scantling.chip(file)
    torch.set_num_threads(chip.measured.threads)
    now = time.thread_time if chip.measured.clock == "thread" else time.perf_counter
    torch.manual_seed(0)
    calls = {(name, kind): f for name, s in MODELS.items() for kind, f in runs(s).items()}
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    order = list(calls)
    for turn in range(RUNS + 1):
        random.Random(turn).shuffle(order)  # noqa: S311 - an order, no secret
        for key in order:
            start = now()
            calls[key]()
            if turn:
                taken[key].append(now() - start)
    off: dict[str, list[float]] = {"forward": [], "step": []}
    print(
        f"{'model':24} {'pass':8} {'measured':>9} {'median':>9} {'predicted':>9} {'error':>7}  90 %"
    )
    for (name, kind), seconds in taken.items():
        s = MODELS[name]
        spec = catalog.load(config(s)).spec
        if kind == "forward":
            work = scantling.Workload("prefill", s.batch, s.tokens, dtype="fp32")
            t = total_time(operators(spec, work), work, chip)
        else:
            plan = Plan(zero=0, micro_batch=s.batch)
            t = training_step(spec, plan, RECIPE, s.tokens, cluster(chip, 1, 1)).step
        best = min(seconds)
        off[kind].append(abs(t.value_s / best - 1))
        inside = "in" if t.low_s <= best <= t.high_s else "out"
        print(f"{name:24} {kind:8} {best * 1e3:7.1f}ms {statistics.median(seconds) * 1e3:7.1f}ms "
              f"{t.value_s * 1e3:7.1f}ms {t.value_s / best - 1:+7.1%}  {inside}")  # fmt: skip
    for kind, found in off.items():
        print(f"{kind}: mean absolute error {statistics.fmean(found):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
