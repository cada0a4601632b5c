"""Claims of parameters: totals, estimates, shares, what tying and sharing save."""

from __future__ import annotations

from typing import Any

from scantling.claims.plain import named, plain, slot
from scantling.claims.records import Claim
from scantling.claims.registry import (
    FAIR_COUNT,
    Checked,
    by_convention,
    check,
    decide,
    judge,
)
from scantling.costs.adapters import adapted
from scantling.costs.count import (
    Parameters,
    attention_parameters,
    mlp_parameters,
    parameters,
)
from scantling.spec import Spec, vary
from scantling.spec.plan import Adapter


def matrices(counted: Parameters) -> int:
    """Parameters of attention and feed-forward, without norms."""
    return int(attention_parameters(counted) + mlp_parameters(counted))


def estimate(spec: Spec) -> int:
    """12 L D² of a model: what a plain one of its depth and width has."""
    return matrices(parameters(plain(spec.n_layer, spec.d_model)))


@check("totals")
def totals(one: Claim) -> Checked:
    """Of each model in ``given``: 12 L D² as ``…_theory``, and its parameters as ``…_total``."""
    numbers = {}
    for name, model in one.given.items():
        spec = named(model)
        numbers[f"{name}_theory"] = float(estimate(spec))
        numbers[f"{name}_total"] = float(parameters(spec).total)
    return judge(one, numbers, FAIR_COUNT)


@check("shape-total")
def shape_total(one: Claim) -> Checked:
    """A plain shape's body and total: ``layers``, ``width``, ``vocab``, tied or not."""
    g = one.given
    counted = parameters(plain(g["layers"], g["width"], vocab=g["vocab"], tied=g["tied"]))
    return judge(one, {"body": matrices(counted), "total": float(counted.total)}, FAIR_COUNT)


@check("recipe")
def recipe(one: Claim) -> Checked:
    """A row of a table of shapes against its label, and whether its heads can be grouped.

    Wrong if it is off by more than a tenth, or if the KV heads do not divide the query heads.
    """
    g: dict[str, Any] = {"tied": False, **one.given}
    layers, width = g.pop("layers"), g.pop("width")
    total = parameters(plain(layers, width, gated=True, **g)).total
    rest = g["heads"] % g["kv_heads"]
    found = judge(
        one, {"total": float(total), "off": float(total / one.said["total"] - 1), "rest": rest}
    )
    return Checked("wrong" if rest else found.verdict, found.numbers)


@check("growth")
def growth(one: Claim) -> Checked:
    """Two models' growth by width² and by depth: approximate if one of them is the smaller part."""
    first, second = (named(one.given[key]) for key in ("small", "large"))
    numbers = {
        "width": float((second.d_model / first.d_model) ** 2),
        "depth": float(second.n_layer / first.n_layer),
        "total": float(parameters(second).total / parameters(first).total),
    }
    right = judge(one, numbers).verdict == "correct"
    return decide("approximate", numbers, holds=right and numbers["depth"] > 2)


@check("ffn-share")
def ffn_share(one: Claim) -> Checked:
    """The feed-forward's share of a layer: of a plain one, and of ``model``."""

    def share(spec: Spec) -> dict[str, float]:
        counted = parameters(spec)
        return {"share": float(mlp_parameters(counted)) / matrices(counted)}

    return by_convention(one, share(plain(32, 4096)), share(named(one.given["model"])))


@check("twelve")
def twelve(one: Claim) -> Checked:
    """12 L D² over the matrices: of a plain shape, and of ``model``."""

    def ratio(spec: Spec) -> dict[str, float]:
        return {"ratio": estimate(spec) / matrices(parameters(spec))}

    return by_convention(one, ratio(plain(32, 4096)), ratio(named(one.given["model"])))


@check("gated-twelve")
def gated_twelve(one: Claim) -> Checked:
    """12 L D² over the matrices of a gated model of F = 8 D / 3 with as many KV heads as heads."""
    spec = plain(32, 3072, d_ff=8192, gated=True)
    return judge(one, {"ratio": estimate(spec) / matrices(parameters(spec))})


