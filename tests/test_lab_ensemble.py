"""Members trained together are the models trained alone."""

import random

import pytest

import lab_specs
from scantling import catalog, vary

torch = pytest.importorskip("torch", reason="the lab's model needs torch")

from scantling.errors import FieldError  # noqa: E402 - only where torch is
from scantling.lab.ensemble import CHOOSE, Ensemble, batchable, together  # noqa: E402
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.shrink import shrink  # noqa: E402
from scantling.spec.vary import nodes  # noqa: E402


def tiny(name):
    return vary(shrink(catalog.model(name), 250_000, 32), vocab_size=61)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batches(steps, members):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(61, (steps, members, 2, 17), generator=generator)
    return tokens[..., :-1], tokens[..., 1:]


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt2", "gemma-3-1b", "qwen3-0.6b", "bloom-560m"])
@pytest.mark.parametrize("param", ["sp", "completep"])
def test_a_member_is_the_lone_model_after_twenty_steps(name, param):
    """Losses and weights: other seeds, other rates, decay, a clip that bites, a schedule."""
    spec, rates = tiny(name), [1e-3, 4e-3, 8e-3]
    models = [Decoder(spec, param, seed=s) for s in range(3)]
    ensemble = Ensemble(models, rates, weight_decay=0.1, clip=0.5)
    tokens, targets = batches(20, 3)
    found = [ensemble.step(t, y, factor=0.5 + i / 40)
             for i, (t, y) in enumerate(zip(tokens, targets, strict=True))]  # fmt: skip

    for m, (model, rate) in enumerate(zip(models, rates, strict=True)):
        groups = model.groups(rate, weight_decay=0.1)
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        for i in range(20):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"] * (0.5 + i / 40)
            loss = model.loss(tokens[i, m], targets[i, m])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            assert abs(float(loss.detach() - found[i][m])) < 1e-4
        own = ensemble.member(m)
        with torch.no_grad():
            assert torch.allclose(own(tokens[0, 0]), model(tokens[0, 0]), atol=1e-3)


@pytest.mark.parametrize("structure", random.Random(5).sample(range(4000), 24))
def test_what_can_be_batched_by_its_own_word_is_batched(structure):
    """Encoders, recurrences, latent attention, shared keys, streams: the losses of lone models."""
    spec = lab_specs.spec(structure)
    models = [Decoder(spec, seed=s) for s in range(2)]
    if not batchable(spec):
        with pytest.raises(FieldError, match="cannot be batched over models"):
            Ensemble(models, 1e-3)
        return
    if spec.head is None:
        with pytest.raises(FieldError, match="head is missing, so there is no loss"):
            Ensemble(models, 1e-3)
        return
    generator = torch.Generator().manual_seed(structure)
    tokens = torch.randint(spec.vocab_size, (2, 2, 13), generator=generator)
    source = None if spec.encoder is None else tokens[..., :9]
    ensemble = Ensemble(models, [1e-3, 1e-2])
    found = ensemble.step(tokens, tokens.roll(-1, -1), source_EBS=source)
    with torch.no_grad():
        alone = [m.loss(tokens[i], tokens[i].roll(-1, -1), None if source is None else source[i])
                 for i, m in enumerate(models)]  # fmt: skip
    assert torch.allclose(found, torch.stack(alone), atol=1e-4)
    after = ensemble.losses(tokens, tokens.roll(-1, -1), source)
    assert bool(after.isfinite().all())
    assert not torch.equal(after, found)


@pytest.mark.parametrize("kind", CHOOSE, ids=lambda kind: kind.__name__)
def test_what_chooses_by_its_last_digit_is_trained_alone(kind):
    spec = next(s for s in map(lab_specs.spec, range(4000))
                if any(isinstance(node, kind) for _, node in nodes(s)))  # fmt: skip
    assert not batchable(spec)


def test_members_of_other_shapes_or_with_experts_are_refused():
    spec = tiny("gpt2")
    with pytest.raises(FieldError, match="must be of one spec"):
        Ensemble([Decoder(spec), Decoder(vary(spec, n_layer=1, d_ff=24))], 1e-3)
    with pytest.raises(FieldError, match="rates 2 must be one, or one for each of 3"):
        Ensemble([Decoder(spec)] * 3, [1e-3, 1e-2])
    with pytest.raises(FieldError, match="experts cannot be batched over models"):
        Ensemble([Decoder(shrink(catalog.model("mixtral-8x7b"), 200_000))], 1e-3)


def test_the_choice_is_by_the_numbers_of_a_step_and_members():
    spec = vary(tiny("llama-3.2-1b"), d_model=64)

    assert together(spec, 8, 64, 4)
    assert not together(spec, 16, 64, 4)
    assert not together(vary(spec, d_model=96), 8, 64, 4)
    assert together(vary(spec, d_model=32), 16, 64, 4)
    assert not together(spec, 8, 64, 1)
