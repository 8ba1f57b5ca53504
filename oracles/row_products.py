"""Products of matrices whose rounding nothing but a row itself decides."""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS = 2**17
"""How many products of two numbers are held at a time: what the cache of a core holds."""


def row_products(rows: Tensor, matrix: Tensor) -> Tensor:
    """``rows @ matrix.mT``, where no bit of a row's results depends on how many rows there are, or on the others.

    Libraries of linear algebra choose the order of their sums by the sizes of both matrices, and differently on every processor.

    Args:
        rows: [..., d].
        matrix: [r, d].

    Returns:
        [..., r].

    Example:
        >>> row_products(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 3.0]]))
        tensor([[2.],
                [5.]])
    """
    # Side by side in memory: the sum over another layout is taken for several rows at once, and for the last ones in another order.
    pieces = rows.reshape(-1, rows.shape[-1]).contiguous().split(max(1, NUMBERS // matrix.numel()))
    products = [(piece.unsqueeze(-2) * matrix).sum(-1) for piece in pieces]
    return (products[0] if len(products) == 1 else torch.cat(products)).reshape(*rows.shape[:-1], len(matrix))
