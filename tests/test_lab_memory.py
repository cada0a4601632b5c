"""What a training step of the lab's model holds at most is what costs.memory says."""

import random

import pytest

import lab_specs
from allocations import peaks
from scantling import catalog, vary
from scantling.costs.plain_peak import works_on
from scantling.costs.ranks import placed_operators
from scantling.costs.states import states
from scantling.lab.shrink import shrink
from scantling.spec import (
    Audio,
    Experts,
    GatedDelta,
    GroupedAttention,
    HyperConnections,
    LatentAttention,
    Mamba2,
    MixtureOfDepths,
)
from scantling.spec.plan import Plan
from scantling.spec.vary import nodes

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
torch.set_num_threads(1)

from scantling.lab.expected import Watched, memory, recipe  # noqa: E402 - only where torch is
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.optimizers import Muon, optimizers  # noqa: E402

STRUCTURES = random.Random(20).sample(range(4000), 20)
NAMES = ["gpt2", "qwen3-0.6b", "gemma-2-2b", "olmo2-7b", "mixtral-8x7b", "deepseek-v2-lite",
         "gpt-oss-20b", "olmoe-1b-7b"]  # fmt: skip
BATCH, TOKENS = 4, 96


def measured(spec, batch=BATCH, context=TOKENS, optimizer="adamw", micro_batch=None):
    """Bytes alive at once in the second step, by the allocator; the passes are the loop's own.

    Moments exist then; gradients do not, for they are freed after each step.
    """
    each = micro_batch or batch

    def run(mark):
        model = Decoder(spec)
        made = optimizers(model, model.groups(1e-3), optimizer, {})
        tokens = torch.randint(spec.vocab_size, (batch, context))
        targets = torch.randint(spec.vocab_size, (batch, context))
        for _ in range(2):
            mark()
            for some in (slice(i, i + each) for i in range(0, batch, each)):
                source = None if spec.encoder is None else tokens[some]
                loss = model.loss(tokens[some], targets[some], source)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for one in made:
                one.step()
                one.zero_grad()

    return peaks(run)[-1]


# ---------------------------------------------------------------- the instrument


def test_the_allocator_is_read_to_the_byte():
    """exp(2 x), of which its output alone is kept, summed, and its gradient, by hand."""

    def run(mark):
        x = torch.zeros(1000, requires_grad=True)
        mark()
        y = (x * 2).exp()
        total = y.sum()
        mark()
        del y
        total.backward()

    made, forward, backward = peaks(run)

    assert made == 4000
    # x, 2 x while it is read, its exponential; and scalars
    assert 3 * 4000 <= forward < 3 * 4000 + 64
    # x, the exponential, the gradient of 2 x; then x, that gradient, the gradient of x
    assert 3 * 4000 <= backward < 3 * 4000 + 64


def test_scratch_of_a_kernel_is_seen_that_no_operation_returns():
    """A sort of float64 keys makes its own copy."""

    def run(mark):
        x = torch.rand(100_000, dtype=torch.float64)
        mark()
        torch.median(x)

    before, during = peaks(run)

    assert before == 800_000
    assert during >= 2 * 800_000


# ---------------------------------------------------------------- the bar


def test_the_specs_have_every_structure_the_lab_builds():
    kinds = (GroupedAttention, LatentAttention, Mamba2, GatedDelta, Experts, HyperConnections,
             MixtureOfDepths)  # fmt: skip
    found = {type(node) for s in STRUCTURES for _, node in nodes(lab_specs.roomy(s))}
    encoders = [lab_specs.roomy(s).encoder is not None for s in STRUCTURES]

    assert found.issuperset(kinds)
    assert len(set(encoders)) == 2
    assert {lab_specs.roomy(s).tied for s in STRUCTURES} == {True, False}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_peak_of_a_step_is_the_predicted_one_within_a_tenth(structure):
    spec = lab_specs.roomy(structure)

    said = memory(spec, BATCH, TOKENS, "fp32").total

    assert said == pytest.approx(measured(spec), rel=0.1)


@pytest.mark.parametrize("structure", STRUCTURES[:5])
def test_weights_that_outweigh_activations_are_within_a_tenth(structure):
    """One sequence: gradients that come while activations go.

    Of 64 tokens: a scan whose one chunk is mostly padding holds up to 14 % less than predicted.
    """
    spec = lab_specs.roomy(structure)

    said = memory(spec, 1, 64, "fp32").total

    assert said == pytest.approx(measured(spec, 1, 64), rel=0.1)


@pytest.mark.parametrize("structure", STRUCTURES[5:9])
def test_muon_and_gradients_that_wait_are_within_a_tenth(structure):
    spec = lab_specs.roomy(structure)

    muon = memory(spec, 1, 16, "fp32", "muon").total
    waiting = memory(spec, 4, 32, "fp32", micro_batch=1).total

    assert muon == pytest.approx(measured(spec, 1, 16, "muon"), rel=0.1)
    assert waiting == pytest.approx(measured(spec, 4, 32, micro_batch=1), rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_named_models_made_small_are_within_a_tenth(name):
    spec = vary(shrink(catalog.model(name), 400_000, TOKENS), vocab_size=300)

    said = memory(spec, BATCH, TOKENS, "fp32").total

    assert said == pytest.approx(measured(spec), rel=0.1)


@pytest.mark.parametrize("structure", range(0, 60, 3))
def test_muon_has_the_matrices_that_the_costs_say_it_has(structure):
    """Two moments a weight, one where Muon moves it: convolutions over all channels, not depthwise.

    But for the convolutions that read sound, which the lab leaves to AdamW.
    """
    spec = lab_specs.spec(structure)
    if any(isinstance(n, Audio) for _, n in nodes(spec)):
        pytest.skip("reads sound")
    model = Decoder(spec)
    made = optimizers(model, model.groups(1e-3), "muon", {})
    held = sum(p.numel() * (1 if isinstance(one, Muon) else 2)
               for one in made for group in one.param_groups for p in group["params"])  # fmt: skip

    ops = placed_operators(spec, Plan(), 8)
    assert states(ops, Plan(), recipe("fp32", "muon")).optimizer == 4 * held


def test_muon_makes_five_of_its_largest_matrix():
    spec = catalog.model("gpt2")
    ops = placed_operators(spec, Plan(), 8)
    n, side = 3072 * 768, 768

    assert works_on(ops, 4) == (5 * n + side**2) * 4


def test_a_process_that_grows_is_seen_to():
    watched = Watched(torch.device("cpu"))
    if watched.before is None:
        pytest.skip("the system does not say what a process holds")
    peak = watched.peak()
    assert peak is not None
    size = peak + 64 * 2**20
    torch.ones(size // 4)

    assert size * 0.9 < watched.peak() < size * 1.2 + 32 * 2**20
