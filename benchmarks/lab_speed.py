"""Training steps of the lab's model against peers, in CPU-seconds of one thread.

All engines of a comparison take turns step by step in one process, so that whatever else the
machine does meets them alike; a ratio is the median over rounds of peer's time over ours. One step
is forward, backward, clipping and a fused AdamW. litgpt is compared where it is installed.

    python benchmarks/lab_speed.py [eager] [compiled] [ensemble] [auto] [workers]

``workers`` is the one part by the clock: it means nothing while anything else runs.
"""

import importlib.util
import math
import multiprocessing
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from scantling.formats import hf
from scantling.lab.ensemble import Ensemble, together
from scantling.lab.model import Decoder

ROUNDS = 7
VOCAB = 256
SHAPES = {"0.1M": (4, 48, 3, 128), "0.5M": (4, 96, 3, 256)}
"""Layers, width, heads, FFN width; all with a vocabulary of bytes and tied tables."""


def llama_config(shape, context):
    depth, width, heads, ff = shape
    return {
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": width, "intermediate_size": ff,
        "num_hidden_layers": depth, "num_attention_heads": heads, "num_key_value_heads": heads,
        "max_position_embeddings": context, "tie_word_embeddings": True,
    }  # fmt: skip


def llama(shape, context, seed=0):
    return Decoder(hf.read(llama_config(shape, context)).spec, seed=seed)


def gpt2(shape, context):
    depth, width, heads, _ = shape
    config = {"model_type": "gpt2", "n_embd": width, "n_layer": depth, "n_head": heads,
              "vocab_size": VOCAB, "n_positions": context,
              "activation_function": "gelu"}  # fmt: skip
    return Decoder(hf.read(config).spec)


def theirs(shape, context):
    """LlamaForCausalLM with its fused attention."""
    import transformers

    given = {k: v for k, v in llama_config(shape, context).items() if k != "model_type"}
    config = transformers.LlamaConfig(**given, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "sdpa"  # noqa: SLF001 - the way to choose it
    model = transformers.LlamaForCausalLM(config)

    def loss(tokens, targets):
        logits = model(tokens, use_cache=False).logits
        return functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))

    return model, loss


def litgpt(shape, context):
    from litgpt import GPT, Config

    depth, width, heads, ff = shape
    model = GPT(Config(
        block_size=context, n_layer=depth, n_embd=width, n_head=heads, n_query_groups=heads,
        vocab_size=VOCAB, padded_vocab_size=VOCAB, rotary_percentage=1.0, parallel_residual=False,
        bias=False, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=ff,
    ))  # fmt: skip
    model.lm_head.weight = model.transformer.wte.weight

    def loss(tokens, targets):
        return functional.cross_entropy(model(tokens).view(-1, VOCAB), targets.view(-1))

    return model, loss


class NanoBlock(nn.Module):
    """A block as nanoGPT writes it."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))


class Nano(nn.Module):
    """The model of nanoGPT: learned positions, pre-norm, tied head."""

    def __init__(self, shape, context):
        super().__init__()
        depth, width, heads, _ = shape
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(NanoBlock(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        at = torch.arange(tokens.shape[1])
        x = self.wte(tokens) + self.wpe(at)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def stepper(model, loss, batch, context):
    """A function that takes one step on random tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    parameters = list(model.parameters())
    tokens = torch.randint(VOCAB, (batch, context + 1))

    def step():
        loss(tokens[:, :-1], tokens[:, 1:].contiguous()).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compare(steps, per_round, rounds=ROUNDS):
    """CPU-seconds of each engine in each round, step by step in turns."""
    for step in steps.values():
        step()
        step()
    times = {name: [] for name in steps}
    for _ in range(rounds):
        total = dict.fromkeys(steps, 0.0)
        for i in range(per_round):
            order = list(steps) if i % 2 else list(steps)[::-1]
            for name in order:
                start = time.process_time()
                steps[name]()
                total[name] += time.process_time() - start
        for name, seconds in total.items():
            times[name].append(seconds / per_round)
    return times


def ratio(times, peer, own):
    return statistics.median(a / b for a, b in zip(times[peer], times[own], strict=True))


def show(name, value, bar, note=""):
    verdict = "ok" if value >= bar else "BELOW"
    print(f"{name:58} {value:5.2f}x  bar {bar:.2f}  {verdict} {note}", flush=True)


def eager(batch=16, context=256):
    for size, shape in SHAPES.items():
        ours = llama(shape, context)
        steps = {"ours": stepper(ours, ours.loss, batch, context),
                 "transformers": stepper(*theirs(shape, context), batch, context)}  # fmt: skip
        if importlib.util.find_spec("litgpt"):
            steps["litgpt"] = stepper(*litgpt(shape, context), batch, context)
        times = compare(steps, 5)
        rate = batch * context / statistics.median(times["ours"])
        bar = 1.03 if size == "0.1M" else 1.0
        show(f"llama {size} against transformers", ratio(times, "transformers", "ours"), bar,
             f"{rate:,.0f} tokens a CPU-second")  # fmt: skip
        if "litgpt" in steps:
            show(f"llama {size} against litgpt", ratio(times, "litgpt", "ours"), 1.03)
        style, nano = gpt2(shape, context), Nano(shape, context)
        times = compare({"ours": stepper(style, style.loss, batch, context),
                         "nano": stepper(nano, nano, batch, context)}, 5)  # fmt: skip
        show(f"gpt2 {size} against nanoGPT's code", ratio(times, "nano", "ours"), 0.97)


