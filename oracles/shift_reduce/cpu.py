"""The kernel of policies of shift-reduce derivations; all else their hypergraph gives."""

import math

import numpy as np

from ..kernels.compilation import Array, compiled


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: a state costs about six, with its exponential."""
    return 3 * event[0] * event[0]


@compiled
def potentials(rows: Array, potentials: Array) -> None:
    """Log-probabilities of a policy: at each state the log-softmax over the actions that can still complete a derivation."""
    size = rows.shape[1]
    completable = np.zeros((size + 1, size + 1), np.bool_)
    for b in range(rows.shape[0]):
        completable[size - 1, 1] = True
        for i in range(size - 1, -1, -1):
            for d in range(min(i, 1), i + 1):
                shift = completable[i + 1, d + 1] and rows[b, i, d, 0] > -math.inf
                reduce = d > 1 and completable[i, d - 1] and rows[b, i, d, 1] > -math.inf
                completable[i, d] = shift or reduce or (i == size - 1 and d == 1)
                lead = np.float64(rows[b, i, d, 0]) - rows[b, i, d, 1] if shift and reduce else 0.0
                total = math.log1p(math.exp(-abs(lead))) if shift and reduce else 0.0
                if i < size - 1:
                    potentials[b, i, d, 0] = min(lead, 0.0) - total if shift else -math.inf
                if d > 1:
                    potentials[b, i, d, 1] = min(-lead, 0.0) - total if reduce else -math.inf
