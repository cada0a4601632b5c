"""Claims of memory for keys and values."""

from __future__ import annotations

from scantling.claims.plain import named, plain
from scantling.claims.records import Claim
from scantling.claims.registry import Checked, by_convention, check, decide, judge
from scantling.costs.cache import kv_cache
from scantling.costs.count import parameters
from scantling.hardware import chip
from scantling.spec import LatentAttention, Spec, vary
from scantling.spec.vary import attention


def _bytes(spec: Spec, context: int) -> float:
    return float(kv_cache(spec, 1, context).bytes)


@check("kv-formula")
def kv_formula(one: Claim) -> Checked:
    """2 L H h S over what is kept: with as many KV heads as heads, and with fewer."""

    def ratio(name: str) -> dict[str, float]:
        spec = named(name)
        said = 2 * int(spec.n_layer) * int(spec.n_head) * int(spec.d_head) * 2
        return {"ratio": said / float(kv_cache(spec).bytes_per_token)}

    return by_convention(one, ratio(one.given["equal"]), ratio(one.given["grouped"]))


@check("kv-bytes")
def kv_bytes(one: Claim) -> Checked:
    """Bytes of a plain shape's cache, with all heads and with ``kv_heads``."""
    g = one.given
    spec = plain(g["layers"], g["width"], heads=g["width"] // 128)
    return judge(
        one,
        {
            "bytes": _bytes(spec, g["context"]),
            "grouped": _bytes(vary(spec, n_kv_head=g["kv_heads"]), g["context"]),
        },
    )


@check("kv-of-model")
def kv_of_model(one: Claim) -> Checked:
    """Bytes of a model's cache at a context: as it is, and with a KV head for every head."""
    spec, context = named(one.given["model"]), one.given["context"]
    full = _bytes(vary(spec, n_kv_head=spec.n_head), context)
    return judge(one, {"grouped": _bytes(spec, context), "full": full})


@check("fits-a-card")
def fits_a_card(one: Claim) -> Checked:
    """Weights at 16 bits and cache against a card: wrong if they are more even when grouped."""
    spec, context = named(one.given["model"]), one.given["context"]
    grouped = _bytes(spec, context)
    weights = 2 * float(parameters(spec).total)
    numbers = {
        "full": _bytes(vary(spec, n_kv_head=spec.n_head), context), "grouped": grouped,
        "weights": weights,
    }  # fmt: skip
    return decide("wrong", numbers, holds=grouped + weights > chip(one.given["chip"]).memory_bytes)


@check("kv-growth")
def kv_growth(one: Claim) -> Checked:
    """What doubling the context multiplies the cache by."""
    spec = named(one.given["model"])
    return judge(one, {"ratio": _bytes(spec, 32_768) / _bytes(spec, 16_384)})


@check("kv-of-decoder")
def kv_of_decoder(one: Claim) -> Checked:
    """The share of a decoder's cache that goes with its layers, from six to two."""
    six, two = (_bytes(plain(n, 512, heads=8), 512) for n in (6, 2))
    return judge(one, {"share": 1 - two / six})


@check("latent-ratio")
def latent_ratio(one: Claim) -> Checked:
    """What a latent saves against keys and values of all heads, and of eight."""
    spec = named(one.given["model"])
    latent = attention(spec)
    assert isinstance(latent, LatentAttention)
    cache = kv_cache(spec, 1, one.given["context"])
    kept = float(cache.bytes_per_token)

    def grouped(kv_heads: int) -> float:
        other = plain(spec.n_layer, spec.d_model, heads=latent.n_head, kv_heads=kv_heads,
                      d_head=latent.d_value)  # fmt: skip
        return float(kv_cache(other).bytes_per_token) / kept

    return judge(
        one,
        {
            "ratio": grouped(int(latent.n_head)), "grouped": grouped(8), "bytes_per_token": kept,
            "wide": float(cache.expanded_bytes_per_token) / kept, "bytes": float(cache.bytes),
        },
    )  # fmt: skip
