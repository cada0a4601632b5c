"""Random specs that the lab can build, small enough to run: those of random_specs, made tame."""

from random import Random

from msgspec.structs import replace

import random_specs
from scantling.spec import (
    Block,
    Branch,
    ChannelMix,
    Chunk,
    Dense,
    Disentangled,
    Experts,
    GatedDelta,
    GroupedAttention,
    Head,
    HyperConnections,
    LatentAttention,
    Layer,
    LearnedPosition,
    Mamba2,
    MixtureOfDepths,
    Plain,
    RelativeBias,
    Router,
    Run,
    Stack,
    Window,
    check,
)
from scantling.spec.vary import rewrite

BUILT = (GroupedAttention, LatentAttention, Mamba2, GatedDelta, Dense, Experts)
STREAMS = 3


def small(value, most):
    return 1 + (value - 1) % most


def tame(d, node):  # noqa: C901, PLR0912 - one case for each kind of struct
    """A node with only what the lab runs."""
    if isinstance(node, GroupedAttention):
        position = None if isinstance(node.position, Disentangled) or node.cross else node.position
        if isinstance(position, RelativeBias):
            position = replace(position, each_layer=True)  # one table needs equal heads
        return replace(
            node, d_input=None, adapter_rank=None, selector=None, key_bias=True, shares_kv=False,
            position=position, d_head=small(node.d_head // 4, 4) * 4,
            d_value=None if node.key_is_value else node.d_value and small(node.d_value, 9),
            softcap=d.pick(None, None, 20.0),
        )  # fmt: skip
    if isinstance(node, LatentAttention):
        return replace(node, indexer=None, n_head=small(node.n_head, 4), d_rope=2 * small(
            node.d_rope, 4), d_nope=small(node.d_nope, 9), d_value=small(node.d_value, 9),
            kv_rank=small(node.kv_rank, 20),
            q_rank=None if node.q_rank is None else small(node.q_rank, 20))  # fmt: skip
    if isinstance(node, Dense):
        act = d.pick("silu", "gelu", "relu2") if node.gated else d.pick("gelu_new", "relu")
        inner = d.pick(None, None, random_specs.norm(d))
        return replace(node, adapter_rank=None, sparsity=0.0, d_ff=small(node.d_ff, 60),
                       activation=act, inner_norm=inner)  # fmt: skip
    if isinstance(node, Experts):
        shared = node.shared
        if shared is not None:
            shared = replace(shared, d_shared=small(shared.d_shared, 30))
        top = small(node.top_k, 3)
        return replace(
            node, d_latent=None, latent_bias=False, n_zero=None, delayed=False, top_k=top,
            n_expert=top + small(node.n_expert, 5), d_expert=small(node.d_expert, 30),
            shared=shared,
        )  # fmt: skip
    if isinstance(node, Router):
        return replace(node, hashed=False, norm=None, expert_scale=False, n_expert_group=None,
                       top_k_group=None)  # fmt: skip
    if isinstance(node, Mamba2 | GatedDelta):
        return replace(node, scan_chunk=small(node.scan_chunk, 12))
    if isinstance(node, Layer):
        kept = tuple(b for b in node.blocks if all(isinstance(x.module, BUILT) for x in b.branches))
        plain = Block((Branch(Dense(d.dim(1, 40))),))
        return replace(node, blocks=kept or (plain,), stored_scale=False)
    if isinstance(node, Branch) and isinstance(node.module, ChannelMix):
        return replace(node, module=Dense(24))
    if isinstance(node, Block):
        r = node.residual
        if isinstance(r, HyperConnections) or not isinstance(r, Plain | MixtureOfDepths | object):
            r = Plain()
        if type(r).__name__ == "Handed" or (
            isinstance(r, MixtureOfDepths)
            and any(isinstance(getattr(b.module, "position", None), RelativeBias)
                    for b in node.branches)
        ):  # fmt: skip
            r = Plain()
        return replace(node, residual=r)
    if isinstance(node, Stack):
        runs = tuple(Run(r.pattern, small(r.n, 3)) for r in node.layout[:2])
        return replace(node, layout=runs, altup=None)
    return node


def spec(structure):
    """A spec that the lab can build; every fifth has hyper-connections around all blocks."""
    one = random_specs.spec(structure)
    d = random_specs.Draw(structure, 1)
    e = replace(one.embeddings, per_layer=None, n_token_type=None)
    own = one.encoder_embeddings
    if own is not None:
        own = replace(own, audio=None, n_token_type=None, per_layer=None, d_embed=e.d_embed)
    head = one.head or Head()
    one = replace(
        one, d_model=8 * small(one.d_model // 8, 5), vocab_size=small(one.vocab_size, 90) + 4,
        embeddings=e, encoder_embeddings=own, decoder=rewrite(one.decoder, lambda n: tame(d, n)),
        encoder=None if one.encoder is None else rewrite(one.encoder, lambda n: tame(d, n)),
        head=replace(head, transform=None, buffer_bias=False,
                     project=head.project or e.d_embed is not None),
    )  # fmt: skip
    one = rewrite(one, _positions)
    if structure % 5 == 0:
        hyper = HyperConnections(STREAMS, dynamic=structure % 2 == 0)
        one = rewrite(one, lambda n: replace(n, residual=hyper) if isinstance(n, Block) else n)
    return check(one)


def _positions(node):
    """Tables of positions long enough for any test."""
    if type(node).__name__ == "LearnedPosition":
        return replace(node, rows=64 + node.rows % 9)
    return node


def roomy(structure):
    """The same structures at widths at which models are trained, if small ones: 32 to 192."""
    d = Random(f"roomy {structure}")
    one = rewrite(spec(structure), lambda node: grown(d, node))
    e, own, wide = one.embeddings, one.encoder_embeddings, 8 * d.randint(4, 12)
    if e.d_embed is not None:
        e = replace(e, d_embed=wide)
    if own is not None:
        own = replace(own, d_embed=e.d_embed)
    return check(replace(one, d_model=8 * d.randint(4, 24), vocab_size=d.randint(60, 600),
                         embeddings=e, encoder_embeddings=own))  # fmt: skip


def grown(d, node):
    """A node with dimensions of its own size."""
    if isinstance(node, GroupedAttention):
        kv = d.choice((1, 2, 4))
        return replace(
            node, n_kv_head=kv, n_head=kv * d.choice((1, 2, 3)), d_head=d.choice((8, 16, 32)),
            d_value=node.d_value and d.choice((8, 24, 32)),
        )  # fmt: skip
    if isinstance(node, LatentAttention):
        return replace(
            node, n_head=d.randint(2, 6), kv_rank=8 * d.randint(3, 10), d_nope=d.choice((16, 32)),
            d_rope=d.choice((8, 16)), d_value=d.choice((16, 32)),
            q_rank=node.q_rank and 8 * d.randint(3, 10),
        )  # fmt: skip
    if isinstance(node, Dense):
        return replace(node, d_ff=8 * d.randint(6, 50))
    if isinstance(node, Experts):
        top, shared = d.randint(1, 3), node.shared
        return replace(
            node, top_k=top, n_expert=top + d.randint(1, 6), d_expert=8 * d.randint(3, 20),
            shared=shared and replace(shared, d_shared=8 * d.randint(3, 20)),
        )  # fmt: skip
    if isinstance(node, Mamba2):
        group = d.choice((1, 2))
        heads = group * d.randint(1, 4)
        return replace(
            node, n_group=group, n_ssm_head=heads, d_inner=heads * 8 * d.randint(2, 6),
            d_state=d.choice((8, 16, 32)), scan_chunk=d.choice((16, 32, 64)),
        )  # fmt: skip
    if isinstance(node, GatedDelta):
        keys = d.choice((1, 2))
        return replace(
            node, n_key_head=keys, n_value_head=keys * d.randint(1, 3), d_key=d.choice((8, 16, 32)),
            d_state_value=d.choice((8, 16, 32)), scan_chunk=d.choice((16, 32, 64)),
        )  # fmt: skip
    if isinstance(node, Window | Chunk):
        return type(node)(d.randint(8, 120))
    if isinstance(node, Run):
        return Run(node.pattern, d.randint(1, 5))
    return replace(node, rows=128) if isinstance(node, LearnedPosition) else node
