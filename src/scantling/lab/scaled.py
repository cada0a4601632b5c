"""Large shapes as small ones that differ from each other in the same ways."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from scantling.costs.count import parameters
from scantling.errors import FieldError
from scantling.lab.match import STEP, counter
from scantling.lab.shrink import shrink
from scantling.lab.study.design import Shape
from scantling.spec import Dense, GroupedAttention, Spec, check, read, vary
from scantling.spec.vary import nodes

HEAD = 8
"""Width of a head in a small model; heads grow in number with the width."""
BODY = 200_000
"""Parameters of a small body unless given."""


def scaled(
    shapes: Sequence[Shape], body: int = BODY, n_layer: int = 4, vocab_size: int = 256
) -> tuple[Shape, ...]:  # fmt: skip
    """Shapes of one size as shapes of another, equal in body parameters.

    Depths keep their ratios: the first shape gets ``n_layer`` layers, each other one as many as
    its depth says. F/D, the group of query heads to a key-value head, and the share of the width
    that attention has stay; the width then follows from the body, by the exact count. Shapes that
    are no plain decoder are halved until they fit. What became equal is left out.

    Args:
        shapes: The first one is the reference.
        body: Parameters without embedding and head.
        n_layer: Layers of the first.
        vocab_size: Tokens; 256 is bytes.

    Raises:
        FieldError: If fewer than two shapes are left.

    Example:
        >>> from scantling import catalog
        >>> large = [Shape(n, catalog.model(n)) for n in ("llama-3.1-8b", "qwen3-8b", "gemma-7b")]
        >>> for s in scaled(large):
        ...     print(s.name, int(s.spec.n_layer), int(s.spec.d_model), s.matched)
        llama-3.1-8b 4 64 {'body': 0.0064}
        qwen3-8b 4 64 {'body': 0.0067}
        gemma-7b 4 40 {'body': -0.003}
    """
    depth = int(shapes[0].spec.n_layer)
    found: list[Shape] = []
    for one in shapes:
        layers = max(round(int(one.spec.n_layer) * n_layer / depth), 1)
        spec = _small(one.spec, layers, body, vocab_size)
        if any(spec == other.spec for other in found):
            continue
        off = float(parameters(spec).body) / body - 1
        found.append(replace(one, spec=spec, matched={"body": round(off, 4)}))
    if len(found) < 2:
        raise FieldError("scale", None, f"makes one shape of {len(shapes)}",
                         "give a larger body, or more layers")  # fmt: skip
    return tuple(found)


def _plain(spec: Spec) -> bool:
    """Whether it is grouped attention and dense feed-forwards and nothing else."""
    mixers = [n for _, n in nodes(spec) if isinstance(n, GroupedAttention)]
    feeds = [n for _, n in nodes(spec) if isinstance(n, Dense)]
    branches = sum(len(b.branches) for k in spec.decoder.kinds for b in k.blocks)
    return spec.encoder is None and len(mixers) + len(feeds) == branches and len(feeds) > 0


def _small(spec: Spec, layers: int, body: int, vocab_size: int) -> Spec:
    """The small shape whose body is nearest."""
    spec = vary(spec, vocab_size=vocab_size)
    if not _plain(spec):
        return shrink(spec, body + 2 * vocab_size * 64)
    d, h = int(spec.d_model), int(read(spec, "d_head"))
    heads, kv = int(spec.n_head), int(spec.n_kv_head)
    ratio, attention = int(read(spec, "d_ff")) / d, heads * h / d
    count = counter("body", 1, 1)
    tried = []
    for d_model in range(HEAD, 1024, HEAD):
        n_head = max(round(attention * d_model / HEAD), 1)
        n_kv = max(n_head * kv // heads, 1)
        while n_head % n_kv:
            n_kv -= 1
        small = vary(spec, n_layer=layers, d_model=d_model, n_head=n_head, n_kv_head=n_kv,
                     d_head=HEAD, d_ff=max(round(ratio * d_model / STEP), 1) * STEP)  # fmt: skip
        small = replace(small, max_context=None)
        size = count(small)
        tried.append((abs(math.log(size / body)), small))
        if size > 2 * body:
            break
    near = min(tried, key=lambda one: one[0])[1]
    return check(_filled(near, body))


def _filled(spec: Spec, body: int) -> Spec:
    """The feed-forward takes what is left of the body."""
    now, wide = float(parameters(spec).body), vary(spec, d_ff=int(read(spec, "d_ff")) + STEP)
    step = float(parameters(wide).body) - now
    more = round((body - now) / step)
    return vary(spec, d_ff=max(int(read(spec, "d_ff")) + more * STEP, STEP))
