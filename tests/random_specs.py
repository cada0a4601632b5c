"""Random specs: one generator draws the structure, another the dimensions.

Specs of equal structure and different rows stack into a column spec, so the same numbers go
through the path of one model and through the path of a million.
"""

from random import Random

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from scantling.spec import (
    Alibi,
    AltUp,
    Audio,
    Block,
    BlockSelector,
    Branch,
    ChannelMix,
    Chunk,
    CompressedAttention,
    DeepNorm,
    Dense,
    Disentangled,
    Embeddings,
    Experts,
    Full,
    GatedDelta,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    Indexer,
    KimiDelta,
    LatentAttention,
    Laurel,
    Layer,
    LearnedPosition,
    LinearAttention,
    Mamba1,
    Mamba2,
    MixtureOfDepths,
    Norm,
    PerLayerInput,
    PerLayerTables,
    Plain,
    Projection,
    QKNorm,
    RelativeBias,
    RgLru,
    Rope,
    Router,
    Run,
    Rwkv,
    SharedExpert,
    ShortConv,
    Spec,
    Stack,
    TokenConv,
    Transform,
    Window,
)
from scantling.spec.vary import rewrite

MIXERS = (
    GroupedAttention, LatentAttention, LinearAttention, GatedDelta, KimiDelta, Mamba1, Mamba2,
    Rwkv, RgLru, ShortConv, Projection, CompressedAttention,
)  # fmt: skip
BOTH, SELDOM = (False, True), (False, False, True)


class Draw:
    """Choices from the structure's generator, numbers from the row's.

    One dimension in seven is the same in all rows and stays an int in the column, as the
    vocabulary does in the search.
    """

    def __init__(self, structure, row):
        self.number = structure
        self.structure = Random(f"structure {structure}")
        self.same = Random(f"structure {structure}, dimensions of all rows")
        self.rows = Random(f"structure {structure}, row {row}")

    def pick(self, *options):
        return self.structure.choice(options)

    def flag(self):
        return self.pick(*BOTH)

    def dim(self, low, high, step=1):
        both = [step * random.randint(low, high) for random in (self.same, self.rows)]
        return both[self.structure.random() > 1 / 7]

    def maybe(self, low, high, step=1):
        value = self.dim(low, high, step)
        return self.pick(None, value)


def norm(d):
    return Norm(d.pick("rms", "layer"), d.flag(), d.flag())


def some_norm(d):
    one = norm(d)
    return d.pick(None, one, one)


def grouped(d, *, cross=False, causal=True):
    groups, kv = d.dim(1, 4), d.dim(1, 4)
    window, chunk, scope = d.dim(1, 3000), d.dim(1, 3000), d.pick("head", "each_head", "width")
    qk_norm, buckets = QKNorm(scope, norm(d)), d.dim(1, 64)
    selector = BlockSelector(d.dim(1, 8), d.dim(1, 64), d.dim(1, 100), d.dim(1, 40), norm=norm(d))
    return GroupedAttention(
        n_head=groups * kv, n_kv_head=kv, d_head=d.dim(2, 40, 4), d_value=d.maybe(1, 90),
        qkv_bias=d.flag(), out_bias=d.flag(), qk_norm=d.pick(None, qk_norm),
        position=d.pick(None, Rope(), Alibi(), RelativeBias(buckets)),
        span=Full() if cross else d.pick(Full(), Window(window), Chunk(chunk)),
        causal=causal, cross=cross, sinks=d.flag(), gate=d.pick(None, "head", "element"),
        shares_kv=d.pick(*SELDOM), key_is_value=d.pick(*SELDOM),
        d_input=d.maybe(1, 500), adapter_rank=d.maybe(1, 40),
        selector=None if cross else d.pick(None, None, selector),
    )  # fmt: skip


