"""Data of the lab: what is known of it beforehand is true of what is drawn."""

import collections
import itertools
import json
import math
import pathlib
import sysconfig
import zlib

import numpy as np
import pytest

from scantling.errors import FieldError, UnknownNameError
from scantling.lab.corpus import Corpus, corpus
from scantling.lab.grammar_text import Grammar

torch = pytest.importorskip("torch", reason="the lab needs torch")

from scantling.lab.data import of_corpus, task  # noqa: E402 - only where torch is
from scantling.lab.match import small  # noqa: E402
from scantling.lab.study.design import Shape, Study  # noqa: E402
from scantling.lab.study.training import Training  # noqa: E402
from scantling.lab.tasks import IGNORED, STREAMS, TASKS, generated  # noqa: E402

# ---------------------------------------------------------------- the grammar's floor


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_the_entropy_rate_is_what_long_text_costs_by_its_own_probabilities(seed):
    """The law of large numbers: −log₂ p of many sentences over their bytes."""
    grammar, bits, n_bytes = Grammar(seed=seed), 0.0, 0
    for sentence, cost in itertools.islice(grammar.sentences(), 40_000):
        bits, n_bytes = bits + cost, n_bytes + len(sentence)
    assert bits / n_bytes == pytest.approx(grammar.bits_per_byte, rel=0.01)


def test_the_entropy_rate_of_a_grammar_of_one_word_choice_is_known_by_hand():
    """One symbol without children: rules of probability 2/3 and 1/3, one byte after each word."""
    grammar = Grammar(seed=3, n_symbol=1, n_rule=2, n_word=2)
    (first, second), *_ = grammar.rules
    assert (first.probability, second.probability) == pytest.approx((2 / 3, 1 / 3))
    children = [len(r.children) for r in (first, second)]
    mean = 2 / 3 * children[0] + 1 / 3 * children[1]
    entropy = math.log2(3) - 2 / 3
    length = 2 / 3 * (len(first.word) + 1) + 1 / 3 * (len(second.word) + 1)
    # Every symbol is the same, so both sums grow by the same number of symbols a sentence.
    assert mean < 1
    assert grammar.bits_per_byte == pytest.approx(entropy / length)


def test_the_rules_of_a_symbol_are_told_apart_by_their_first_word():
    """So a text has one derivation, and its probability is the product of its rules'."""
    for seed in range(20):
        for rules in Grammar(seed=seed).rules:
            assert len({rule.word for rule in rules}) == len(rules)
            assert sum(rule.probability for rule in rules) == pytest.approx(1)


def test_a_compressor_stays_above_the_floor():
    text = Grammar(seed=2).text(400_000)
    assert 8 * len(zlib.compress(text, 9)) / len(text) > Grammar(seed=2).bits_per_byte


def test_the_grammar_draws_the_same_text_everywhere():
    """Python documents that random() gives the same sequence for a seed in every version."""
    assert Grammar(seed=7).text(500) == Grammar(seed=7).text(900)[:500]
    assert Grammar(seed=7).text(500) != Grammar(seed=8).text(500)


# ---------------------------------------------------------------- slices


def test_slices_are_nine_tenths_and_twice_a_twentieth_and_give_the_text_back():
    text = bytes(np.random.default_rng(0).integers(32, 127, 20_000, dtype=np.uint8))
    parts = Corpus("x", text).slices()
    sizes = {name: sum(map(len, p)) / len(text) for name, p in parts.items()}
    assert sizes == pytest.approx({"train": 0.9, "choose": 0.05, "report": 0.05}, abs=1e-3)
    woven = b"".join(b"".join(block) for block in zip(*parts.values(), strict=True))
    assert woven == text


def test_no_slice_cuts_a_character():
    parts = Corpus("x", "œuvre – naïve 漢字 🙂\n".encode() * 500).slices()
    assert all(part.decode() for p in parts.values() for part in p)


def test_code_is_the_library_of_this_interpreter_without_its_tests():
    found = corpus("code")
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    assert (root / "dataclasses.py").read_bytes() in found.data
    assert (root / "json" / "decoder.py").read_bytes() in found.data
    tests = root / "test" / "test_dataclasses.py"
    assert not tests.is_file() or tests.read_bytes() not in found.data
    assert len(found.hash) == 64


