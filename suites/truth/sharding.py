"""The exact gradient of a large space in several processes, range by range: whole ranges outlast a kill."""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...estimators.base import Loss
from ...oracles.capabilities import EnumerableOracle
from .comoments import CoMoments, merge
from .enumeration import CAP, Truth, truth_of
from .limits import check_cap
from .space import Space

FORMAT = 1
"""Raised when what a range holds changes its meaning: files of another format are not found."""

SHARD = 2**18
"""Structures of a range, unless a caller asks for another number of ranges."""

FEWEST = 16
"""Ranges of a small space, so that several workers have something to do."""

PROBES = 64
"""Structures, from the first to the last, whose losses tell losses apart."""

Range = tuple[int, int]
Arrays = dict[str, np.ndarray]


def sharded_truth(  # noqa: PLR0913 - what to enumerate, and how the work is laid out
    loss: Loss,
    oracle: EnumerableOracle,
    scores: Tensor,
    *,
    jobs: int,
    directory: Path | str | None = None,
    shards: int | None = None,
    key: str | None = None,
    cap: int = CAP,
) -> Truth:
    """`exact_truth`, without the kurtosis, by spawned workers of one thread over disjoint ranges of ranks.

    The result depends on the number of ranges in its last digits, and on nothing else: neither on the number of workers nor on the order in
    which they finish. A program that calls this needs the usual ``if __name__ == "__main__":``.

    Args:
        loss: ``[..., *event] -> [...]``; a function of a module, or an instance of a class in one, so that it can be sent to workers.
        oracle: lists the structures.
        scores: ``[*event]``, on the CPU.
        jobs: worker processes; 0 works in this one.
        directory: where finished ranges are kept, one file each, written whole or not at all: the same call goes on from there.
        shards: number of ranges; when None, one for `SHARD` structures, `FEWEST` at least.
        key: names the loss in the names of the files; when None, what it pickles to and its value at some structures do.
        cap: refuse spaces that are larger.

    Raises:
        ValueError: more structures than the cap, no feasible structure, or a loss that cannot be sent.
        RuntimeError: a worker died; the message names the range, and finished ranges are kept.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, costs = torch.linspace(-1, 1, 8, dtype=torch.float64), torch.arange(8.0, dtype=torch.float64)
        >>> sharded_truth(lambda z: z @ costs, Subset(4), scores, jobs=0, key="costs").count
        70
    """
    space = Space(loss, oracle, scores)
    check_cap("sharded_truth", space, cap)
    if jobs < 0 or (shards is not None and shards < 1):
        raise ValueError(f"`sharded_truth` got jobs={jobs}, shards={shards}; expected jobs >= 0 and shards >= 1")
    work = ranges(space.count, shards)
    folder = None if directory is None else Path(directory) / content_key(space, key)
    found = {each: part for each in work if (part := _stored(folder, each)) is not None}
    found |= dict(_finished(space, [each for each in work if each not in found], folder, jobs))
    return truth_of(space, merge([found[each] for each in work]), None)


