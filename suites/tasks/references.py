"""Results of training that are computed once on a machine: floors, ceilings, pretrained decoders, and the exact run."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...estimators import ExactMarginalisation, LeaveOneOut, make_estimator
from ...estimators.base import Estimator
from ...oracles.sources import digest_of, source_of
from ...user_cache import user_cache
from ..statistics.adaptive import write_whole
from .task import LatentModel, Task
from .training import Job, Training, event_shape

try:
    import fcntl
except ImportError:  # no lock: two processes may compute the same
    fcntl = None  # type: ignore[assignment]

LEARNT_STAGES: dict[str, float] = {"init": 0.0, "early": 0.1, "final": 1.0}  # stages of a run, each with the share of the steps before it
LONGEST_LIST = 1000  # most structures that an exact gradient sums over; with more, a mean over many samples replaces it

LONGEST_TRAINING_LIST = 256
"""Most structures for the exact gradient of every training step: a run over the 429 trees of `listops` takes 500 s."""

MANY_SAMPLES = 16

_T = TypeVar("_T")


def bounds(task: Task, seed: int) -> tuple[float, float]:
    """Floor and ceiling of a task with a seed."""
    return remembered(task, ("bounds", seed), lambda: (task.at(seed).floor(seed), task.at(seed).ceiling(seed)))


def reference_name(task: Task, *, training: bool = False) -> str:
    """The name of the exact gradient, or of leave-one-out with many samples if there are too many structures to train with, or to list."""
    exact, event = ExactMarginalisation(), event_shape(task)
    most = LONGEST_TRAINING_LIST if training else LONGEST_LIST
    listed = exact.incompatibility(task.oracle, event) is None and task.oracle.count(event) <= most
    return exact.name if listed else f"{LeaveOneOut.name}[num_samples={MANY_SAMPLES}]"


def reference_estimator(task: Task, *, training: bool = False) -> Estimator[Any]:
    """The estimator of `reference_name`."""
    return make_estimator(reference_name(task, training=training))


def learnt_model(task: Task, estimator: Estimator[Any], seed: int, stage: str) -> LatentModel:
    """The model of a run at a stage, with the middle one of the task's learning rates."""
    model = task.at(seed).model(seed)
    if LEARNT_STAGES[stage] == 0:
        return model

    def trained() -> dict[str, dict[str, Tensor]]:
        run = Training(task, estimator, [Job(seed, task.rate)], points=1)
        found = {}
        for reached, share in LEARNT_STAGES.items():
            run.run(until=round(share * run.steps))
            found[reached] = copy.deepcopy(run.runs[0].model.state_dict())
        return found

    weights = remembered(task, ("path", repr(estimator), estimator.version, seed), trained)
    model.load_state_dict(weights[stage])
    return model


def remembered(task: Task, names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """The result of ``compute``, cached on disk by names and by the task: its sizes, a user's own code, and its first items."""
    batch = task.batch("train", torch.arange(min(64, task.size("train"))))
    data = hashlib.blake2b(digest_size=16)
    for part in (*batch.inputs, batch.labels):
        data.update(part.detach().cpu().contiguous().numpy().tobytes())
    return cached((task.name, repr(task), task.version, digest_of(source_of(task)), data.hexdigest(), *names), compute)


def cached(names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """The result of ``compute``, cached on disk by names, sources of tasks, and version of torch.

    Only one process computes an entry, and the others wait. If an entry cannot be read or written, it is computed again. ``compute`` runs
    on one thread, because the number of threads changes the rounding of sums.
    """
    path = cache_file(names)
    with _locked(path):
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            found: _T = torch.load(path, weights_only=True)
            return found
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            computed = compute()
        finally:
            torch.set_num_threads(threads)
        with contextlib.suppress(OSError, RuntimeError):
            write_whole(path, computed)
        return computed


def cache_folder() -> Path:
    """The folder of the user's cache."""
    return user_cache() / "tasks"


def cache_file(names: tuple[object, ...]) -> Path:
    """The file of an entry."""
    digest = hashlib.blake2b(repr((*names, sources(), torch.__version__)).encode(), digest_size=16)
    return cache_folder() / f"{digest.hexdigest()}.pt"


@functools.cache
def sources() -> str:
    """A hash of the code of all tasks and of their training."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file of the cache, if the file system has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_suffix(".lock").open("wb"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
