"""What a spec may be, how it is changed and read, and what an error says."""

import inspect

import msgspec
import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

import random_specs
from scantling import catalog
from scantling.arith import LARGEST
from scantling.costs.count import parameters
from scantling.errors import FieldError, ScantlingError, UnknownNameError, nearest
from scantling.spec import (
    RELATIONS,
    Block,
    Branch,
    CompressedAttention,
    Dense,
    Experts,
    GatedDelta,
    GroupedAttention,
    Layer,
    LearnedPosition,
    Mamba1,
    Mamba2,
    MixtureOfDepths,
    Norm,
    RgLru,
    Rope,
    Router,
    Run,
    Spec,
    Stack,
    Workload,
    attention,
    check,
    divisors,
    dtype_bytes,
    fields,
    has,
    masks,
    model,
    modules,
    read,
    vary,
)

ATTENTION = GroupedAttention(n_head=8, n_kv_head=4, d_head=16)


def one_layer(*parts, n=3, **more):
    """A model of one kind of layer, one block a module."""
    blocks = tuple(p if isinstance(p, Block) else Block((Branch(p),)) for p in parts)
    stack = Stack((Layer("layer", blocks),), (Run(("layer",), n),))
    return Spec(d_model=64, vocab_size=1000, decoder=stack, **more)


def gemma():
    """Five local layers to one global, cut after ten."""
    kinds = (
        Layer("local", (Block((Branch(ATTENTION),)), Block((Branch(Dense(96)),)))),
        Layer("global", (Block((Branch(replace(ATTENTION, d_head=32)),)),
                         Block((Branch(Dense(96)),)))),
    )  # fmt: skip
    pattern = ("local",) * 5 + ("global",)
    return Spec(d_model=64, vocab_size=1000, decoder=Stack(kinds, (Run(pattern, 10),)))


def failed(call, *given, **named):
    with pytest.raises(FieldError) as caught:
        call(*given, **named)
    return caught.value


# ---------------------------------------------------------------- relations between fields


def test_an_error_names_the_field_its_value_the_relation_with_numbers_and_what_is_right():
    """DESIGN, section 6: n_kv_head 6 must divide n_head 32; use 4 or 8."""
    error = failed(check, vary(catalog.model("llama-3.1-8b"), n_kv_head=6))
    assert error.path == "decoder.layer.attention.n_kv_head"
    assert error.value == 6
    assert error.rule == "must divide n_head 32"
    assert error.hint == "use 4 or 8"
    assert str(error).endswith("n_kv_head 6 must divide n_head 32; use 4 or 8")
    assert isinstance(error, ScantlingError)


BAD = [
    (replace(ATTENTION, n_kv_head=3), "n_kv_head", 3, "must divide n_head 8", "use 2 or 4"),
    (replace(ATTENTION, n_kv_head=16), "n_kv_head", 16, "must divide n_head 8", "use 8"),
    (replace(ATTENTION, d_head=7, position=Rope()), "d_head", 7,
     "must be even: rotary positions turn pairs", "use 6 or 8"),
    (CompressedAttention(8, 16, 8, 3, 4, 8), "n_out_group", 3, "must divide n_head 8",
     "use 2 or 4"),
    (Experts(8, 9, 32), "top_k", 9, "must be at most n_expert 8", ""),
    (Experts(8, 2, 32, router=Router(n_expert_group=4, top_k_group=5)), "top_k_group", 5,
     "must be at most n_expert_group 4", ""),
    (Mamba2(96, 6, 4, 16, 4), "n_group", 4, "must divide n_ssm_head 6", "use 3 or 6"),
    (Mamba2(96, 5, 1, 16, 4), "n_ssm_head", 5, "must divide d_inner 96", "use 4 or 6"),
    (Mamba1(96, 16, 4, 6, n_select_head=5), "n_select_head", 5, "must divide d_inner 96",
     "use 4 or 6"),
    (GatedDelta(4, 6, 16, 16, 4), "n_key_head", 4, "must divide n_value_head 6", "use 3 or 6"),
    (RgLru(100, 8, 4), "n_gate_block", 8, "must divide d_rnn 100", "use 5 or 10"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "field", "value", "rule", "hint"), BAD)