def compiled(batch=16, context=256):
    for size, shape in SHAPES.items():
        ours = llama(shape, context)
        ours.warm(context)
        fast = torch.compile(ours.loss, dynamic=False)
        peer = stepper(*theirs(shape, context), batch, context)
        times = compare({"ours": stepper(ours, fast, batch, context), "transformers": peer}, 5)
        bar = 1.2 if size == "0.1M" else 0.0
        show(f"llama {size} compiled against transformers eager",
             ratio(times, "transformers", "ours"), bar)  # fmt: skip


def members(shape, batch, context, n, compile=False):  # noqa: A002
    """Steps of n members one by one, and together."""
    alone = [llama(shape, context, s) for s in range(n)]
    steps = [stepper(m, m.loss, batch, context) for m in alone]
    ensemble = Ensemble([llama(shape, context, s) for s in range(n)], 1e-3)
    tokens = torch.randint(VOCAB, (n, batch, context + 1))

    def one_by_one():
        for step in steps:
            step()

    def at_once(which):
        return lambda: which.step(tokens[..., :-1], tokens[..., 1:].contiguous())

    found = {"one by one": one_by_one, "together": at_once(ensemble)}
    if compile:
        fast = Ensemble([llama(shape, context, s) for s in range(n)], 1e-3, compile=True)
        found["compiled"] = at_once(fast)
    return found


def ensemble():
    times = compare(members(SHAPES["0.1M"], 4, 64, 8, compile=True), 5)
    show("8 members of 0.1M at 4 x 64 together", ratio(times, "one by one", "together"), 1.25)
    show("8 members of 0.1M at 4 x 64 together, compiled", ratio(times, "one by one", "compiled"),
         1.8)  # fmt: skip


def auto():
    """The choice against the better of both ways."""
    worst = math.inf
    for shape, batch, context, n in (
        (SHAPES["0.1M"], 4, 64, 8), (SHAPES["0.1M"], 8, 64, 8), (SHAPES["0.1M"], 4, 64, 2),
        (SHAPES["0.1M"], 16, 64, 8), (SHAPES["0.1M"], 16, 256, 4), ((2, 64, 4, 176), 8, 64, 8),
        (SHAPES["0.5M"], 8, 64, 8), ((8, 32, 2, 88), 4, 64, 8), ((2, 128, 8, 352), 4, 64, 4),
        ((8, 32, 2, 88), 16, 64, 8), ((2, 64, 4, 176), 16, 64, 8), (SHAPES["0.5M"], 4, 64, 8),
    ):  # fmt: skip
        times = compare(members(shape, batch, context, n), 2, 5)
        spec = llama(shape, context).spec
        choice = "together" if together(spec, batch, context, n) else "one by one"
        other = {"together": "one by one", "one by one": "together"}[choice]
        found = min(1.0, ratio(times, other, choice))
        print(f"    {shape} {batch} x {context} x {n}: {choice} {found:.2f}")
        worst = min(worst, found)
    show("the automatic choice against the better way, worst", worst, 0.95)


def serve(pipe, threads, shape, batch, context):
    """Take as many steps as asked, again and again, and say how long they took."""
    torch.set_num_threads(threads)
    model = llama(shape, context)
    step = stepper(model, model.loss, batch, context)
    step()
    pipe.send("done")
    while steps := pipe.recv():
        for _ in range(steps):
            step()
        pipe.send("done")


def workers(rounds=ROUNDS):
    """Two processes of one thread against one of two, in turns, by the clock."""
    context_of = multiprocessing.get_context("spawn")
    for batch, context, steps in ((8, 64, 60), (16, 256, 8)):
        pipes, processes = [], []
        for threads in (2, 1, 1):
            ours, its = context_of.Pipe()
            process = context_of.Process(
                target=serve, args=(its, threads, SHAPES["0.1M"], batch, context)
            )
            process.start()
            ours.recv()
            pipes.append(ours)
            processes.append(process)

        def clock(asked, steps=steps):
            start = time.perf_counter()
            for pipe in asked:
                pipe.send(steps)
            for pipe in asked:
                pipe.recv()
            return time.perf_counter() - start

        found = [2 * clock(pipes[:1]) / clock(pipes[1:]) for _ in range(rounds)]
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(0)
            process.join()
        spread = f"{min(found):.2f} to {max(found):.2f}"
        show(f"two workers against two threads, 0.1M, {batch} x {context}",
             statistics.median(found), 1.35, spread)  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    asked = sys.argv[1:] or ["eager", "compiled", "ensemble", "auto", "workers"]
    for part in asked:
        {
            "eager": eager,
            "compiled": compiled,
            "ensemble": ensemble,
            "auto": auto,
            "workers": workers,
        }[part]()
