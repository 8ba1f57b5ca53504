"""Seeds: every block of replicates has a seed of its own, named by its purpose.

A block's key holds stable names (problem, stage, instance, slot) and the number of the block, never the estimator, the worker or the
order of work. So results do not depend on batch size, workers, order or resumption, and estimators share their random numbers.
"""

import hashlib

import numpy as np
import torch

from ...oracles.random_streams import SeedBlocks

BLOCK = 128  # Replicates per stream. Part of the protocol: another value gives other random numbers.


def seed_sequence(entropy: int, *names: str) -> np.random.SeedSequence:
    """The seed sequence of a name path below a root seed."""
    words = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) for name in names]
    return np.random.SeedSequence(entropy, spawn_key=tuple(words))


def generator(entropy: int, *names: str, device: torch.device | str = "cpu") -> torch.Generator:
    """One generator for one purpose."""
    return torch.Generator(device).manual_seed(int(seed_sequence(entropy, *names).generate_state(1, np.uint64)[0]))


def seed_blocks(key: np.random.SeedSequence, first_row: int, rows: int, device: torch.device | str = "cpu") -> SeedBlocks:
    """The streams of replicates ``first_row`` to ``first_row + rows``; ``first_row`` is a multiple of `BLOCK`."""
    first, last = first_row // BLOCK, -(-(first_row + rows) // BLOCK)
    # One hash per block: a seed sequence of its own takes twenty times as long, which shows at a million replicates.
    root = key.generate_state(8, np.uint64).tobytes()
    digests = [hashlib.blake2b(block.to_bytes(8, "little"), key=root, digest_size=8).digest() for block in range(first, last)]
    return SeedBlocks(tuple(int.from_bytes(digest, "little") for digest in digests), BLOCK, device)