def test_each_relation_is_an_error_with_its_numbers(module, field, value, rule, hint):
    error = failed(check, one_layer(module))
    found = (error.path.rpartition(".")[2], error.value, error.rule, error.hint)
    assert found == (field, value, rule, hint)


def test_a_mixture_of_depths_passes_at_most_all_tokens():
    block = Block((Branch(Dense(8)),), residual=MixtureOfDepths(1001))
    assert failed(check, one_layer(block)).value == 1001
    check(one_layer(replace(block, residual=MixtureOfDepths(1000))))


def test_every_relation_has_a_case_that_breaks_it():
    broken = [one_layer(module) for module, *_ in BAD]
    broken.append(one_layer(Block((Branch(Dense(8)),), residual=MixtureOfDepths(1001))))
    for relation in RELATIONS:
        nodes = [n for one in broken for n in random_specs.walk(one) if type(n) is relation.of]
        assert any(not relation.holds(node) for node in nodes), relation.name


def test_every_model_of_the_catalogue_keeps_every_relation():
    for name in catalog.named():
        spec = catalog.model(name)
        assert check(spec) is spec


def test_every_drawn_spec_keeps_every_relation():
    for structure in range(60):
        check(random_specs.spec(structure))


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ((Experts(4, 8, 8),), "decoder.layer.ffn.top_k"),
        ((Mamba2(96, 5, 1, 16, 4),), "decoder.layer.mixer.n_ssm_head"),
        ((ATTENTION, replace(ATTENTION, cross=True, n_kv_head=3)),
         "decoder.layer.cross_attention.n_kv_head"),
    ],
)  # fmt: skip
def test_an_error_names_the_module_as_the_operators_do(parts, path):
    assert failed(check, one_layer(*parts)).path == path


# ---------------------------------------------------------------- layouts and types


def test_a_layout_names_kinds_that_exist():
    one = gemma()
    runs = (Run(("local", "globl"), 4),)
    error = failed(check, replace(one, decoder=replace(one.decoder, layout=runs)))
    assert error.path == "decoder.layout"
    assert error.value == "globl"
    assert error.rule == "must be one of the kinds ['local', 'global']"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"layout": ()}, "must hold at least one run of layers"),
        ({"layout": (Run((), 4),)}, "has a run without a pattern"),
        ({"kinds": gemma().decoder.kinds[:1] * 2, "layout": (Run(("local",), 2),)},
         "must have different names"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stack", ["decoder", "encoder"])
def test_a_stack_has_runs_with_patterns_of_kinds_with_different_names(stack, change, rule):
    one = replace(gemma(), encoder=gemma().decoder)
    error = failed(check, replace(one, **{stack: replace(one.decoder, **change)}))
    assert error.path.startswith(stack)
    assert error.rule == rule


WRONG = [
    ("d_model", 0, ">= 1"), ("d_model", -64, ">= 1"), ("d_model", 64.0, "float"),
    ("d_model", "64", "str"), ("d_model", True, "bool"), ("d_model", None, "null"),
    ("d_model", LARGEST + 1, "<= 1099511627776"), ("vocab_size", 10**30, ""), ("tied", 1, "int"),
    ("decoder", None, "null"), ("head", "tied", "str"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "says"), WRONG)
def test_a_value_of_another_type_or_out_of_bounds_is_an_error_at_its_field(field, value, says):
    error = failed(check, replace(one_layer(ATTENTION), **{field: value}))
    assert error.path == field
    assert says in str(error)


def test_a_nested_value_of_another_type_is_an_error_at_its_path():
    error = failed(check, one_layer(ATTENTION, Dense("wide")))
    assert error.path.endswith("d_ff")
    assert "decoder" in error.path
    assert "wide must be int, got str" in str(error)


@pytest.mark.parametrize(("field", "value", "says"), [w for w in WRONG if w[1] is not None])
def test_an_error_of_type_or_bounds_says_which_value(field, value, says):
    error = failed(check, replace(one_layer(ATTENTION), **{field: value}))
    assert says in str(error)
    assert error.value == value


def test_the_path_of_a_type_error_is_as_short_as_that_of_a_relation():
    assert failed(check, one_layer(replace(ATTENTION, n_head=0))).path == \
        "decoder.layer.attention.n_head"  # fmt: skip


@pytest.mark.parametrize("value", [1, LARGEST])
def test_the_ends_of_the_range_of_a_dimension_are_inside_it(value):
    assert check(one_layer(Dense(value))).d_ff == value


# ---------------------------------------------------------------- frozen, hashable, JSON


def structs():
    found = [x for x in [*vars(modules).values(), *vars(model).values(), Workload]
             if inspect.isclass(x) and issubclass(x, Struct) and x is not Struct]  # fmt: skip
    return sorted(set(found), key=lambda s: s.__name__)


def test_every_struct_of_a_spec_is_frozen_and_forbids_unknown_fields():
    assert len(structs()) > 35
    for struct in structs():
        config = struct.__struct_config__
        assert config.frozen, struct
        assert config.forbid_unknown_fields, struct


def test_a_spec_is_frozen_and_hashes_as_its_equal():
    one, other = gemma(), gemma()
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, vary(one, d_ff=97)}) == 2
    with pytest.raises(AttributeError):
        one.d_model = 128


