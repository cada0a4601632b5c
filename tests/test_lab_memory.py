"""What a training step of the lab's model holds at most is what costs.memory says."""

import random

import pytest

from scantling import catalog, vary
from scantling.costs.buffers import workspace
from scantling.costs.memory import training_memory
from scantling.spec.plan import Plan, Recipe

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")

from scantling.lab.model import Decoder, cross_entropy  # noqa: E402 - only where torch is
from scantling.lab.shrink import shrink  # noqa: E402

NAMES = ("gpt2", "llama-3.2-1b", "qwen3-0.6b", "olmo2-7b", "pythia-160m", "qwen2.5-0.5b",
         "gemma-2b")  # fmt: skip
BATCH, TOKENS = 8, 96


def drawn(seed):
    """A dense model of random dimensions."""
    d = random.Random(seed)
    spec = shrink(catalog.model(d.choice(NAMES)), 600_000, 128)
    kv = d.choice((1, 2, 4))
    return vary(
        spec, d_model=8 * d.randint(4, 24), n_kv_head=kv, n_head=kv * d.choice((1, 2)),
        d_head=d.choice((8, 16, 32)), d_ff=8 * d.randint(6, 50), n_layer=d.randint(1, 6),
        vocab_size=d.randint(60, 600),
    )  # fmt: skip


def peak(spec):
    """Bytes alive at once in the second step, when gradients and moments exist, by torch's count.

    The logits are kept in a variable until the step ends, as loops do that the recipe describes;
    ``Decoder.loss`` lets go of them, which is a copy of the logits less.
    """
    model = Decoder(spec)
    optimizer = torch.optim.AdamW(model.groups(1e-3), fused=True)
    tokens = torch.randint(spec.vocab_size, (BATCH, TOKENS + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        logits = model(inputs)
        cross_entropy(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    memory = tracker.MemTracker()
    memory.track_external(model, optimizer)
    with memory:
        step()
    return memory.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_of_a_step_is_the_predicted_one_within_a_tenth(seed):
    """In fp32, attention in one kernel, and none of the scratch of a GPU's matrix library."""
    torch.set_num_threads(1)
    spec = drawn(seed)
    recipe = Recipe(dtype="fp32", weights="fp32", gradients="fp32", master=None, fused=False,
                    attention="flash2", fused_qkv=True, composed=False)  # fmt: skip
    said = training_memory(spec, Plan(micro_batch=BATCH), recipe, TOKENS).total - workspace(recipe)

    assert said == pytest.approx(peak(spec), rel=0.1)
