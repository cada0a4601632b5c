"""Random specs that the lab can build, small enough to run: those of random_specs, made tame."""

from itertools import pairwise
from random import Random

from msgspec.structs import replace

import random_specs
from scantling.spec import (
    Block,
    Branch,
    ChannelMix,
    Chunk,
    CompressedAttention,
    Dense,
    Disentangled,
    Experts,
    GatedDelta,
    GroupedAttention,
    Handed,
    Head,
    HyperConnections,
    Indexer,
    KimiDelta,
    LatentAttention,
    Layer,
    LearnedPosition,
    LinearAttention,
    Mamba2,
    MixtureOfDepths,
    PerLayerInput,
    Plain,
    RelativeBias,
    Rope,
    Router,
    Run,
    Stack,
    TokenConv,
    Window,
    check,
)
from scantling.spec.vary import nodes, rewrite

STREAMS = 3


def small(value, most):
    return 1 + (value - 1) % most


def position(node):
    """Positions of a grouped attention that mean something: one table of a stack is one."""
    p = node.position
    if isinstance(p, RelativeBias):
        return replace(p, each_layer=True)  # one table of the stack needs equal heads
    if isinstance(p, Disentangled):
        used = p.content_to_position or p.position_to_content
        p = replace(p, n_relative=24, norm=None, content_to_position=p.content_to_position
                    or not used)  # fmt: skip
        return replace(p, shared=p.shared and node.n_head == node.n_kv_head)
    return p