def test_a_spec_and_its_json_say_the_same():
    for structure in range(60):
        one = random_specs.spec(structure)
        again = msgspec.json.decode(msgspec.json.encode(one), type=Spec)
        assert again == one
        assert hash(again) == hash(one)


def test_a_field_nobody_knows_is_refused_where_it_stands():
    text = msgspec.json.encode(one_layer(ATTENTION)).decode()
    for known, unknown in (('"d_model"', '"d_modell"'), ('"n_head"', '"n_heads"')):
        assert known in text
        with pytest.raises(msgspec.ValidationError, match=f"unknown field `{unknown[1:-1]}`"):
            msgspec.json.decode(text.replace(known, unknown), type=Spec)


# ---------------------------------------------------------------- column specs


def random_modules(random):
    """Modules of each relation, legal about half of the time."""

    def any_of(*options):
        return int(random.choice(options))

    return (
        GroupedAttention(any_of(4, 6, 8), any_of(1, 2, 3, 4, 5, 8, 16), 16),
        Experts(any_of(2, 4, 8), any_of(1, 2, 5, 9), 32),
        Experts(8, 2, 32, router=Router(n_expert_group=any_of(1, 4), top_k_group=any_of(1, 2, 4))),
        Mamba2(any_of(96, 100), any_of(4, 5, 6), any_of(1, 2, 3), 16, 4),
        Mamba1(any_of(96, 100), 16, 4, 6, n_select_head=any_of(4, 5, 6)),
        GatedDelta(any_of(2, 3, 4), any_of(4, 6), 16, 16, 4),
        RgLru(any_of(96, 100), any_of(1, 5, 8), 4),
    )


def test_the_masks_of_a_column_are_the_errors_of_its_rows():
    random = np.random.default_rng(3)
    verdicts = set()
    for i in range(7):
        ones = [one_layer(random_modules(random)[i]) for _ in range(40)]
        legal = [_is_legal(one) for one in ones]
        found = np.ones(len(ones), dtype=bool)
        for _, kept in masks(random_specs.column(ones)):
            found &= kept
        assert found.tolist() == legal
        verdicts |= {(i, verdict) for verdict in legal}
    assert len(verdicts) == 14  # each kind was legal and illegal


