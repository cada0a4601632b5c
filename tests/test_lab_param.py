"""Parametrisations: at the base shape all are one; beyond it, sizes stay what they are."""

import pytest

from scantling import catalog, vary

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
torch.set_num_threads(1)

from scantling.lab.model import Decoder  # noqa: E402 - only where torch is
from scantling.lab.param import Parametrisation, roles  # noqa: E402
from scantling.lab.shrink import shrink  # noqa: E402

BASE = {"base_width": 32, "base_depth": 2, "base_head": 16}


def shape(width=32, depth=2):
    """Heads of 16, an untied head: what grows is the number of heads, and F."""
    spec = shrink(catalog.model("llama-3.1-8b"), 200_000, 32)
    heads = width // 16
    return vary(spec, d_model=width, n_head=heads, n_kv_head=heads, d_head=16, d_ff=2 * width,
                n_layer=depth, vocab_size=61)  # fmt: skip


def moved(kind, width, depth, steps=2, rate=1e-3):
    """How far the stream and the logits have moved from where they began, after some steps."""
    model = Decoder(shape(width, depth), Parametrisation(kind, **BASE), seed=0)
    optimizer = torch.optim.AdamW(model.groups(rate), betas=(0.9, 0.95))
    tokens = torch.randint(61, (4, 17), generator=torch.Generator().manual_seed(0))
    seen, found = {}, []

    def watch(name, value):
        seen[name] = value.detach()

    for _ in range(steps + 1):
        model(tokens[:, :-1], watch)
        found.append(dict(seen))
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: float((found[-1][name] - found[0][name]).abs().mean()) for name in seen}


