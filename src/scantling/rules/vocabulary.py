"""The vocabulary: padding, size, share and tying (SC501 to SC506)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scantling.arith import round_up
from scantling.laws.vocabulary import best_vocabulary
from scantling.rules.price import exact, faster
from scantling.rules.registry import Fix, Found, Level, rule
from scantling.rules.subject import Subject


def _tables(s: Subject) -> int:
    return 1 if s.legal.tied else 2


def _ends_in_tokens(s: Subject) -> bool:
    """Whether the model ends in a product over the vocabulary."""
    return s.legal.head is not None


@rule("SC501", "vocabulary-padded", "nanogpt-vocabulary", "nvidia-matmul-guide", "megatron-2026",
      "vllm-0.33", "olmo-core-tokenizer")  # fmt: skip
def vocabulary_padded(s: Subject) -> Iterator[Found]:
    """The vocabulary is a multiple of 64, or the framework makes it one.

    The head is a product of V columns, each row of logits V numbers long: an odd V loads two bytes
    at a time. nanoGPT's 50257 → 50304 is the known case. Megatron pads to 128 t, vLLM to 64, OLMo
    to 128: with such a runtime this is a note. The rows added are never read; the gain is the time
    of the whole step with the prior's interval, which reaches down to no gain at all: newer cuBLAS
    handles odd widths better, so measure. Widths that are multiples of 16 bytes are a note.

    Exceptions: 31 of 182 released models, most of them padded when they are trained or served.
    """
    vocab = int(s.legal.vocab_size)
    if vocab % 64 == 0 or not _ends_in_tokens(s):
        return
    pads = 0 if s.runtime is None else s.runtime.pads_vocabulary
    near = int(round_up(vocab, max(64, pads or 128)))
    if near / vocab > 1.005:
        near = int(round_up(vocab, 64))
    key = s.key("vocab_size")
    added = (near - vocab) * int(s.legal.d_model) * _tables(s)
    share = added / max(1, int(s.counted.total))
    keeps = ("params",) if share < 0.01 else ()
    if pads:
        assert s.runtime is not None
        yield Found("info", key, f"{vocab} tokens are padded to {near} by {s.runtime.title}", None,
                    exact(added, "parameters added"), s.runtime.sources)  # fmt: skip
        return
    level: Level = "warning" if vocab % 8 else "info"
    gain = faster(s, "vocab_size", near) if vocab % 8 else None
    fix = Fix(text=f"{key} {near}: {added:,} parameters ({share:.2%}) that no token reads",
              spec={"vocab_size": near}, keeps=keeps)  # fmt: skip
    what = f"a multiple of {math.gcd(vocab, 64)}" if vocab % 2 == 0 else "odd"
    yield Found(level, key, f"a vocabulary of {vocab} is no multiple of 64 ({what}): rows of "
                "logits "
                "are not aligned", fix, gain)  # fmt: skip


@rule("SC502", "vocabulary-law", "tao2024")
def vocabulary_law(s: Subject) -> Iterator[Found]:
    """The vocabulary lies within a factor of four of the law's best.

    Tao et al. (2024): V D = 3 145 728 · (N_nv/33 M)^0.835, fitted from 33 M to 3 B at the tokens
    that are best for compute. Between 16 k and 64 k the valley at 1 B is flat to 0.015 nats, so a
    factor of two is nothing, and one of four a note. Other languages, code and reuse of a
    tokenizer are better reasons than the law.

    Exceptions: models with many languages (Gemma, Qwen), models that are used far beyond 20 tokens
    a parameter, encoders of one language.
    """
    p = s.counted
    body = float(p.total) - float(p.embedding) - float(p.lm_head)
    if body < 33e6 or not _ends_in_tokens(s):
        return
    best = best_vocabulary(body, float(s.legal.d_model))
    vocab = int(s.legal.vocab_size)
    times = vocab / best.best
    if 0.25 <= times <= 4:
        return
    far = "larger" if times > 1 else "smaller"
    ratio = max(times, 1 / times)
    outside = "; the body is outside what it was fitted to" if best.outside else ""
    yield Found("info", s.key("vocab_size"), f"a vocabulary of {vocab} is {ratio:.1f} times {far} "
                f"than the law's {best.best} (flat from {best.low} to "
                            f"{best.high}){outside}")  # fmt: skip


@rule("SC503", "tie-tables", "mobilellm2024", "press2017", "gemstones2025")
def tie_tables(s: Subject) -> Iterator[Found]:
    """Where one table is more than 15 % of the parameters, input and output share it.

    At equal body tying moves the loss by −0.011 to +0.010 nats, opposite signs in two tables; at
    equal total a second table costs its V D parameters of body. Table of released models: 22 of 25
    tie above 8 %. The gain is the memory of the second table.

    Exceptions: large vocabularies over small bodies that are trained very long.
    """
    spec = s.legal
    if spec.tied or not _ends_in_tokens(s) or spec.embeddings.audio is not None:
        return
    table = int(spec.vocab_size) * int(spec.d_model)
    share = table / max(1, int(s.counted.total))
    if share <= 0.08:
        return
    level: Level = "warning" if share > 0.25 else "info"
    yield Found(level, s.key("tied"), f"each of two tables is {share:.0%} of the parameters",
                Fix(text=f"{s.key('tied')} true: {table:,} parameters less",
                    spec={}), exact(2 * table, "bytes in 16 bits"))  # fmt: skip


@rule("SC504", "embedding-share", "tao2024", "mobilellm2024")
def embedding_share(s: Subject) -> Iterator[Found]:
    """The tables are less than half of the model.

    What a token passes is the body. Where tables outweigh it the vocabulary is too large for the
    model, or the model a by-product of its tokenizer (Gemma 3 270M: 63 %).

    Exceptions: Gemma 3 270M; multilingual encoders.
    """
    p = s.counted
    tables = float(p.embedding) + float(p.lm_head)
    share = tables / max(1.0, float(p.total))
    if share > 0.5 and _ends_in_tokens(s):
        best = best_vocabulary(max(float(p.total) - tables, 1.0), float(s.legal.d_model))
        level: Level = "warning" if share > 0.7 else "info"
        yield Found(level, s.key("vocab_size"), f"{share:.0%} of the parameters are tables of "
                    f"{int(s.legal.vocab_size)} tokens",
                    Fix(text=f"a vocabulary near {best.best}, or a narrower table"))  # fmt: skip


@rule("SC505", "special-tokens", "transformers", reads="config")
def special_tokens(s: Subject) -> Iterator[Found]:
    """Ids of special tokens lie inside the vocabulary.

    ``pad_token_id`` becomes the padding index of the embedding in most classes: PyTorch refuses one
    outside the table (GPT-2 and its like do not ask). A beginning or end outside it is never made,
    so generation does not stop.

    Exceptions: −1, as some configs write none.
    """
    vocab, config = s.raw.whole("vocab_size"), s.raw.config
    if vocab is None:
        return
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        found = config.get(key)
        ids = found if isinstance(found, list) else [found]
        wrong = [n for n in ids if type(n) is int and n >= vocab]
        if wrong:
            yield Found("warning", key, f"{key} {wrong[0]} lies outside the vocabulary of {vocab}",
                        Fix(text=f"an id below {vocab}, or a larger vocabulary"))  # fmt: skip


@rule("SC506", "vocabulary-small", "tao2024")
def vocabulary_small(s: Subject) -> Iterator[Found]:
    """A vocabulary below 256 cannot say every byte.

    Byte-level tokenizers need 256 entries and their special tokens; below that only closed
    alphabets (proteins, digits) are complete.

    Exceptions: characters and proteins: nanoGPT's Shakespeare (65), ESM (33).
    """
    vocab = int(s.legal.vocab_size)
    if vocab < 256 and _ends_in_tokens(s) and s.legal.embeddings.audio is None:
        yield Found("info", s.key("vocab_size"), f"a vocabulary of {vocab} cannot hold every byte")