def _is_legal(one):
    try:
        check(one)
    except FieldError:
        return False
    return True


def test_the_masks_of_a_column_have_the_names_of_its_relations():
    many = random_specs.column([one_layer(Mamba2(96, h, 1, 16, 4), Dense(8)) for h in (4, 5)])
    found = {name: mask.tolist() for name, mask in masks(many)}
    assert found == {
        "groups divide SSM heads": [True, True],
        "SSM heads divide inner width": [True, False],
    }


def test_each_mask_of_a_column_is_as_long_as_the_column():
    """The sweep counts len − count_nonzero: of a plain True that is everybody but one."""
    many = random_specs.column([one_layer(Experts(n, 2, 32)) for n in (4, 8, 16)])
    assert all(np.shape(mask) == (3,) for _, mask in masks(many))


def test_a_column_spec_is_varied_and_read_like_a_spec():
    depths, widths = np.array([2, 4, 6]), np.array([96, 128, 160])
    many = vary(one_layer(ATTENTION, Dense(1)), n_layer=depths, d_ff=widths)
    assert many.n_layer.tolist() == [2, 4, 6]
    assert many.d_ff.tolist() == [96, 128, 160]
    assert many.n_head == 8
    by_hand = [2 * 64_000 + 64 + n * (64 * 16 * (8 + 4 + 4) + 8 * 16 * 64 + 3 * 64 * f)
               for n, f in zip([2, 4, 6], [96, 128, 160], strict=True)]  # fmt: skip
    assert parameters(many).total.tolist() == by_hand


def test_the_depth_of_a_column_keeps_its_prefix():
    one = one_layer(ATTENTION)
    kinds = (*one.decoder.kinds, Layer("dense", (Block((Branch(Dense(8)),)),)))
    stack = Stack(kinds, (Run(("dense",), 3), Run(("layer", "dense"), 1)))
    many = vary(replace(one, decoder=stack), n_layer=np.array([4, 5, 8]))
    assert {k: v.tolist() for k, v in many.decoder.occurrences().items()} == \
        {"dense": [3, 4, 5], "layer": [1, 1, 3]}  # fmt: skip


# ---------------------------------------------------------------- vary and read


def test_varying_changes_every_place_and_nothing_else():
    one = vary(gemma(), d_ff=128, n_kv_head=2)
    for kind, d_head in (("local", 16), ("global", 32)):
        first, second = one.decoder.kind(kind).blocks
        assert first.branches[0].module == replace(ATTENTION, n_kv_head=2, d_head=d_head)
        assert second.branches[0].module == Dense(128)
    assert vary(one, d_ff=96, n_kv_head=4) == gemma()


def test_a_field_of_one_kind_is_varied_alone():
    one = vary(gemma(), global__d_head=64)
    heads = {k.name: k.blocks[0].branches[0].module.d_head for k in one.decoder.kinds}
    assert heads == {"local": 16, "global": 64}
    assert one.d_head == 64


def test_plain_fields_of_a_spec_are_varied_by_their_names():
    one = vary(gemma(), tied=True, d_model=128, vocab_size=2000)
    assert (one.tied, one.d_model, one.vocab_size) == (True, 128, 2000)
    assert one.decoder == gemma().decoder


def test_the_depth_is_that_of_the_last_run_and_what_comes_before_it_stays():
    """DeepSeek's dense first layers stay dense whatever the depth."""
    one = catalog.model("deepseek-v3")
    first = one.decoder.layout[0]
    assert first.n == 3
    deeper = vary(one, n_layer=80)
    assert deeper.n_layer == 80
    assert deeper.decoder.layout[0] == first
    assert deeper.decoder.expand()[:3] == one.decoder.expand()[:3]
    assert vary(deeper, n_layer=61) == one
    error = failed(vary, one, n_layer=3)
    assert error.value == 3
    assert error.rule == "must exceed the 3 layers before the last run"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("n_kv_heads", "n_kv_head"),
        ("dff", "d_ff"),
        ("n_layers", "n_layer"),
        ("vocab", "vocab_size"),
    ],
)
def test_a_field_that_does_not_exist_is_answered_with_a_near_one(name, near):
    error = failed(vary, catalog.model("llama-3.1-8b"), **{name: 4})
    assert error.path == name
    assert error.hint == f"did you mean {near}?"