def grouped(d, node):
    """Attention small enough, whose parts go together."""
    wide = node.d_input is not None and not node.cross
    selector = node.selector and replace(
        node.selector, n_index_head=small(node.selector.n_index_head, 4),
        d_index=small(node.selector.d_index, 9), index_block=small(node.selector.index_block, 5),
        index_top_k=small(node.selector.index_top_k, 3),
    )  # fmt: skip
    rank = node.adapter_rank and small(node.adapter_rank, 5)
    return replace(
        node, d_input="wide" if wide else None, adapter_rank=rank, selector=selector,
        shares_kv=False, position=position(node), d_head=small(node.d_head // 4, 4) * 4,
        d_value=None if node.key_is_value else node.d_value and small(node.d_value, 9),
        softcap=d.pick(None, None, 20.0),
    )  # fmt: skip


def latent(node):
    """Latent attention small enough; rotary widths are even."""
    indexer = node.indexer and Indexer(
        small(node.indexer.n_index_head, 4), small(node.indexer.d_index, 9),
        small(node.indexer.index_top_k, 9))  # fmt: skip
    return replace(node, indexer=indexer, n_head=small(node.n_head, 4), d_rope=2 * small(
        node.d_rope, 4), d_nope=small(node.d_nope, 9), d_value=small(node.d_value, 9),
        kv_rank=small(node.kv_rank, 20),
        q_rank=None if node.q_rank is None else small(node.q_rank, 20))  # fmt: skip


def compressed(node):
    """Compressed attention small enough, with entries in any test."""
    indexer = node.indexer and Indexer(small(node.indexer.n_index_head, 4), small(
        node.indexer.d_index, 9), small(node.indexer.index_top_k, 3))  # fmt: skip
    compress = None if node.compress is None else small(node.compress, 5)
    return replace(node, indexer=indexer, compress=compress, q_rank=small(node.q_rank, 20),
                   d_head=small(node.d_head // 4, 4) * 4, out_rank=small(node.out_rank, 9),
                   window=small(node.window, 20), position=Rope(fraction=0.5))  # fmt: skip


def experts(node):
    """Experts small enough; groups divide all that the router knows."""
    shared, top = node.shared, small(node.top_k, 3)
    if shared is not None:
        shared = replace(shared, d_shared=small(shared.d_shared, 30))
    zero = None if node.n_zero is None else small(node.n_zero, 3)
    n = top + small(node.n_expert, 5)
    router = node.router
    groups = router.n_expert_group
    if groups is not None:
        groups = 2 if (n + (zero or 0)) % 2 == 0 and (n + (zero or 0)) // 2 >= top else 1
        router = replace(router, n_expert_group=groups, top_k_group=1)
    return replace(
        node, d_latent=node.d_latent and small(node.d_latent, 20), n_zero=zero, top_k=top,
        n_expert=n, d_expert=small(node.d_expert, 30), shared=shared, router=router,
    )  # fmt: skip


def block(node):
    """A block whose residual fits what stands in it."""
    r, only = node.residual, node.branches[0]
    late = any(isinstance(b.module, Experts) and b.module.delayed for b in node.branches)
    if isinstance(r, MixtureOfDepths) and late:
        r = Plain()
    if isinstance(r, HyperConnections):
        r = replace(r, n_stream=small(r.n_stream, 4))
    wide = getattr(only.module, "d_input", None) is not None and len(node.branches) == 1
    if wide and node.pre is not None:
        node = replace(node, branches=(replace(only, pre=None),))
    return replace(node, residual=r)


def heard(blocks):
    """A block that hands on to one which reads what it is handed."""
    one, following = blocks
    deaf = following is not None and isinstance(following.branches[0].module, TokenConv)
    return replace(one, residual=Plain()) if deaf and isinstance(one.residual, Handed) else one


def tame(d, node):
    """A node small enough to run, whose parts go together."""
    if isinstance(node, GroupedAttention):
        return grouped(d, node)
    if isinstance(node, LatentAttention):
        return latent(node)
    if isinstance(node, CompressedAttention):
        return compressed(node)
    if isinstance(node, Dense):
        act = d.pick("silu", "gelu", "relu2", "swigluoai", "xielu")
        act = act if node.gated else d.pick("gelu_new", "relu", "xielu")
        inner = d.pick(None, None, random_specs.norm(d))
        return replace(node, adapter_rank=node.adapter_rank and small(node.adapter_rank, 5),
                       sparsity=node.sparsity and 0.5, d_ff=small(node.d_ff, 60),
                       activation=act, inner_norm=inner)  # fmt: skip
    if isinstance(node, Experts):
        return experts(node)
    if isinstance(node, Mamba2 | GatedDelta | KimiDelta | LinearAttention):
        return replace(node, scan_chunk=1 + small(node.scan_chunk, 12))
    if isinstance(node, ChannelMix):
        return ChannelMix(small(node.d_ff, 60))
    if isinstance(node, Block):
        return block(node)
    if isinstance(node, Layer):
        return replace(node, blocks=tuple(map(heard, pairwise((*node.blocks, None)))))
    if isinstance(node, Stack):
        return replace(node, layout=tuple(Run(r.pattern, small(r.n, 3)) for r in node.layout[:2]))
    return node


def spec(structure):
    """A spec that the lab can build; every fifth has hyper-connections around all blocks."""
    one = random_specs.spec(structure)
    d = random_specs.Draw(structure, 1)
    own, e = one.encoder_embeddings, one.embeddings
    if own is not None:
        d_embed = e.d_embed if own.audio is None else None
        own, e = replace(own, d_embed=d_embed), replace(e, d_embed=d_embed)
    if own is not None and own.audio is not None:
        one = replace(one, encoder=rewrite(one.encoder, unhashed))
    if one.encoder is not None and own is None:
        e = replace(e, per_layer=None)  # an encoder that reads what the decoder does has none
        one = rewrite(one, without_own_inputs)
    head = one.head
    if head is not None:
        met = head.project or (e.d_embed is not None and head.transform is None)
        head = replace(head, project=met)
    one = replace(
        one, d_model=8 * small(one.d_model // 8, 5), vocab_size=small(one.vocab_size, 90) + 4,
        embeddings=e, encoder_embeddings=own, decoder=rewrite(one.decoder, lambda n: tame(d, n)),
        encoder=None if one.encoder is None else rewrite(one.encoder, lambda n: tame(d, n)),
        head=head, max_context=one.max_context and 64 + one.max_context % 9,
    )  # fmt: skip
    one = rewrite(one, lambda n: widths(n, one.d_model))
    if structure % 5 == 0:
        hyper = HyperConnections(STREAMS, dynamic=structure % 2 == 0,
                                 constrained=structure % 3 == 0)  # fmt: skip
        one = rewrite(one, lambda n: replace(n, residual=hyper) if isinstance(n, Block) and
                      not isinstance(n.branches[0].module, PerLayerInput) else n)  # fmt: skip
    used = [n for k in one.decoder.occurrences() for _, n in nodes(one.decoder.kind(k))]
    if not any(isinstance(n, PerLayerInput) for n in used):
        one = replace(one, embeddings=replace(one.embeddings, per_layer=None))
        one = rewrite(one, without_own_inputs)
    return check(one)


def without_own_inputs(node):
    """A layer without the block that reads per-layer embeddings."""
    if not isinstance(node, Layer):
        return node
    kept = [b for b in node.blocks if not isinstance(b.branches[0].module, PerLayerInput)]
    return replace(node, blocks=tuple(kept))


def unhashed(node):
    """A router that reads no tokens."""
    return replace(node, hashed=False) if isinstance(node, Router) else node


def widths(node, d_model):
    """Tables of positions long enough for any test; attention as wide as it can be."""
    if type(node).__name__ == "LearnedPosition":
        return replace(node, rows=64 + node.rows % 9)
    if isinstance(node, GroupedAttention) and node.d_input == "wide":
        return replace(node, d_input=2 * d_model)
    return node


def source(one, batch, length, generator=None):
    """What the encoder reads: tokens, or twice as many frames of sound; None without one."""
    import torch

    own = one.encoder_embeddings
    if one.encoder is None:
        return None
    if own is not None and own.audio is not None:
        return torch.randn(batch, 2 * length, own.audio.n_mel, generator=generator)
    return torch.randint(one.vocab_size, (batch, length), generator=generator)


BUILT = (GroupedAttention, LatentAttention, Mamba2, GatedDelta, Dense, Experts)


def plainly(one):
    """A spec without the parts whose memory ``costs.plain`` does not know."""
    e, own, head = one.embeddings, one.encoder_embeddings, one.head or Head()
    if own is not None:
        own = replace(own, audio=None, n_token_type=None, per_layer=None, d_embed=e.d_embed)
    return rewrite(replace(
        one, embeddings=replace(e, per_layer=None, n_token_type=None), encoder_embeddings=own,
        head=replace(head, transform=None, buffer_bias=False,
                     project=head.project or e.d_embed is not None),
    ), modelled)  # fmt: skip


def modelled(node):
    """A node without such parts."""
    if isinstance(node, GroupedAttention):
        bare = isinstance(node.position, Disentangled) or node.cross
        return replace(node, d_input=None, adapter_rank=None, selector=None, key_bias=True,
                       position=None if bare else node.position)  # fmt: skip
    if isinstance(node, LatentAttention):
        return replace(node, indexer=None)
    if isinstance(node, Dense):
        act = node.activation if node.activation in {"silu", "gelu", "relu2", "relu"} else "silu"
        return replace(node, adapter_rank=None, sparsity=0.0, activation=act)
    if isinstance(node, Experts):
        return replace(node, d_latent=None, latent_bias=False, n_zero=None, delayed=False)
    if isinstance(node, Router):
        return replace(node, hashed=False, norm=None, expert_scale=False, n_expert_group=None,
                       top_k_group=None)  # fmt: skip
    if isinstance(node, Layer):
        kept = [b for b in node.blocks if all(isinstance(x.module, BUILT) for x in b.branches)]
        return replace(node, blocks=tuple(kept) or (Block((Branch(Dense(24)),)),),
                       stored_scale=False)  # fmt: skip
    if isinstance(node, Block) and isinstance(node.residual, HyperConnections | Handed):
        hyper = isinstance(node.residual, HyperConnections)
        return replace(node, residual=replace(node.residual, constrained=False) if hyper else
                       Plain())  # fmt: skip
    return replace(node, altup=None) if isinstance(node, Stack) else node


def roomy(structure):
    """Structures whose memory is modelled, as wide as small models are trained: 32 to 192."""
    d = Random(f"roomy {structure}")
    one = rewrite(plainly(spec(structure)), lambda node: grown(d, node))
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
