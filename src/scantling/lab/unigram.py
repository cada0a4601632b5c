"""The loss of a model that knows how often each token is, and no context."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scantling.lab.tasks import IGNORED, Task

COUNTED_TOKENS = 2**18
"""Of the training data: 64 for each of 4,096 tokens, which leaves the loss 0.008 nats too high."""


class Unigram(nn.Module):
    """The same logits at every place.

    Args:
        log_shares_V: Logarithms of the share of each token.
    """

    def __init__(self, log_shares_V: Tensor) -> None:
        super().__init__()
        self.log_shares_V = nn.Parameter(log_shares_V, requires_grad=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits, B × T × V."""
        return self.log_shares_V.expand(*tokens_BT.shape, -1)


def unigram_loss(task: Task) -> float | None:
    """Its loss on what is reported, nats a token; each token counts once more than it was seen.

    On the counted tokens themselves it would be too low, by half a nat a token seen over their
    number: 0.17 for 4,096 tokens and 16 thousand counted.

    Example:
        >>> from scantling.lab.data import task
        >>> round(unigram_loss(task("copy:length=4,symbols=8", batch=16)), 2)
        2.08
    """
    counts_V = torch.ones(task.vocab_size, dtype=torch.float64)
    n = min(COUNTED_TOKENS, task.unique_tokens)
    for step in range(math.ceil(n / (task.batch_size * task.context))):
        targets_N = task.batch(step, 0)[1].flatten()
        counts_V += torch.bincount(targets_N[targets_N != IGNORED], minlength=task.vocab_size)
    model = Unigram((counts_V / counts_V.sum()).log().float())
    return task.evaluate(model, "report")["loss"]
