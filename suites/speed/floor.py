"""A time that no implementation can beat on this machine: bytes that must move, and multiply-adds that must be done."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from .cases import Case


@dataclass(frozen=True)
class MachineLimits:
    """What one thread does at best.

    Attributes:
        bytes_per_second: of a large copy, read and written bytes together.
        multiply_adds_per_second: of a float32 matrix product.
    """

    bytes_per_second: float
    multiply_adds_per_second: float


def measure_machine(repeats: int = 5) -> MachineLimits:
    """Measure a copy of 64 MB and a product of 512 x 512 matrices: the best of some repeats, in CPU time."""
    source, target = np.ones(8_000_000), np.empty(8_000_000)
    matrix = torch.ones(512, 512)
    copies, products = [], []
    for _ in range(repeats):
        start = time.process_time()
        np.copyto(target, source)
        copies.append(time.process_time() - start)
        start = time.process_time()
        for _ in range(5):
            matrix @ matrix
        products.append((time.process_time() - start) / 5)
    return MachineLimits(2 * source.nbytes / min(copies), 512**3 / min(products))


def floor(case: Case, operation: str, batch: int, machine: MachineLimits) -> float:
    """Seconds that the bytes of inputs and results, or the arithmetic of one pass over the structure, take at least."""
    tensor = 4.0 * batch * math.prod(case.event)
    indices = 8.0 * batch * math.prod(case.oracle.index_shape(case.event))
    written: dict[str, float] = {
        "log_partition": 0.0,
        "argmax_indices": indices,
        "sample64": 64 * tensor,
        "sample64_indices": 64 * indices,
        "kbest16": 16 * tensor,
        "marginals_backward": 2 * tensor,
        "project_backward": 2 * tensor,
    }
    passes = {"argmax": 0.0, "argmax_indices": 0.0, "project": 0.0, "project_backward": 0.0, "marginals": 2.0, "marginals_backward": 4.0}
    moved = (tensor + written.get(operation, tensor)) / machine.bytes_per_second
    return max(moved, passes.get(operation, 1.0) * batch * case.multiply_adds / machine.multiply_adds_per_second)