def test_a_field_like_no_other_is_answered_with_all_there_are():
    error = failed(vary, catalog.model("gpt2"), zzz=1)
    assert error.hint == "it has " + ", ".join(fields(catalog.model("gpt2")))


def test_an_absent_dimension_stays_absent():
    """A model without experts gets none, a full attention no window: that is structure."""
    for name in ("n_expert", "window", "q_rank", "d_value"):
        assert failed(vary, one_layer(ATTENTION, Dense(8)), **{name: 4}).path == name
    with_value = one_layer(replace(ATTENTION, d_value=8))
    assert read(vary(with_value, d_value=24), "d_value") == 24


def test_a_kind_that_does_not_exist_is_answered_with_a_near_one():
    error = failed(vary, gemma(), globl__d_head=64)
    assert "global" in error.hint


def test_a_kind_of_layer_has_no_depth_of_its_own():
    failed(vary, gemma(), local__n_layer=3)


@pytest.mark.parametrize("field", ["rows", "n_token_type", "d_embed"])
def test_a_dimension_of_the_embeddings_is_read_and_varied_too(field):
    one = one_layer(Dense(8))
    given = {"position": LearnedPosition(512), "n_token_type": 2, "d_embed": 32}
    one = replace(one, embeddings=replace(one.embeddings, **given))
    assert read(vary(one, **{field: 48}), field) == 48


def test_reading_takes_the_kind_that_comes_last_and_else_any():
    one = gemma()
    assert (one.d_head, one.n_head, one.n_layer, one.d_ff) == (32, 8, 10, 96)
    assert has(one, "n_kv_head")
    assert not has(one, "n_expert")
    mixed = replace(one, decoder=replace(one.decoder, layout=(Run(("global", "local"), 4),)))
    assert mixed.d_head == 16
    assert failed(read, one, "n_expert").hint == "it has " + ", ".join(fields(one))


def test_latent_attention_reads_a_key_head_for_each_query_head():
    """DeepSeek-V3's config says num_key_value_heads 128, as many as num_attention_heads."""
    one = catalog.model("deepseek-v3")
    assert (one.n_head, one.n_kv_head, one.d_head) == (128, 128, 128)
    assert attention(one).kv_rank == 512


def test_the_attention_of_a_model_without_any_is_none():
    assert attention(one_layer(Mamba2(96, 6, 1, 16, 4))) is None
    assert failed(read, one_layer(Dense(8)), "n_head").path == "n_head"


# ---------------------------------------------------------------- small words


def test_divisors_are_all_numbers_that_divide():
    for n in range(1, 200):
        assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("bfloat16", 2), ("torch.float16", 2), ("FP8", 1), ("int4", 0.5)],
)
def test_a_dtype_has_its_bytes_by_any_of_its_names(dtype, size):
    assert dtype_bytes(dtype) == size


def test_an_unknown_dtype_is_answered_with_near_ones():
    with pytest.raises(UnknownNameError, match="dtype bf61 is not known; did you mean bf16"):
        dtype_bytes("bf61")
    assert nearest("n_layers", ["d_ff", "n_layer"]) == ["n_layer"]


def test_a_new_token_is_one_in_decode_and_the_context_else():
    assert Workload("decode", 4, 100).new_tokens == 1
    assert Workload("prefill", 4, 100).new_tokens == 100


def test_a_norm_is_root_mean_square_with_a_scale_unless_said_otherwise():
    assert (Norm().kind, Norm().scale, Norm().bias) == ("rms", True, False)