@check("equal-shapes")
def equal_shapes(one: Claim) -> Checked:
    """Two plain shapes' bodies, in ``first`` and ``second`` layers and widths, and their ratio."""
    first, second = (matrices(parameters(plain(*one.given[key]))) for key in ("first", "second"))
    return judge(one, {"first": first, "second": second, "ratio": first / second})


@check("doubled-width")
def doubled_width(one: Claim) -> Checked:
    """What twice the width at one depth multiplies a plain body and its feed-forward by."""
    small, large = (parameters(plain(32, width)) for width in (4096, 8192))
    return judge(
        one,
        {
            "body": matrices(large) / matrices(small),
            "ffn": float(mlp_parameters(large) / mlp_parameters(small)),
        },
    )


@check("width-squared")
def width_squared(_: Claim) -> Checked:
    """What doubling the width multiplies a plain body by, twice: the same factor is a power."""
    sizes = [matrices(parameters(plain(32, width))) for width in (4096, 8192, 16_384)]
    numbers = {"at_4096": sizes[1] / sizes[0], "at_8192": sizes[2] / sizes[1]}
    return decide("wrong", numbers, holds=numbers["at_4096"] == numbers["at_8192"])


@check("tenfold")
def tenfold(one: Claim) -> Checked:
    """What the exponents 0.2 and 0.4 make of ten times the parameters; the body must agree."""
    depth, width = 10**0.2, 10**0.4
    small, large = (
        matrices(parameters(plain(*shape)))
        for shape in ((1000, 10_000), (round(1000 * depth), round(10_000 * width)))
    )
    return judge(one, {"depth": depth, "width": width, "body": large / small})


@check("gated-width")
def gated_width(one: Claim) -> Checked:
    """Feed-forward of three matrices at 2/3 of the width over one of two matrices: 1 if equal."""
    two, three = (
        mlp_parameters(parameters(plain(1, 768, d_ff=width, gated=gated)))
        for width, gated in ((3072, False), (2048, True))
    )
    return judge(one, {"ratio": float(three / two), "width": 2048.0})


@check("demo-layer")
def demo_layer(one: Claim) -> Checked:
    """The demonstration's parts at D 8192, F 32768, V 152064: the gate is what it leaves out."""
    spec = plain(1, 8192, vocab=152_064)
    counted, gated = parameters(spec), parameters(plain(1, 8192, gated=True))
    numbers = {
        "ffn": float(mlp_parameters(counted)), "embedding": float(counted.embedding),
        "qkv": float(attention_parameters(counted)) * 3 / 4, "layer": float(matrices(counted)),
    }  # fmt: skip
    otherwise = {"ffn": float(mlp_parameters(gated)), "layer": float(matrices(gated))}
    if one.verdict == "convention":
        return by_convention(one, numbers, otherwise)
    rest = {f"otherwise_{name}": value for name, value in otherwise.items()}
    return judge(one, {**numbers, **rest})


@check("shared-ffn")
def shared_ffn(one: Claim) -> Checked:
    """What one feed-forward for all layers, and one for two, saves: of the layers, and of all."""
    counted = parameters(named(one.given["model"]))
    layers = int(named(one.given["model"]).n_layer)
    ffn = float(mlp_parameters(counted))
    shares = {"all": (layers - 1) / layers, "pairs": 1 / 2}
    numbers = {f"{name}_layers": ffn * share / matrices(counted) for name, share in shares.items()}
    numbers |= {name: ffn * share / float(counted.total) for name, share in shares.items()}
    return judge(one, numbers)


@check("shared-decoder-ffn")
def shared_decoder_ffn(one: Claim) -> Checked:
    """What one feed-forward for a decoder of 2 and of 6 layers saves of its layers."""
    base = {"model_type": "bart", "d_model": 512, "encoder_attention_heads": 8,
            "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
            "encoder_layers": 1}  # fmt: skip
    six, five = (parameters(named({**base, "decoder_layers": n})) for n in (6, 5))
    ffn = float(mlp_parameters(six) - mlp_parameters(five))
    layer = ffn + float(attention_parameters(six) - attention_parameters(five))
    share = ffn / layer
    return judge(one, {"ffn_share": share, "two": share / 2, "six": share * 5 / 6})