# ---------------------------------------------------------------- batches of text


def text_task(n=60_000, **given):
    return of_corpus(Corpus("x", Grammar().text(n)), **({"batch": 4, "context": 32} | given))


def test_every_training_window_is_seen_once_before_any_is_seen_twice():
    one = text_task(20_000)
    n = len(one.slices["train"].starts)
    steps = n // one.batch_size
    rows = [tuple(row) for i in range(steps) for row in one.batch(i, seed=3)[0].tolist()]
    starts = one.slices["train"].starts
    tokens = one.slices["train"].tokens
    there = collections.Counter(tuple(tokens[s : s + 32].tolist()) for s in starts)
    assert all(count <= there[row] for row, count in collections.Counter(rows).items())
    assert one.unique_tokens == n * 32


def test_a_batch_is_a_function_of_step_and_seed():
    one, same = text_task(), text_task()
    for step in (500, 3, 77):
        for mine, theirs in zip(one.batch(step, 1), same.batch(step, 1), strict=True):
            assert torch.equal(mine, theirs)
    assert not torch.equal(one.batch(3, 1)[0], one.batch(3, 2)[0])


def test_targets_are_the_next_bytes_and_windows_do_not_leave_their_part():
    text = Grammar().text(60_000)
    one = of_corpus(Corpus("x", text), batch=4, context=32)
    for step in range(20):
        for tokens, targets in zip(*one.batch(step, 0), strict=True):
            whole = bytes([*tokens.tolist(), int(targets[-1])])
            assert bytes(targets.tolist()) == whole[1:]
            assert whole in text


def test_bits_a_byte_of_a_blind_model_are_those_of_its_alphabet():
    """Equal logits over 256 bytes cost 8 bits a byte, whatever the text."""
    one = text_task()
    assert one.evaluate(Blind(256))["bits_per_byte"] == pytest.approx(8)
    assert one.evaluate(Blind(256))["loss"] == pytest.approx(math.log(256))


class Blind(torch.nn.Module):
    """Gives every token the same probability."""

    def __init__(self, vocab):
        super().__init__()
        self.zero = torch.nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens):
        return self.zero.expand(*tokens.shape, -1)


def test_the_tokens_of_a_bpe_hold_the_bytes_of_the_text():
    pytest.importorskip("tokenizers")
    text = ("def naïve(x): return x  # 漢字 and words, again and again\n" * 3000).encode()
    one = of_corpus(Corpus("x", text), 2, 16, "bpe:400")
    for name, parts in Corpus("x", text).slices().items():
        ids = torch.from_numpy(one.slices[name].tokens.astype(np.int64))
        assert float(one.token_bytes[ids].sum()) == sum(map(len, parts))
    assert one.bytes_per_token > 3
    blind = one.evaluate(Blind(one.vocab_size))
    assert blind["loss"] == pytest.approx(math.log(one.vocab_size), rel=1e-6)


def test_a_bpe_knows_nothing_of_what_is_held_back():
    pytest.importorskip("tokenizers")
    train, held = b"abab " * 360, b"xyzxyzxyzxyz" * 20
    data = b"".join(train[:1800] + held[:200] for _ in range(20))
    one = of_corpus(Corpus("x", data), 2, 8, "bpe:300")
    assert int(one.token_bytes.max()) > 1
    lengths = one.token_bytes[torch.from_numpy(one.slices["report"].tokens.astype(np.int64))]
    assert float(lengths.max()) == 1


# ---------------------------------------------------------------- files


def test_text_jsonl_and_parquet_of_the_same_documents_are_the_same_text(tmp_path):
    documents = ["one two\nthree", "vier fünf"]
    (tmp_path / "a.txt").write_text("\n\n".join(documents), "utf-8")
    rows = [json.dumps({"text": documents[0], "n": 1}), json.dumps(documents[1])]
    (tmp_path / "a.jsonl").write_text("\n".join(rows), "utf-8")
    assert corpus(str(tmp_path / "a.txt")).hash == corpus(str(tmp_path / "a.jsonl")).hash
    arrow = pytest.importorskip("pyarrow", reason="reads parquet")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"n": [1, 2], "text": documents}), tmp_path / "a.parquet")
    assert corpus(str(tmp_path / "a.parquet")).data == corpus(str(tmp_path / "a.txt")).data