def latent(d):
    indexer = Indexer(d.dim(1, 8), d.dim(1, 64), d.dim(1, 4000))
    window = d.dim(1, 3000)
    return LatentAttention(
        n_head=d.dim(1, 16), kv_rank=d.dim(1, 300), d_nope=d.dim(1, 100), d_rope=d.dim(1, 50),
        d_value=d.dim(1, 100), q_rank=d.maybe(1, 400), qkv_bias=d.flag(), out_bias=d.flag(),
        norm=norm(d), span=d.pick(Full(), Full(), Window(window)),
        indexer=d.pick(None, indexer), gate=d.flag(),
    )  # fmt: skip


def compressed(d):
    groups, heads, stretch = d.dim(1, 4), d.dim(1, 4), d.dim(1, 200)
    indexer = Indexer(d.dim(1, 8), d.dim(1, 64), d.dim(1, 4000))
    none = CompressedAttention(
        n_head=groups * heads,
        d_head=d.dim(2, 40, 4),
        q_rank=d.dim(1, 300),
        n_out_group=groups,
        out_rank=d.dim(1, 90),
        window=d.dim(1, 3000),
        norm=norm(d),
    )
    some = replace(none, compress=stretch, overlap=d.flag(), indexer=d.pick(None, indexer))
    return d.pick(none, some)


def mixer(d, kind):
    if kind is CompressedAttention:
        return compressed(d)
    if kind is GroupedAttention:
        return grouped(d)
    if kind is LatentAttention:
        return latent(d)
    if kind is LinearAttention:
        return LinearAttention(d.dim(1, 16), d.dim(1, 100), d.flag(), some_norm(d), d.flag(),
                               d.dim(1, 300))  # fmt: skip
    if kind is GatedDelta:
        keys, groups = d.dim(1, 8), d.dim(1, 4)
        return GatedDelta(keys, keys * groups, d.dim(1, 90), d.dim(1, 90), d.dim(1, 6), norm(d),
                          d.dim(1, 300))  # fmt: skip
    if kind is KimiDelta:
        return KimiDelta(d.dim(1, 8), d.dim(1, 90), d.dim(1, 6), d.maybe(1, 90), norm(d),
                         d.dim(1, 300))  # fmt: skip
    if kind is Mamba1:
        heads, width = d.dim(1, 4), d.dim(1, 200)
        return Mamba1(heads * width, d.dim(1, 64), d.dim(1, 6), d.dim(1, 60), d.flag(), d.flag(),
                      some_norm(d), d.pick(None, heads))  # fmt: skip
    if kind is Mamba2:
        groups, heads, width = d.dim(1, 4), d.dim(1, 4), d.dim(1, 64)
        return Mamba2(groups * heads * width, groups * heads, groups, d.dim(1, 64), d.dim(1, 6),
                      d.flag(), d.flag(), d.flag(), some_norm(d), d.dim(1, 300))  # fmt: skip
    if kind is Rwkv:
        return Rwkv(d.dim(1, 500))
    if kind is RgLru:
        blocks, width = d.dim(1, 8), d.dim(1, 64)
        return RgLru(blocks * width, blocks, d.dim(1, 6))
    if kind is Projection:
        return Projection()
    return ShortConv(d.dim(1, 6), d.flag())


def feed_forward(d):
    width, gated = d.dim(1, 2000), d.flag()
    dense = Dense(width, gated, "silu", d.flag(), d.flag(), shared=d.pick(*SELDOM),
                  adapter_rank=d.maybe(1, 40))  # fmt: skip
    top, more, shared = d.dim(1, 4), d.dim(0, 30), SharedExpert(d.dim(1, 900), d.flag())
    groups = d.dim(1, 4)
    correction = d.pick(None, "buffer", "parameter")
    router = Router(d.pick("softmax", "sigmoid"), d.flag(), correction, hashed=d.pick(*SELDOM))
    routed = Experts(
        n_expert=top + more, top_k=top, d_expert=d.dim(1, 900), gated=d.flag(), bias=d.flag(),
        router=d.pick(router, replace(router, n_expert_group=groups, top_k_group=1)),
        shared=d.pick(None, shared), d_latent=d.maybe(1, 300), latent_bias=d.flag(),
        n_zero=d.maybe(1, 30), delayed=d.pick(*SELDOM),
    )  # fmt: skip
    return d.pick(dense, dense, routed, ChannelMix(d.dim(1, 900)))


