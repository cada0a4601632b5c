"""What a model is trained and judged on: the protocol of a task, and small tasks with knobs.

Shapes ride on names: B sequences, T tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scantling.errors import FieldError, UnknownNameError
from scantling.lab.corpus import GENERATED

IGNORED = -100
"""A target that counts in no loss, as torch has it."""
STREAMS = {"train": 0, "choose": 1, "report": 2}
"""Which random stream each slice is drawn from."""
HELD_BATCHES = 8
"""Batches of generated data that a slice is judged on."""

Numbers = NDArray[np.int64]


class Task(Protocol):
    """What to train on and how to judge; batches depend on nothing but step and seed."""

    @property
    def name(self) -> str:
        """Of the data."""

    @property
    def batch_size(self) -> int:
        """Sequences of a step."""

    @property
    def context(self) -> int:
        """Tokens of a sequence."""

    @property
    def vocab_size(self) -> int:
        """Different tokens."""

    @property
    def bytes_per_token(self) -> float | None:
        """Of the training text; None where nobody knows."""

    @property
    def floor_bits_per_byte(self) -> float | None:
        """The least loss there can be, where it is known."""

    @property
    def unique_tokens(self) -> float:
        """Tokens before data repeats; infinite where it is generated."""

    @property
    def hash(self) -> str:
        """Of the data and of how it is cut into tokens."""

    def batch(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of a step, B × T each."""

    def evaluate(self, model: nn.Module, held: str = "report") -> dict[str, float | None]:
        """Loss (nats a token), bits_per_byte and accuracy on ``choose`` or ``report``."""


