"""Attention as a graph: which tokens are near each other, and how tightly.

Tokens are nodes; two are joined where the later one gives the earlier one at least an even share
of its attention, one over the number of keys it sees, on the mean over heads. No published
definition stands behind the path lengths that are told of transformers, so this one is stated.
"""

from __future__ import annotations

import torch
from torch import Tensor


def path_length(edges_NN: Tensor) -> tuple[float | None, float]:
    """The mean number of edges between connected nodes, and the share of pairs that are connected.

    Args:
        edges_NN: Which nodes are joined, symmetric, nothing on the diagonal.

    Returns:
        None for the length where no two nodes are connected.

    Example:
        >>> line = torch.diag(torch.ones(3, dtype=torch.bool), 1)  # 0 1 2 3 in a row
        >>> path_length(line | line.T)  # (3·1 + 2·2 + 1·3) / 6
        (1.6666666666666667, 1.0)
    """
    n = len(edges_NN)
    step = edges_NN.float()
    reached = torch.eye(n, dtype=torch.bool, device=edges_NN.device)
    front, length, pairs, total = reached, 0, 0, 0
    while front.any():
        front = (front.float() @ step > 0) & ~reached
        reached = reached | front
        length += 1
        new = int(front.sum())
        pairs, total = pairs + new, total + new * length
    most = n * (n - 1)
    return (total / pairs if pairs else None), (pairs / most if most else 0.0)


def clustering(edges_NN: Tensor) -> float:
    """The mean share of a node's neighbours that are joined (Watts and Strogatz 1998).

    Nodes with fewer than two neighbours count as 0.

    Example:
        >>> clustering(~torch.eye(4, dtype=torch.bool))
        1.0
    """
    e = edges_NN.double()
    degree = e.sum(-1)
    triangles = ((e @ e) * e).sum(-1)
    possible = degree * (degree - 1)
    local = torch.where(possible > 0, triangles / possible.clamp(min=1), torch.zeros_like(degree))
    return float(local.mean())