def branch(d, module):
    copies = d.dim(1, 20)
    one = Branch(module, copies=d.pick(None, None, None, copies))
    return replace(one, pre=some_norm(d), post=d.pick(None, None, norm(d)))


def block(d, *modules):
    streams, share = d.dim(1, 6), d.dim(1, 1000)
    residual = d.pick(
        Plain(), Plain(), Plain(), Plain(0.5), DeepNorm(2.0),
        HyperConnections(streams, dynamic=False), HyperConnections(streams, dynamic=True),
        HyperConnections(streams, constrained=True),
        MixtureOfDepths(share), Handed(),
    )  # fmt: skip
    return Block(
        tuple(branch(d, module) for module in modules), pre=some_norm(d),
        post=d.pick(None, None, norm(d)), after=d.pick(None, None, norm(d)), residual=residual,
    )  # fmt: skip


def layer(d, name, kind, *, cross):
    first, second = mixer(d, kind), mixer(d, d.pick(*MIXERS))
    ffn = feed_forward(d)
    layouts = [
        [(first,), (ffn,)], [(first,), (ffn,)], [(first,)], [(first,), (second,), (ffn,)],
        [(first, ffn)], [(first, second), (ffn,)], [(first,), (ffn,), (second,), (ffn,)],
    ]  # fmt: skip
    blocks = [block(d, *modules) for modules in d.pick(*layouts)]
    if cross:
        blocks.insert(1, block(d, grouped(d, cross=True)))
    return Layer(name, tuple(blocks))


def stack_of(d, first, *, cross=False, causal=True):
    kinds = []
    for i, name in enumerate("abc"[: d.pick(1, 1, 2, 3)]):
        kind = first if i == 0 else d.pick(*MIXERS)
        kinds.append(layer(d, name, kind, cross=cross))
    if not causal:
        kinds = [Layer("a", (block(d, grouped(d, causal=False)), block(d, feed_forward(d))))]
    names = [k.name for k in kinds]
    runs = []
    for _ in range(d.pick(1, 1, 2, 3)):
        pattern = tuple(d.pick(*names) for _ in range(d.pick(1, 1, 2, 3, 4)))
        runs.append(Run(pattern, d.dim(1, 12)))
    runs[0] = replace(runs[0], pattern=("a", *runs[0].pattern[1:]))
    return Stack(tuple(kinds), tuple(runs), some_norm(d))


def spec(structure, row=0):
    """The spec of a structure with the dimensions of a row; every ninth starts with a mixer."""
    d = Draw(structure, row)
    crossed = d.pick(*SELDOM)
    rows, types = LearnedPosition(d.dim(1, 4000)), d.maybe(1, 4)
    embeddings = Embeddings(
        position=d.pick(None, None, rows), d_embed=d.maybe(1, 200), project_bias=d.flag(),
        n_token_type=types, norm=some_norm(d),
    )  # fmt: skip
    head = Head(d.flag(), d.flag())
    one = Spec(
        d_model=d.dim(1, 60, 8), vocab_size=d.dim(100, 5000),
        decoder=stack_of(d, MIXERS[structure % len(MIXERS)], cross=crossed),
        embeddings=embeddings, tied=d.flag(), head=d.pick(head, head, head, None),
        encoder=stack_of(d, GroupedAttention, causal=False) if crossed else None,
        max_context=d.maybe(1, 9000),
    )  # fmt: skip
    return with_parts_of_gemma(d, with_parts_of_encoders(d, one))