def read(
    model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, targets and source: an encoder reads the first half, else there is none.

    The decoder then continues with the second half, and only its targets count.
    """
    if getattr(model, "encoder", None) is None:
        return tokens_BT, targets_BT, None
    half = tokens_BT.shape[-1] // 2
    return tokens_BT[:, half:], targets_BT[:, half:], tokens_BT[:, :half]


@torch.no_grad()
def sums(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], token_bytes_V: Tensor | None
) -> dict[str, float | None]:
    """Loss, bits a byte and accuracy over batches of tokens and targets.

    Every target counts the same, and each as many bytes as its token has:
    bits_per_byte = Σ nats / (ln 2 · Σ bytes).

    Args:
        model: Left in the mode it was in.
        batches: Tokens and targets.
        token_bytes_V: Bytes of each token; None where nobody knows.
    """
    device, training = next(model.parameters()).device, model.training
    model.eval()
    nats = right = count = n_bytes = 0.0
    for tokens_BT, targets_BT in batches:
        tokens, targets, source = read(model, tokens_BT.to(device), targets_BT.to(device))
        targets_N = targets.flatten()
        logits = model(tokens) if source is None else model(tokens, source=source)
        logits_NV = logits.flatten(0, -2).float()
        counted_N = targets_N != IGNORED
        nats += float(functional.cross_entropy(logits_NV, targets_N, reduction="sum").double())
        right += float((logits_NV.argmax(-1) == targets_N)[counted_N].sum())
        count += float(counted_N.sum())
        if token_bytes_V is not None:
            n_bytes += float(token_bytes_V[targets_N[counted_N].cpu()].sum())
    model.train(training)
    return {
        "loss": nats / count,
        "bits_per_byte": nats / math.log(2) / n_bytes if n_bytes else None,
        "accuracy": right / count,
    }


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A task whose sequences are drawn anew for every step; a symbol counts as one byte.

    The slices are drawn from streams of their own.
    """

    batch_size: int = 16

    bytes_per_token = 1.0
    floor_bits_per_byte = 0.0
    unique_tokens = math.inf

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, bool) and value < 1:
                raise FieldError(f"{self.name}:{name}", value, "must be at least 1")

    @property
    def name(self) -> str:
        """As it is asked for."""
        return next(name for name, kind in TASKS.items() if kind is type(self))

    @property
    def hash(self) -> str:
        """Of the name and the knobs, but for how many sequences a step has."""
        knobs = {k: v for k, v in asdict(self).items() if k != "batch_size"}
        return hashlib.sha256(f"{self.name} {sorted(knobs.items())}".encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Symbols."""
        raise NotImplementedError

    @property
    def context(self) -> int:
        """Tokens of a sequence."""
        raise NotImplementedError

    def draw(self, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Whole sequences, B × (T + 1), and which of their symbols must be predicted."""
        raise NotImplementedError

    def batch(self, step: int, seed: int, held: str = "train") -> tuple[Tensor, Tensor]:
        """Tokens and targets of a step, B × T each."""
        whole_BU, asked_BU = self.draw(np.random.default_rng((STREAMS[held], seed, step)))
        targets_BT = np.where(asked_BU[:, 1:] > 0, whole_BU[:, 1:], IGNORED)
        return torch.from_numpy(whole_BU[:, :-1].copy()), torch.from_numpy(targets_BT)

    def evaluate(self, model: nn.Module, held: str = "report") -> dict[str, float | None]:
        """Loss, bits_per_byte and accuracy on fresh sequences, always the same ones."""
        batches = (self.batch(i, 0, held) for i in range(HELD_BATCHES))
        return sums(model, batches, torch.ones(self.vocab_size))


def _asked(whole_BU: Numbers, places: Numbers | list[int]) -> Numbers:
    """Marks the places of every sequence."""
    asked_BU = np.zeros_like(whole_BU)
    asked_BU[:, places] = 1
    return asked_BU


def _different(random: np.random.Generator, batch: int, n: int, of: int) -> Numbers:
    """Different numbers below ``of`` in each row, in random order."""
    found: Numbers = random.random((batch, of)).argsort(1)[:, :n]
    return found


@dataclass(frozen=True, kw_only=True)
class Recall(Generated):
    """Associative recall: keys with their values, then some keys again, whose values are asked.

    With one question it is the classic task; with several it is multi-query associative recall
    (MQAR, Arora et al. 2023), where the questions come in random order.

    Example:
        >>> tokens, targets = Recall(batch_size=1, pairs=2, keys=4, values=3).batch(0, 0)
        >>> tokens.tolist(), targets.tolist()
        ([[3, 4, 2, 6, 2]], [[-100, -100, -100, -100, 6]])
    """

    pairs: int = 8
    keys: int = 16
    values: int = 16
    questions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs > self.keys:
            raise FieldError(f"{self.name}:pairs", self.pairs, f"must be at most keys {self.keys}")
        if self.questions > self.pairs:
            raise FieldError(f"{self.name}:questions", self.questions,
                             f"must be at most pairs {self.pairs}")  # fmt: skip

    @property
    def vocab_size(self) -> int:
        """Keys and values share no symbol."""
        return self.keys + self.values

    @property
    def context(self) -> int:
        """Pairs and questions, but for the last answer."""
        return 2 * (self.pairs + self.questions) - 1

    def draw(self, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Key, value, key, value, …, then key, value of the questions."""
        keys_BP = _different(random, self.batch_size, self.pairs, self.keys)
        values_BP = self.keys + random.integers(self.values, size=keys_BP.shape)
        pairs_BP2 = np.stack((keys_BP, values_BP), -1)
        order_BQ = _different(random, self.batch_size, self.questions, self.pairs)
        asked_BQ2 = np.take_along_axis(pairs_BP2, order_BQ[..., None], 1)
        whole_BU = np.concatenate((pairs_BP2, asked_BQ2), 1).reshape(self.batch_size, -1)
        return whole_BU, _asked(whole_BU, np.arange(2 * self.pairs + 1, whole_BU.shape[1], 2))


@dataclass(frozen=True, kw_only=True)
class ManyRecall(Recall):
    """Multi-query associative recall (MQAR): half of the pairs are asked."""

    questions: int = 4


@dataclass(frozen=True, kw_only=True)
class Copy(Generated):
    """A random string, a mark, and the string again, which is asked."""

    length: int = 16
    symbols: int = 16

    @property
    def vocab_size(self) -> int:
        """The symbols and the mark."""
        return self.symbols + 1

    @property
    def context(self) -> int:
        """The string twice and the mark, but for the last symbol."""
        return 2 * self.length

    def draw(self, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        """String, mark, string."""
        string_BL = random.integers(self.symbols, size=(self.batch_size, self.length))
        mark_B1 = np.full((self.batch_size, 1), self.symbols)
        whole_BU = np.concatenate((string_BL, mark_B1, string_BL), 1)
        return whole_BU, _asked(whole_BU, np.arange(self.length + 1, whole_BU.shape[1]))


@dataclass(frozen=True, kw_only=True)
class Addition(Generated):
    """Two numbers and their sum, digit by digit: ``a + b = c``; the digits of c are asked.

    All numbers have their leading zeros, c one digit more than a and b.
    With ``reverse`` the sum is written from its last digit on, as carries go.

    Example:
        >>> whole, _ = Addition(batch_size=1, digits=2, reverse=False).draw(
        ...     np.random.default_rng(3)
        ... )
        >>> "".join("0123456789+="[i] for i in whole[0])
        '80+12=092'
    """

    digits: int = 3
    reverse: bool = True

    @property
    def vocab_size(self) -> int:
        """Ten digits, plus and equals."""
        return 12

    @property
    def context(self) -> int:
        """All of a + b = c, but for the last digit."""
        return 3 * self.digits + 2

    def draw(self, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        """The digits of a, +, those of b, =, those of c."""
        d, batch = self.digits, self.batch_size
        a_Bd, b_Bd = random.integers(10, size=(2, batch, d))
        c_Bs, carry_B = np.zeros((batch, d + 1), dtype=np.int64), np.zeros(batch, dtype=np.int64)
        for i in reversed(range(d)):
            total_B = a_Bd[:, i] + b_Bd[:, i] + carry_B
            c_Bs[:, i + 1], carry_B = total_B % 10, total_B // 10
        c_Bs[:, 0] = carry_B
        if self.reverse:
            c_Bs = c_Bs[:, ::-1]
        plus, equals = (np.full((batch, 1), symbol) for symbol in (10, 11))
        whole_BU = np.concatenate((a_Bd, plus, b_Bd, equals, c_Bs), 1)
        return whole_BU, _asked(whole_BU, np.arange(2 * d + 2, whole_BU.shape[1]))


@dataclass(frozen=True, kw_only=True)
class Hops(Generated):
    """k-hop: the arrows of a random cycle in random order, then where k arrows lead from one node.

    Each arrow is two symbols, from and to; one hop is associative recall.
    """

    nodes: int = 8
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops >= self.nodes:
            raise FieldError("hops:hops", self.hops, f"must be below nodes {self.nodes}",
                             "a cycle leads back")  # fmt: skip

    @property
    def vocab_size(self) -> int:
        """The nodes."""
        return self.nodes

    @property
    def context(self) -> int:
        """All arrows and the start."""
        return 2 * self.nodes + 1

    def draw(self, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        """From, to, from, to, …, then start and end."""
        n, batch = self.nodes, self.batch_size
        cycle_Bn = _different(random, batch, n, n)
        arrows_Bn2 = np.stack((cycle_Bn, np.roll(cycle_Bn, -1, 1)), -1)
        order_Bn = _different(random, batch, n, n)
        shown_Bn2 = np.take_along_axis(arrows_Bn2, order_Bn[..., None], 1)
        start_B = random.integers(n, size=batch)
        ends_B2 = np.stack((start_B, (start_B + self.hops) % n), -1)
        question_B2 = np.take_along_axis(cycle_Bn, ends_B2, 1)
        whole_BU = np.concatenate((shown_Bn2.reshape(batch, -1), question_B2), 1)
        return whole_BU, _asked(whole_BU, [whole_BU.shape[1] - 1])


TASKS: dict[str, type[Generated]] = {
    "recall": Recall, "mqar": ManyRecall, "copy": Copy, "addition": Addition, "hops": Hops,
}  # fmt: skip
"""Generated tasks by the name they are asked for."""
assert tuple(TASKS) == GENERATED


def generated(name: str, **knobs: int) -> Generated:
    """A generated task by name and knobs.

    Raises:
        UnknownNameError: If there is no such task or knob.
        FieldError: If a knob is out of range.

    Example:
        >>> generated("recall", pairs=4, batch_size=2).context
        9
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    kind = TASKS[name]
    known = kind.__dataclass_fields__
    if unknown := set(knobs) - set(known):
        raise UnknownNameError(f"knob of {name}", min(unknown), known)
    return kind(**{k: bool(v) if known[k].type == "bool" else v for k, v in knobs.items()})