@pytest.mark.parametrize("kind", ["mup", "completep"])
def test_at_the_base_shape_every_parametrisation_is_the_standard_one(kind):
    one, two = (Decoder(shape(), Parametrisation(k, **BASE), seed=3) for k in ("sp", kind))
    tokens = torch.arange(12)[None]

    assert torch.allclose(one(tokens), two(tokens), atol=1e-6)
    for a, b in zip(one.groups(1e-3, 0.1), two.groups(1e-3, 0.1), strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == pytest.approx(
            {k: v for k, v in b.items() if k != "params"})  # fmt: skip


def test_coordinates_do_not_grow_with_width_under_mup_and_do_in_the_standard_one():
    """The coordinate check of Yang et al. 2022: what logits move in two steps, at 8 x the width.

    Under muP they move alike; in the standard parametrisation by more and more.
    """
    narrow, wide = ({k: moved(k, w, 2) for k in ("sp", "mup")} for w in (32, 256))
    grown = {k: wide[k]["head"] / narrow[k]["head"] for k in ("sp", "mup")}

    assert grown["sp"] > 3, grown
    assert 0.4 < grown["mup"] < 1.6, grown


def test_coordinates_do_not_grow_with_depth_under_completep():
    """At 8 x the depth the last layer's stream moves as far; muP alone lets it grow."""
    shallow, deep = ({k: moved(k, 32, n) for k in ("mup", "completep")} for n in (2, 16))
    grown = {k: deep[k]["head"] / shallow[k]["head"] for k in ("mup", "completep")}

    assert 0.5 < grown["completep"] < 1.5, grown
    assert grown["mup"] > grown["completep"]


def test_multipliers_are_those_of_the_table():
    """CompleteP at 4 x the width and 3 x the depth (Dey et al. 2025, table 1, alpha 1)."""
    model = Decoder(shape(128, 6), Parametrisation("completep", **BASE))
    made = model.groups(1e-2, weight_decay=0.1, epsilon=1e-8)
    groups = {g["name"]: g for g in made}

    assert model.numerics.residual == pytest.approx(1 / 3)
    assert model.numerics.logits == pytest.approx(1 / 4)
    assert groups["hidden"]["lr"] == pytest.approx(1e-2 / 4)
    assert groups["hidden"]["weight_decay"] == pytest.approx(0.1 * 4)
    # epsilon (the paper's equation 40): 1 / (m d) in blocks, norms too; 1 / m in and out of them
    eps = {name: g["eps"] for g in made for name, p in model.named_parameters()
           if any(p is q for q in g["params"])}  # fmt: skip
    inside = {name for name in eps if name.startswith("decoder.layers")}
    outside = {"table.weight", "head.weight", "decoder.final.scale"}
    assert any("pre.scale" in name for name in inside)
    assert inside | outside == set(eps)
    assert [eps[name] for name in inside] == pytest.approx([1e-8 / 12] * len(inside))
    assert [eps[name] for name in outside] == pytest.approx([1e-8 / 4] * 3)
    assert groups["vector"]["lr"] == groups["table"]["lr"] == 1e-2
    assert groups["vector"]["weight_decay"] == 0


def sizes(width, depth):
    """Each gradient's root mean square in an untrained CompleteP model, largest in a block."""
    model = Decoder(shape(width, depth), Parametrisation("completep", **BASE), seed=0)
    tokens = torch.randint(61, (4, 17), generator=torch.Generator().manual_seed(0))
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    found = {}
    for name, p in model.named_parameters():
        short = name.split("blocks.")[-1]
        found[short] = max(found.get(short, 0.0), float(p.grad.square().mean() ** 0.5))
    return found


@pytest.mark.parametrize(("m", "d"), [(8, 1), (1, 8)])
def test_epsilon_of_completep_falls_as_gradients_do(m, d):
    """So that it stays as small beside them as at the base: the reason the paper scales it."""
    base, grown = sizes(32, 2), sizes(32 * m, 2 * d)

    for name in ("table.weight", "head.weight", "decoder.final.scale", "0.pre.scale",
                 "1.pre.scale"):  # fmt: skip
        said = 1 / (m * d) if "pre" in name else 1 / m
        assert grown[name] / base[name] == pytest.approx(said, rel=0.35), name


@pytest.mark.parametrize("kind", ["mup", "completep"])
def test_one_deviation_is_that_of_the_base_and_falls_in_hidden_matrices_alone(kind):
    """Yang et al. 2022, table 8: variance 1 / m of the base in matrices, constant in and out."""
    spec = vary(shape(128, 2), vocab_size=500)
    model = Decoder(spec, Parametrisation(kind, **BASE), init_std=0.02)
    std = {w.name.rpartition(".")[2]: float(w.tensor.detach().std()) for w in model.named()}

    for name in ("q", "k", "v", "gate", "up"):
        assert std[name] == pytest.approx(0.02 / 2, rel=0.03), name
    for name in ("o", "down"):  # smaller by the root of 4 blocks
        assert std[name] == pytest.approx(0.02 / 4, rel=0.03), name
    for name in ("embedding", "lm_head"):
        assert std[name] == pytest.approx(0.02, rel=0.03), name


def test_every_parameter_has_one_role():
    for name in ("gpt2", "gemma-3-1b", "deepseek-v3", "gpt-oss-20b"):
        model = Decoder(shrink(catalog.model(name), 400_000, 16))
        found = [id(p) for _, p in roles(model)]
        assert sorted(found) == sorted(id(p) for p in model.parameters())


def test_matrices_start_at_one_over_the_root_of_their_inputs():
    spec = shape(256, 2)
    model = Decoder(spec)
    weights = {w.name.rpartition(".")[2]: w.tensor for w in model.named()}

    weights = {name: w.detach() for name, w in weights.items()}
    assert float(weights["q"].std()) == pytest.approx(256**-0.5, rel=0.02)
    assert float(weights["down"].std()) == pytest.approx((512 * 4) ** -0.5, rel=0.02)  # 4 blocks
    fixed = {w.name.rpartition(".")[2]: w.tensor for w in Decoder(spec, init_std=0.02).named()}
    assert float(fixed["q"].detach().std()) == pytest.approx(0.02, rel=0.02)


def test_deepnorm_starts_values_outputs_and_feed_forwards_smaller():
    """By (8 L)^(-1/4) (Wang et al. 2022, table 1, decoders); queries, keys and a gate do not."""
    from scantling.lab.experiments.gradient_norms import moved
    from scantling.lab.match import small

    spec = moved(small(8, 64, 128), 2.0)
    layer = Decoder(spec).layers[0]
    found = {
        n: float(w.detach().std()) for b in layer.blocks for s in b.sides for n, w in s.named()
    }
    beta = (8 * 8) ** -0.25

    for name, inputs in (("v", 64), ("o", 64), ("up", 64), ("down", 128)):
        assert found[name] == pytest.approx(beta * inputs**-0.5, rel=0.1), name
    for name in ("q", "k", "gate"):
        assert found[name] == pytest.approx(64**-0.5, rel=0.1), name


def test_gradients_of_an_untrained_deepnorm_are_alike_in_all_layers():
    """Those of matrices; the norm that the head reads is no part of the last layer's."""
    from scantling.lab.experiments.gradient_norms import _ratio, moved
    from scantling.lab.match import small

    class Trial:
        steps, seed = 0, 0

    class Task:
        def batch(self, step, seed):
            generator = torch.Generator().manual_seed(step + seed)
            both = torch.randint(256, (4, 33), generator=generator)
            return both[:, :-1], both[:, 1:]

    model = Decoder(moved(small(12, 32, 86), 24**0.25))

    assert 0.8 < _ratio(model, Task(), Trial()) < 1.25