def ranges(count: int, shards: int | None = None) -> list[Range]:
    """Disjoint ranges of ranks that cover a space, of nearly equal size.

    Example:
        >>> ranges(10, 3)
        [(0, 3), (3, 6), (6, 10)]
    """
    number = min(count, shards or max(FEWEST, -(-count // SHARD)))
    return list(pairwise(count * i // number for i in range(number + 1)))


def content_key(space: Space, key: str | None = None) -> str:
    """A name for everything that the sums over a range depend on: oracle, scores, loss, chunk."""
    digest = hashlib.blake2b(digest_size=16)
    oracle = f"{type(space.oracle).__module__}.{type(space.oracle).__qualname__} {space.oracle!r}"
    for piece in (str(FORMAT), oracle, str(space.event), str(space.chunk), _bytes(space.scores), key or _loss_bytes(space)):
        data = piece.encode() if isinstance(piece, str) else piece
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


def _loss_bytes(space: Space) -> bytes:
    steps = min(PROBES, space.count)
    ranks = [rank * (space.count - 1) // max(steps - 1, 1) for rank in range(steps)]
    structures = torch.cat([space.oracle.enumerate(space.event, rank, rank + 1, dtype=torch.float64) for rank in ranks])
    return _bytes(space.loss(structures).detach().double()) + _pickled(space.loss)


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().cpu().numpy().tobytes()


def _pickled(loss: Loss) -> bytes:
    try:
        return pickle.dumps(loss)
    except Exception as error:  # what a pickle raises is up to the pickled
        raise ValueError(
            f"`sharded_truth` got a loss that cannot be sent to workers ({error}); expected a function of a module, or an instance of a "
            "class in one; with jobs=0 and key= any loss will do"
        ) from error


def _finished(space: Space, missing: list[Range], folder: Path | None, jobs: int) -> Iterator[tuple[Range, CoMoments]]:
    """The sums over ranges, as they are found."""
    if jobs == 0:
        for each in missing:
            sums = space.sums(*each)
            _store(folder, each, asdict(sums))
            yield each, sums
    elif missing:
        yield from _pooled(space, missing, folder, jobs)


def _pooled(space: Space, missing: list[Range], folder: Path | None, jobs: int) -> Iterator[tuple[Range, CoMoments]]:
    """By workers that build the space once; the first failure stops them all, and what they have finished is kept."""
    from pebble import ProcessPool  # asked for where workers are, so that everything else does without it

    _pickled(space.loss)
    given = pickle.dumps((space.loss, space.oracle, space.scores, space.chunk))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPool(max_workers=min(jobs, len(missing)), context=context, initializer=_begin, initargs=(given, folder))
    try:
        futures: dict[Future[Arrays], Range] = {pool.schedule(_work, args=each): each for each in missing}
        pending = set(futures)
        while pending:
            completed, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in completed:
                arrays = _result(future, futures[future], folder)
                yield futures[future], CoMoments(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    finally:
        pool.stop()
        pool.join()


def _result(future: Future[Arrays], each: Range, folder: Path | None) -> Arrays:
    from pebble import ProcessExpired

    try:
        return future.result()
    except ProcessExpired as error:
        kept = "pass directory= to keep finished ranges" if folder is None else f"finished ranges are in {folder}, call again to go on"
        raise RuntimeError(
            f"`sharded_truth` lost the worker of structures {each[0]} to {each[1]} (exit code {error.exitcode}); {kept}"
        ) from error


_given: bytes = b""
_folder: Path | None = None


def _begin(given: bytes, folder: Path | None) -> None:
    """Prepare a worker; what could go wrong is left to its first range, where it is reported."""
    global _given, _folder  # a worker serves one call
    torch.set_num_threads(1)
    _given, _folder = given, folder


@lru_cache(maxsize=1)
def _space(given: bytes) -> Space:
    return Space(*pickle.loads(given))


def _work(start: int, stop: int) -> Arrays:
    """The sums over a range as arrays: tensors would be sent as shared memory, which a worker that dies takes with it."""
    sums = asdict(_space(_given).sums(start, stop))
    _store(_folder, (start, stop), sums)
    return {name: value.numpy() for name, value in sums.items()}


def _store(folder: Path | None, each: Range, sums: dict[str, Tensor]) -> None:
    """Write a range so that it is there whole or not at all."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as stream:
        torch.save(sums, stream)
    Path(stream.name).replace(_path(folder, each))


def _stored(folder: Path | None, each: Range) -> CoMoments | None:
    if folder is None or not _path(folder, each).exists():
        return None
    return CoMoments(**torch.load(_path(folder, each), weights_only=True))


def _path(folder: Path, each: Range) -> Path:
    return folder / f"{each[0]}-{each[1]}.pt"