def with_parts_of_gemma(d, one):
    """A spec with what Gemma 3n and Gemma 4 have in their layers and others have not."""
    width, altup = d.dim(1, 60), AltUp(d.dim(2, 5), norm(d))
    tables = PerLayerTables(d.dim(1, 900), width, norm(d))
    if not d.pick(*SELDOM):
        return one

    def change(node):
        if isinstance(node, GroupedAttention):
            return replace(node, value_norm=some_norm(d))
        if isinstance(node, Dense):
            return replace(node, sparsity=d.pick(0.0, 0.95))
        if isinstance(node, Router):
            return replace(node, norm=some_norm(d), expert_scale=d.flag())
        if isinstance(node, Layer):
            laurel = Block((Branch(Laurel(d.dim(1, 40)), post=some_norm(d)),))
            more = Block((Branch(PerLayerInput(width)),), post=some_norm(d))
            blocks = (*node.blocks, *d.pick((), (laurel,), (more,), (laurel, more)))
            return replace(node, blocks=blocks, stored_scale=d.flag())
        return node

    return replace(
        one, decoder=replace(rewrite(one.decoder, change), altup=d.pick(None, altup)),
        embeddings=replace(one.embeddings, per_layer=tables),
    )  # fmt: skip


def with_parts_of_encoders(d, one):
    """A spec with what BERT, DeBERTa, UMT5, BART and Whisper have and others have not."""
    rows, sound = LearnedPosition(d.dim(1, 4000)), Audio(d.dim(1, 90), d.dim(1, 5))
    own = Embeddings(d.pick(None, rows, rows), norm=some_norm(d), audio=d.pick(None, sound))
    e, head = one.embeddings, one.head
    if e.position is not None:
        e = replace(e, position=replace(e.position, narrow=d.flag()))
    if head is not None:
        transform = Transform(d.flag(), "gelu", some_norm(d))
        head = replace(head, transform=d.pick(None, transform), buffer_bias=d.pick(*SELDOM))
    return replace(
        one, embeddings=replace(e, norm_last=d.flag()), head=head,
        encoder_embeddings=None if one.encoder is None else d.pick(None, own, own),
        decoder=rewrite(one.decoder, lambda node: _as_in_encoders(d, node)),
        encoder=rewrite(one.encoder, lambda node: _as_in_encoders(d, node)),
    )  # fmt: skip


def _as_in_encoders(d, node):
    if isinstance(node, GroupedAttention):
        table = Disentangled(d.dim(1, 90), some_norm(d), d.flag(), d.flag(), d.flag(), d.flag(),
                             d.flag())  # fmt: skip
        own, before = RelativeBias(d.dim(1, 64), d.flag()), node.position
        position = before if node.cross else d.pick(before, before, before, table, own)
        return replace(node, key_bias=d.flag(), position=position)
    if isinstance(node, Layer) and d.pick(*3 * SELDOM[:2], *BOTH):
        conv = Block((Branch(TokenConv(d.dim(1, 6))),), after=some_norm(d))
        return replace(node, blocks=(*node.blocks, conv))
    return node


def column(nodes):
    """Specs of one structure as a column spec: every int that differs becomes an int64 array."""
    first = nodes[0]
    if isinstance(first, Struct):
        fields = first.__struct_fields__
        return type(first)(**{f: column([getattr(n, f) for n in nodes]) for f in fields})
    if isinstance(first, tuple):
        return tuple(column(items) for items in zip(*nodes, strict=True))
    if type(first) is int:
        return np.array(nodes, dtype=np.int64) if len(set(nodes)) > 1 else first
    assert all(node == first for node in nodes), "specs of one structure differ only in dimensions"
    return first


def walk(node):
    """Every struct of a tree, parents first."""
    if isinstance(node, Struct):
        yield node
        for field in node.__struct_fields__:
            yield from walk(getattr(node, field))
    elif isinstance(node, tuple):
        for item in node:
            yield from walk(item)