@pytest.mark.parametrize("header", [b"", (20240520).to_bytes(4, "little").ljust(1024, b"\0")])
def test_a_bin_file_is_16_bit_token_numbers_with_or_without_a_header(tmp_path, header):
    numbers = (np.arange(30_000) % 700).astype("<u2")
    (tmp_path / "a.bin").write_bytes(header + numbers.tobytes())
    one = task(str(tmp_path / "a.bin"), batch=2, context=16)
    assert one.vocab_size == 700
    tokens, targets = one.batch(0, 0)
    assert bool(((tokens + 1) % 700 == targets).all())
    assert one.evaluate(Blind(700))["bits_per_byte"] is None
    known = task(str(tmp_path / "a.bin"), batch=2, context=16, bytes_per_token=4.0)
    assert known.evaluate(Blind(700))["bits_per_byte"] == pytest.approx(math.log2(700) / 4)


WRONG = {
    "shorter than a batch": ({"data": "grammar:n_bytes=400"}, "fewer than the 2,064 of one batch"),
    "nothing held back": ({"data": "grammar:n_bytes=9000", "context": 100, "batch": 1}, "to judge"),
    "no such name": ({"data": "shakespear"}, "is no corpus and no file of a known kind"),
    "no such file": ({"data": "nowhere.txt"}, "cannot be read: No such file"),
    "no such knob": ({"data": "recall:pears=3"}, "did you mean pairs"),
    "a knob of code": ({"data": "code:seed=3"}, "has no knob seed"),
    "a knob without value": ({"data": "recall:pairs=3,keys"}, "without a value"),
    "too few keys": ({"data": "recall:pairs=30"}, "must be at most keys 16"),
    "no such tokenizer": ({"data": "grammar", "tokenizer": "wordpiece"}, "use bytes or bpe:1024"),
    "a tokenizer of symbols": ({"data": "copy", "tokenizer": "bpe:512"}, "symbols are tokens"),
    "a context of symbols": ({"data": "copy", "context": 64}, "is 32 with the knobs of copy"),
    "no pairs": ({"data": "recall:pairs=0"}, "recall:pairs 0 must be at least 1"),
    "no batch": ({"data": "copy", "batch": 0}, "must be at least 1"),
}


