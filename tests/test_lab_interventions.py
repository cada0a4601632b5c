"""What is done to models of every structure: acting as changed is being built so, or one line."""

import contextlib

import pytest
from msgspec.structs import replace

import lab_specs
from scantling.errors import FieldError
from scantling.spec import (
    Block,
    BlockSelector,
    Branch,
    CompressedAttention,
    Dense,
    Disentangled,
    Embeddings,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Norm,
    PerLayerInput,
    PerLayerTables,
    Plain,
    Rope,
    Run,
    Spec,
    Stack,
)
from scantling.spec.vary import rewrite

torch = pytest.importorskip("torch", reason="the lab's model needs torch")
torch.set_num_threads(1)

from scantling.lab.interventions import (  # noqa: E402 - needs torch
    DropLayers,
    MaskHeads,
    Narrow,
    ScaleRope,
    ShareFfn,
    applied,
    materialise,
)
from scantling.lab.model import Decoder  # noqa: E402
from scantling.lab.probes import head_sensitivity  # noqa: E402


def model_of(spec):
    """A model whose zeros and ones are something else, so that nothing is hidden by them."""
    model = Decoder(spec)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def stack_of(*modules, n_layer=2, first=Plain(), **embeddings):  # noqa: B008 - frozen
    """Layers of modules behind one another."""
    blocks = tuple(Block((Branch(m),), pre=Norm(), residual=Plain() if i else first)
                   for i, m in enumerate(modules))  # fmt: skip
    layout = (Run(("layer",), n_layer),)
    return Spec(d_model=32, vocab_size=50, embeddings=Embeddings(**embeddings), head=Head(),
                decoder=Stack((Layer("layer", blocks),), layout, Norm()))  # fmt: skip


ROPE = Rope()
SPECS = {
    "an indexer": stack_of(LatentAttention(4, 16, 8, 4, 8, position=ROPE, indexer=Indexer(2, 8, 5)),
                           Dense(24)),
    "a selector": stack_of(GroupedAttention(4, 2, 8, position=ROPE,
                                            selector=BlockSelector(2, 8, 4, 2)), Dense(24)),
    "decays by depth": stack_of(LinearAttention(4, 8), Dense(24), n_layer=3),
    "additions of each use": stack_of(GroupedAttention(4, 2, 8), Dense(24, adapter_rank=3)),
    "handed on": stack_of(Dense(24), LatentAttention(1, 16, 8, 4, 8), Dense(24), first=Handed()),
    **{f"structure {s}": lab_specs.spec(s) for s in (36, 107, 122)},
}  # fmt: skip
"""The last: disentangled positions, compressed attention, and one last mix of streams."""


@pytest.mark.parametrize("name", SPECS)
def test_any_structure_acts_changed_as_it_is_when_built_or_is_refused_in_one_line(name):
    spec = SPECS[name]
    model, last = model_of(spec), int(spec.n_layer) - 1
    tokens = torch.arange(34).view(2, 17) % spec.vocab_size
    source = lab_specs.source(spec, 2, 9, torch.Generator().manual_seed(1))
    for change in (DropLayers((0,)), DropLayers((last,)), Narrow(4), MaskHeads(((0, 0),)),
                   ScaleRope("linear", 256, 64), ShareFfn(((0, last),))):  # fmt: skip
        acting = built = None
        with torch.no_grad(), contextlib.suppress(FieldError), applied(model, change):
            acting = model(tokens, source=source)
        with torch.no_grad(), contextlib.suppress(FieldError):
            built = materialise(model, change)(tokens, source=source)
        if acting is not None and built is not None:
            assert torch.allclose(acting, built, atol=1e-4, rtol=1e-3), change


def test_a_layer_reads_its_own_embedding_also_where_the_one_before_is_dropped():
    """The table has 2 × 8 columns, 8 a layer: without layer 0 the loss knows only the last 8."""
    model = model_of(stack_of(Dense(24), PerLayerInput(8, "gelu"),
                              per_layer=PerLayerTables(50, 8, Norm())))  # fmt: skip
    tokens = torch.arange(12)[None]
    with applied(model, DropLayers((0,))):
        model.loss(tokens, tokens + 1).backward()
    first, second = model.embedded.own.table.weight.grad.chunk(2, -1)

    assert not first.any()
    assert second.any()


COMPRESSED = CompressedAttention(
    n_head=4, d_head=8, q_rank=16, n_out_group=2, out_rank=8, window=6, compress=4,
    position=Rope(fraction=0.5),
)  # fmt: skip


@pytest.mark.parametrize(("spec", "change", "words"), [
    (stack_of(COMPRESSED), Narrow(4), "window 4 cannot change the compressed attention of layer 0"),
    (stack_of(COMPRESSED), ScaleRope("linear", 256, 64), "cannot change the compressed attention"),
    (stack_of(COMPRESSED), MaskHeads(((0, 1),)), "layer 0 has attention whose outputs are of gro"),
    (stack_of(GroupedAttention(4, 4, 8, position=Disentangled(24)), Dense(24)), DropLayers((0,)),
     "drop_layers 0 holds the relative positions of the whole stack"),
])  # fmt: skip
def test_what_a_structure_forbids_is_one_line(spec, change, words):
    model = Decoder(spec)
    with pytest.raises(FieldError, match=words), applied(model, change):
        pass
    with pytest.raises(FieldError, match=words):
        materialise(model, change)


def test_a_last_mix_of_another_number_of_streams_is_not_cut_out():
    """The last mix is of as many streams as the first layer has: 2, and 3 without it."""
    kinds = [replace(stack_of(Dense(24)).decoder.kinds[0], name=f"of {n}") for n in (2, 3)]
    kinds = [
        rewrite(
            k,
            lambda x, n=n: (
                replace(x, residual=HyperConnections(n, constrained=True))
                if isinstance(x, Block)
                else x
            ),
        )
        for k, n in zip(kinds, (2, 3), strict=True)
    ]
    stack = Stack(tuple(kinds), (Run(("of 2", "of 3"), 2),), Norm())
    model = Decoder(replace(stack_of(Dense(24)), decoder=stack))

    with pytest.raises(FieldError, match=r"layers that are left do not read decoder\.merge"):
        materialise(model, DropLayers((0,)))


def test_heads_that_cannot_be_masked_have_no_sensitivity():
    tokens = torch.arange(12)[None]
    with pytest.raises(FieldError, match="heads are none in this model"):
        head_sensitivity(Decoder(stack_of(COMPRESSED)), tokens, tokens + 1)
