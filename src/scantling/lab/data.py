"""A corpus as tokens: bytes, a BPE trained on the training part, or a file of token numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantling.errors import FieldError
from scantling.lab.corpus import BLOCKS, SHARES, Corpus, corpus, cuts
from scantling.lab.tasks import TASKS, Task, generated, sums
from scantling.laws.measured_text import parts as parts_of
from scantling.units import parse_count

BATCH, CONTEXT = 16, 128
"""Sequences of a step and tokens of a sequence where nothing is said."""
JUDGED_TOKENS = {"choose": 2**16, "report": 2**16}
"""Tokens at most that slices are judged on, in windows spread over all of them."""
MAGIC, HEADER_BYTES = 20240520, 1024
"""What llm.c begins a file of token numbers with; nanoGPT writes no header."""

Numbers = NDArray[np.uint16]


@dataclass(frozen=True)
class Windows:
    """The stretches of a slice, which windows of tokens never leave."""

    tokens: Numbers
    starts: NDArray[np.int64]
    """Where each window of T + 1 tokens begins, without overlap of what is predicted."""


def windows(parts: list[Numbers], context: int) -> Windows:
    """Cut stretches of tokens into windows of T tokens with the one that follows each.

    Example:
        >>> found = windows([np.arange(9, dtype=np.uint16), np.arange(4, dtype=np.uint16)], 4)
        >>> found.starts.tolist()
        [0, 4]
    """
    starts, at = [], 0
    for part in parts:
        starts.append(at + np.arange(0, len(part) - context, context))
        at += len(part)
    none = np.zeros(0, dtype=np.int64)
    return Windows(
        np.concatenate(parts) if parts else none.astype(np.uint16), np.concatenate([*starts, none])
    )


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Predict the next token of a text.

    Training windows are drawn without return: every token is seen once before any is seen twice,
    in an order that seed and round tell.
    """

    name: str
    tokenizer: str
    batch_size: int
    context: int
    vocab_size: int
    hash: str
    slices: dict[str, Windows] = field(repr=False)
    token_bytes: Tensor | None = field(repr=False)
    bytes_per_token: float | None
    floor_bits_per_byte: float | None = None
    judged_tokens: Mapping[str, int] = field(default_factory=lambda: JUDGED_TOKENS)

    @property
    def unique_tokens(self) -> float:
        """Tokens of the training part that are predicted."""
        return len(self.slices["train"].starts) * self.context

    def batch(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of a step, B × T each."""
        n = len(self.slices["train"].starts)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        chosen = [self._order(seed, int(p // n))[p % n] for p in places]
        return self._cut("train", np.array(chosen))

    def _order(self, seed: int, turn: int) -> NDArray[np.int64]:
        """The windows of a round in the order they are drawn; the last two rounds are kept."""
        kept: dict[tuple[int, int], NDArray[np.int64]] = self.__dict__.setdefault("_kept", {})
        if (seed, turn) not in kept:
            while len(kept) > 1:
                kept.pop(next(iter(kept)))
            n = len(self.slices["train"].starts)
            kept[seed, turn] = np.random.default_rng((seed, turn)).permutation(n)
        return kept[seed, turn]

    def _cut(self, name: str, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        one = self.slices[name]
        at_BU = one.starts[chosen][:, None] + np.arange(self.context + 1)
        whole_BU = torch.from_numpy(one.tokens[at_BU].astype(np.int64))
        return whole_BU[:, :-1], whole_BU[:, 1:]

    def evaluate(self, model: nn.Module, held: str = "report") -> dict[str, float | None]:
        """Loss, bits_per_byte and accuracy on a slice that is not trained on.

        At most ``judged_tokens`` are judged, 65,536 by default, in windows spread evenly over it.
        """
        n = len(self.slices[held].starts)
        judged = min(n, max(1, self.judged_tokens[held] // self.context))
        spread = np.arange(judged) * n // judged
        batches = (
            self._cut(held, spread[i : i + self.batch_size])
            for i in range(0, judged, self.batch_size)
        )
        return sums(model, batches, self.token_bytes)


def task(
    data: str, batch: int | None = None, context: int | None = None, tokenizer: str = "bytes",
    bytes_per_token: float | None = None,
) -> Task:  # fmt: skip
    """A task by name.

    Args:
        data: ``code``, ``grammar``, a file of text (see ``corpus``), a ``.bin`` file of token
            numbers, or a generated task (``recall``, ``mqar``, ``copy``, ``addition``, ``hops``);
            with knobs after a colon: ``recall:pairs=16,keys=64``.
        batch: Sequences of a step, 16 by default.
        context: Tokens of a sequence, 128 by default; that of a generated task follows from its
            knobs.
        tokenizer: ``bytes``, or ``bpe:1024``: a byte-level BPE of so many tokens, trained on the
            training part alone.
        bytes_per_token: Of a ``.bin`` file, whose text nobody knows: without it there are no bits
            per byte.

    Raises:
        FieldError: If there is no such data, or it is shorter than one batch.

    Example:
        >>> one = task("grammar:n_bytes=100000", batch=4, context=32)
        >>> tokens, targets = one.batch(0, seed=0)
        >>> tuple(tokens.shape), bool((tokens[:, 1:] == targets[:, :-1]).all())
        ((4, 32), True)
        >>> task("copy:length=4").context
        8
    """
    name, knobs = _asked(data)
    batch = BATCH if batch is None else batch
    if batch < 1:
        raise FieldError("batch", batch, "must be at least 1")
    if context is not None and context < 1:
        raise FieldError("context", context, "must be at least 1")
    if name in TASKS:
        return _generated(name, knobs, batch, context, tokenizer)
    context = CONTEXT if context is None else context
    if name.lower().endswith(".bin"):
        return _numbered(Path(name), batch, context, bytes_per_token)
    if bytes_per_token is not None:
        raise FieldError("bytes_per_token", bytes_per_token, "is measured on text",
                         "give it with a .bin file")  # fmt: skip
    return of_corpus(corpus(name, **knobs), batch, context, tokenizer)


def _asked(data: str) -> tuple[str, dict[str, int]]:
    """A name and its knobs."""
    name, colon, rest = data.partition(":")
    if not colon or "=" not in rest:
        return data, {}
    knobs = {}
    for text in rest.split(","):
        knob, sign, value = text.partition("=")
        if not sign:
            raise FieldError("data", data, f"has a knob {text} without a value", "write knob=value")
        knob = knob.strip()
        knobs[knob] = int(value) if value.isdecimal() else parse_count(value, f"{name}:{knob}")
    return name, knobs


def _generated(
    name: str, knobs: dict[str, int], batch: int, context: int | None, tokenizer: str
) -> Task:
    found = generated(name, batch_size=batch, **knobs)
    if context not in {None, found.context}:
        raise FieldError("context", context, f"is {found.context} with the knobs of {name}",
                         "change the knobs")  # fmt: skip
    if tokenizer != "bytes":
        raise FieldError("tokenizer", tokenizer, f"does not go with {name}, whose symbols are "
                         "tokens")  # fmt: skip
    return found


def of_corpus(text: Corpus, batch: int, context: int, tokenizer: str = "bytes") -> TextTask:
    """A corpus as a task.

    Raises:
        FieldError: If a slice is shorter than a window, or the training part than a batch.
    """
    parts = text.slices()
    encode, token_bytes_V = _tokenizer(tokenizer, parts["train"], text.name)
    tokens = {name: [encode(part) for part in parts[name]] for name in SHARES}
    n_train = sum(len(p) for p in tokens["train"])
    found = TextTask(
        name=text.name, tokenizer=tokenizer, batch_size=batch, context=context,
        vocab_size=len(token_bytes_V), token_bytes=token_bytes_V,
        hash=_hash(text, tokenizer),
        slices={name: windows(p, context) for name, p in tokens.items()},
        bytes_per_token=sum(map(len, parts["train"])) / max(n_train, 1),
        floor_bits_per_byte=text.floor_bits_per_byte,
    )  # fmt: skip
    return _long_enough(found, n_train)


def _hash(text: Corpus, tokenizer: str) -> str:
    return hashlib.sha256(f"{text.hash} {tokenizer}".encode()).hexdigest()


def text_hash(data: str, tokenizer: str = "bytes") -> str | None:
    """The hash of a task of a text, which is not cut into tokens for it; None of other data.

    Example:
        >>> text_hash("grammar:n_bytes=100000") == task("grammar:n_bytes=100000").hash
        True
    """
    name, knobs = _asked(data)
    if name in TASKS or name.lower().endswith(".bin"):
        return None
    return _hash(corpus(name, **knobs), tokenizer)


def _long_enough(one: TextTask, n_train: int) -> TextTask:
    """The task, if there is a batch to train on and a window to judge on."""
    need = one.batch_size * (one.context + 1)
    if len(one.slices["train"].starts) < one.batch_size:
        raise FieldError("data", one.name, f"has {n_train:,} tokens to train on, fewer than the "
                         f"{need:,} of one batch",
                         "give more text, or lower batch or context")  # fmt: skip
    for name in ("choose", "report"):
        if not len(one.slices[name].starts):
            longest = len(one.slices[name].tokens) // BLOCKS
            raise FieldError("data", one.name, f"has no {one.context + 1:,} tokens on end to judge "
                             f"on: {longest:,} of each twentieth are held back to {name}",
                             "give more text, or lower context")  # fmt: skip
    return one


def _tokenizer(
    name: str, train: list[bytes], text: str
) -> tuple[Callable[[bytes], Numbers], Tensor]:
    """From bytes to token numbers, and the bytes of each token."""
    kind, _, size = name.partition(":")
    if kind == "bytes" and not size:
        return lambda part: np.frombuffer(part, np.uint8).astype(np.uint16), torch.ones(256)
    if kind != "bpe":
        raise FieldError("tokenizer", name, "is not known", "use bytes or bpe:1024")
    vocab_size = parse_count(size or "1024", "tokenizer bpe")
    if not 256 <= vocab_size <= 2**16:
        raise FieldError("tokenizer", name, "must have 256 to 65,536 tokens")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise FieldError("tokenizer", name, "needs tokenizers",
                         "pip install 'scantling[text]', or use bytes") from None  # fmt: skip
    one = Tokenizer(models.BPE())
    one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    one.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    one.train_from_iterator((t for p in train for t in parts_of(_decoded(p, text))), trainer)
    # Its alphabet writes each byte as one character, so a token has as many bytes as characters.
    token_bytes_V = torch.zeros(one.get_vocab_size())
    for token, i in one.get_vocab().items():
        token_bytes_V[i] = len(token)

    def encode(part: bytes) -> Numbers:
        ids: list[int] = []
        for found in one.encode_batch(list(parts_of(_decoded(part, text)))):
            ids += found.ids
        return np.array(ids, dtype=np.uint16)

    return encode, token_bytes_V


def _decoded(part: bytes, name: str) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        raise FieldError("data", name, f"is no UTF-8 text: {error.reason}",
                         "use --tokenizer bytes") from error  # fmt: skip


def _numbered(path: Path, batch: int, context: int, bytes_per_token: float | None) -> TextTask:
    """A file of token numbers, 16 bits each: nanoGPT's ``.bin``, or llm.c's with its header."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FieldError("data", str(path), f"cannot be read: {error.strerror}") from error
    if len(data) >= HEADER_BYTES and int.from_bytes(data[:4], "little") == MAGIC:
        data = data[HEADER_BYTES:]
    if len(data) % 2 or not data:
        raise FieldError("data", str(path), "is no file of 16-bit token numbers")
    tokens_N = np.frombuffer(data, "<u2")
    vocab_size = int(tokens_N.max()) + 1
    parts: dict[str, list[Numbers]] = {name: [] for name in SHARES}
    for name, start, end in cuts(len(tokens_N)):
        parts[name].append(tokens_N[start:end])
    known = None if bytes_per_token is None else torch.full((vocab_size,), bytes_per_token)
    found = TextTask(
        name=path.name, tokenizer="numbers", batch_size=batch, context=context,
        vocab_size=vocab_size, hash=hashlib.sha256(data).hexdigest(), token_bytes=known,
        slices={name: windows(p, context) for name, p in parts.items()},
        bytes_per_token=bytes_per_token,
    )  # fmt: skip
    return _long_enough(found, sum(len(p) for p in parts["train"]))


def describe(one: Task) -> dict[str, Any]:
    """What goes with every result about its data."""
    return {
        "name": one.name, "hash": one.hash, "vocab_size": one.vocab_size,
        "bytes_per_token": one.bytes_per_token,
        "floor_bits_per_byte": one.floor_bits_per_byte,
        "unique_tokens": None if math.isinf(one.unique_tokens) else one.unique_tokens,
        "tokenizer": getattr(one, "tokenizer", "symbols"),
    }  # fmt: skip