@check("low-rank")
def low_rank(one: Claim) -> Checked:
    """What W = U V of a rank saves of a feed-forward: 1 − r (D + F) / (D F), and where it ends."""
    spec = named(one.given["model"])
    whole = float(mlp_parameters(parameters(spec)))
    targets = ("gate_proj", "up_proj", "down_proj")

    def left(rank: int) -> float:
        return float(adapted(spec, Adapter(rank=rank, targets=targets)).parameters) / whole

    numbers = {f"rank_{rank}": 1 - left(rank) for rank in (256, 512)}
    return judge(one, {**numbers, "even": 1 / left(1)})


@check("attention-formula")
def attention_formula(one: Claim) -> Checked:
    """D H h + 2 D K h + D² over what attention has: with H h = D, and of a model without."""

    def ratio(name: str) -> dict[str, float]:
        spec = named(name)
        d, h = int(spec.d_model), int(spec.d_head)
        said = d * int(spec.n_head) * h + 2 * d * int(spec.n_kv_head) * h + d * d
        # per-head norms of queries and keys are no projection
        norms = 2 * h if one.given["norms"] == name else 0
        each = float(attention_parameters(parameters(spec))) / int(spec.n_layer) - norms
        return {"ratio": said / each}

    return by_convention(one, ratio(one.given["equal"]), ratio(one.given["free"]))


@check("parts")
def parts(one: Claim) -> Checked:
    """3 D F a layer, 2 D a layer and D at the end, V D a table: over the parts of a model."""
    spec = named(one.given["model"])
    found = parameters(spec)
    layers, d = int(spec.n_layer), int(spec.d_model)
    return judge(
        one,
        {
            "ffn": 3 * d * int(spec.d_ff) * layers / float(mlp_parameters(found)),
            "norms": (2 * layers + 1) * d / float(found.by_part["norm"]),
            "tables": 2 * d * int(spec.vocab_size) / float(found.embedding + found.lm_head),
        },
    )


@check("embedding-share")
def embedding_share(one: Claim) -> Checked:
    """V D k / P over the share of tables that a model has, and that share."""
    numbers = {}
    for name in one.given["models"]:
        spec = named(name)
        counted = parameters(spec)
        share = float(counted.embedding + counted.lm_head) / float(counted.total)
        tables = int(spec.vocab_size) * int(spec.d_model) * (1 if spec.tied else 2)
        numbers[slot(name)] = share
        numbers["ratio"] = tables / float(counted.total) / share
    return judge(one, numbers)


@check("tying-saves")
def tying_saves(one: Claim) -> Checked:
    """One table's share of the recipe's smallest row at two vocabularies: said between them."""
    numbers = {}
    for vocab in (32_000, 64_000):
        spec = plain(24, 2048, vocab=vocab, d_ff=5504, gated=True)
        found = parameters(spec)
        numbers[f"at_{vocab // 1000}k"] = float(found.embedding) / float(found.total)
    low, high = numbers.values()
    return decide("approximate", numbers, holds=low < one.said["share"] < high)


@check("hidden-memory")
def hidden_memory(one: Claim) -> Checked:
    """Bytes of a model's weights at 16 bits."""
    total = float(parameters(named(one.given["model"])).total)
    return judge(one, {"parameters": total, "bytes": 2 * total})


@check("pruned-heads")
def pruned_heads(one: Claim) -> Checked:
    """What is left of a layer's matrices, and so of its products, with 8 and with 4 of 12 heads.

    What nothing explains is unverifiable: attention's products are a third of a layer's, so that
    taking heads away cannot save the times claimed unless its other work dominates.
    """
    whole = plain(12, 768, heads=12, d_head=64)
    numbers = {
        f"heads_{n}": matrices(parameters(vary(whole, n_head=n, n_kv_head=n)))
        / matrices(parameters(whole))
        for n in (8, 4)
    }
    below = all(one.said[name] < bound for name, bound in numbers.items())
    return Checked("unverifiable" if below else "approximate", numbers)