@pytest.mark.parametrize(("asked", "told"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_one_clear_line(asked, told):
    with pytest.raises(FieldError, match=told) as caught:
        task(**asked)
    assert "\n" not in str(caught.value)


def test_a_bpe_of_bytes_that_are_no_text_is_one_clear_line(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(FieldError, match=r"is no UTF-8 text: .*; use --tokenizer bytes"):
        task(str(tmp_path / "a.txt"), tokenizer="bpe:300")


def test_an_empty_or_broken_file_is_one_clear_line(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(FieldError, match="has no text"):
        corpus(str(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"content": "no"}\n')
    with pytest.raises(FieldError, match="line 2 has no text"):
        corpus(str(tmp_path / "a.jsonl"))


# ---------------------------------------------------------------- tasks with knobs


def whole_of(name, **knobs):
    return generated(name, batch_size=64, **knobs).draw(np.random.default_rng(5))


@pytest.mark.parametrize(("name", "n"), [("recall", 1), ("mqar", 4)])
def test_every_question_of_recall_is_answered_by_its_pair(name, n):
    whole, asked = whole_of(name)
    for row, marks in zip(whole, asked, strict=True):
        value_of = dict(zip(row[:16:2], row[1:16:2], strict=True))
        assert len(value_of) == 8
        places = np.flatnonzero(marks)
        assert len(places) == n
        assert all(value_of[row[i - 1]] == row[i] for i in places)


def test_copy_asks_for_the_string_before_the_mark():
    whole, asked = whole_of("copy", length=7, symbols=5)
    assert (whole[:, :7] == whole[:, 8:]).all()
    assert (whole[:, 7] == 5).all()
    assert (np.flatnonzero(asked[0]) == np.arange(8, 15)).all()


@pytest.mark.parametrize("reverse", [0, 1])
def test_the_digits_of_additions_add_up(reverse):
    whole, asked = whole_of("addition", digits=5, reverse=reverse)
    for row, marks in zip(whole, asked, strict=True):
        text = "".join("0123456789+="[i] for i in row)
        left, right = text.split("=")
        a, b = left.split("+")
        assert int(a) + int(b) == int(right[::-1] if reverse else right)
        assert marks.sum() == 6


@pytest.mark.parametrize("hops", [1, 3, 6])
def test_the_answer_of_hops_is_where_so_many_arrows_lead(hops):
    whole, asked = whole_of("hops", nodes=7, hops=hops)
    for row, marks in zip(whole, asked, strict=True):
        leads, at = dict(zip(row[:14:2], row[1:14:2], strict=True)), row[14]
        for _ in range(hops):
            at = leads[at]
        assert at == row[15]
        assert list(np.flatnonzero(marks)) == [15]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_say_their_own_size_and_draw_slices_apart(name):
    one = generated(name, batch_size=8)
    tokens, targets = one.batch(0, 0)
    assert tuple(tokens.shape) == tuple(targets.shape) == (8, one.context)
    assert int(tokens.max()) < one.vocab_size
    assert bool((targets != IGNORED).any())
    drawn = {tuple(one.batch(0, 0, held)[0].flatten().tolist()) for held in STREAMS}
    assert len(drawn) == 3
    assert one.hash != generated(name, **OTHER[name]).hash
    assert one.hash == generated(name, batch_size=99).hash


OTHER = {"recall": {"keys": 17}, "mqar": {"pairs": 9}, "copy": {"length": 3},
         "addition": {"digits": 4}, "hops": {"nodes": 9}}  # fmt: skip


def test_a_blind_model_answers_as_often_as_chance():
    """Equal logits put all weight on symbol 0 for argmax: right where the answer is 0."""
    one = generated("copy", batch_size=256, symbols=4, length=8)
    found = one.evaluate(Blind(5))
    assert found["loss"] == pytest.approx(math.log(5), rel=1e-5)
    assert found["accuracy"] == pytest.approx(1 / 4, abs=0.02)
    assert found["bits_per_byte"] == pytest.approx(math.log2(5), rel=1e-5)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean recall"):
        generated("recal")


def test_the_loss_of_single_tokens_is_not_too_low_where_tokens_are_many(tmp_path):
    """4,096 equally frequent tokens: ln 4096; from 16 thousand counted it would be 0.12 less."""
    tokens_N = np.random.default_rng(0).integers(4096, size=600_000).astype("<u2")
    (tmp_path / "even.bin").write_bytes(tokens_N.tobytes())
    shape = Shape("a", small(1, 8, 8, vocab_size=4096))
    asked = Study("s", "?", (shape,), str(tmp_path / "even.bin"), tokens=1024)
    found = Training("cpu").data(asked.trial(shape, 1e-3, 0, 1024))
    assert found.unigram == pytest.approx(math.log(4096), abs=0.02)


@pytest.mark.parametrize(("data", "tokenizer"), [
    ("grammar:n_bytes=40000", "bytes"), ("hops:nodes=4", "bytes"), ("code", "bpe:512"),
])  # fmt: skip
def test_the_hash_of_data_is_that_of_its_task(data, tokenizer, monkeypatch):
    from scantling.lab import data as module

    library = Corpus("code", b"for x in y:\n    print(x)\n" * 2000)
    monkeypatch.setattr(module, "corpus", lambda name, **k: (
        library if name == "code" else corpus(name, **k)))  # fmt: skip
    shape = Shape("a", small(1, 8, 8))
    asked = Study("s", "?", (shape,), data, tokens=1024, context=9, tokenizer=tokenizer)
    trial = asked.trial(shape, 1e-3, 0, 1024)
    assert Training("cpu").data_hash(trial) == task(data, 16, 9, tokenizer).hash
