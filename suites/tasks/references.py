"""Results of training that are computed once on a machine: floors, ceilings, pretrained decoders, the exact run, and chosen options."""

import contextlib
import copy
import functools
import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock
from torch import Tensor

from ...estimators import ExactMarginalisation, LeaveOneOut
from ...estimators.base import Estimator
from ...oracles.sources import digest_of, source_of
from ...user_cache import user_cache
from ..trust import write_state
from .task import LatentModel, Task
from .training import Job, Training, event_shape, train_all

LEARNT_STAGES: dict[str, float] = {"init": 0.0, "early": 0.1, "final": 1.0}  # stages of a run, each with the share of the steps before it
LONGEST_LIST = 1000  # most structures that an exact gradient sums over; with more, a mean over many samples replaces it

LONGEST_TRAINING_LIST = 256
"""Most structures for the exact gradient of every training step: a run over the 429 trees of `listops` takes 500 s."""

MANY_SAMPLES = 16

FIRST_TUNING_SEED = 1_000_000  # seeds that choose start here, so that no test uses them

OPTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    name: (option, values)
    for option, values, names in (
        ("lambda_", (1.0, 10.0, 100.0), ("imle",)),
        ("lambda_", (0.5, 5.0, 50.0), ("blackbox",)),
        ("step_size", (0.1, 1.0, 10.0), ("spigot", "spigot_ce", "spigot_eg")),
        ("step_size", (0.02, 0.2, 2.0), ("spigot_steps",)),
        ("step_size", (0.03, 0.1, 0.3), ("reinforce_ppo", "step_ppo")),
        ("temperature", (0.3, 1.0, 3.0), ("gumbel_softmax", "st_gumbel", "gumbel_rao", "step_st_gumbel", "gst", "gumbel_crf")),
        ("temperature", (0.3, 1.0, 3.0), ("gumbel_crf_st", "stochastic_softmax", "perturb_and_parse")),
        ("temperature", (0.1, 0.5, 2.0), ("relaxed_top_k", "relaxed_top_k_st")),
        ("temperature", (1.0, 2.0, 4.0), ("reinmax",)),
        ("sigma", (0.3, 1.0, 3.0), ("perturbed_optimizer", "perturbed_multiplicative")),
        ("strength", (0.1, 1.0, 10.0), ("fusedmax", "oscarmax")),
    )
    for name in names
}
"""The main option of an estimator and the values that validation chooses from, if its name has no options in brackets."""

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

    weights = remembered(task, ("stages", repr(estimator), estimator.version, seed), trained)
    model.load_state_dict(weights[stage])
    return model


def remembered(task: Task, names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """The result of ``compute``, cached on disk by names and by the task: its sizes, its code, its first items, and version of torch.

    Only one process computes an entry, and the others wait. If an entry cannot be read or written, it is computed again. ``compute`` runs
    on one thread, because the number of threads changes the rounding of sums.
    """
    batch = task.batch("train", torch.arange(min(64, task.size("train"))))
    data = hashlib.blake2b(digest_size=16)
    for part in (*batch.inputs, batch.labels):
        data.update(part.detach().cpu().contiguous().numpy().tobytes())
    known = (task.name, repr(task), task.version, digest_of(source_of(task)), data.hexdigest(), *names, sources(), torch.__version__)
    path = user_cache() / "tasks" / f"{hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()}.pt"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):  # without a lock, two processes may compute the same
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock")))
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, IndexError, pickle.UnpicklingError):
            found: _T = torch.load(path, weights_only=True)
            return found
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            computed = compute()
        finally:
            torch.set_num_threads(threads)
        with contextlib.suppress(OSError, RuntimeError):
            write_state(path, computed)
        return computed


@functools.cache
def sources() -> str:
    """A hash of the code of all tasks and of their training."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class ValidatedChoice:
    """The best candidate: the estimator with its option, the learning rate, and their accuracy on the validation split."""

    estimator: Estimator[Any]
    rate: float
    accuracy: float = 0.0


def tunable(name: str, estimator: Estimator[Any]) -> tuple[str, tuple[float, ...]]:
    """The option that validation chooses and its values; both empty for a name with options in brackets, or without such an option."""
    return OPTIONS.get(estimator.name, ("", ())) if "[" not in name else ("", ())


def choose(  # noqa: PLR0913 - a pair, and the runs that choose
    task: Task, name: str, estimator: Estimator[Any], seeds: Sequence[int], *, steps: int, scratch: Path | None = None
) -> ValidatedChoice:
    """The best learning rate with the option as it is, then the best option at that rate; trained once on a machine.

    Each is trained for some steps with every seed, to which `FIRST_TUNING_SEED` is added. Options in the brackets of ``name`` stay as they
    are. A killed run continues from the checkpoints in ``scratch``.
    """
    option, values = tunable(name, estimator)
    if len(task.rates) == 1 and not values:
        return ValidatedChoice(estimator, task.rates[0])

    def best_rate(one: Estimator[Any], rates: Sequence[float]) -> ValidatedChoice:
        """The rate of the largest mean accuracy over seeds; a run that diverged is the last choice."""
        jobs, accuracies = [Job(FIRST_TUNING_SEED + seed, rate) for rate in rates for seed in seeds], dict.fromkeys(rates, 0.0)
        for run in train_all(task, one, jobs, steps=steps, split="validation", points=1, scratch=scratch):
            accuracies[run.job.rate] += (run.metrics["accuracy"] if run.diverged is None else -1.0) / len(seeds)
        best = max(accuracies, key=accuracies.__getitem__)
        return ValidatedChoice(one, best, accuracies[best])

    def chosen() -> dict[str, float]:
        best = best_rate(estimator, task.rates)
        for value in values:
            if value != getattr(estimator, option):
                found = best_rate(replace(estimator, **{option: value}), (best.rate,))  # type: ignore[type-var]
                best = max(best, found, key=lambda choice: choice.accuracy)
        kept = {"rate": best.rate, "accuracy": best.accuracy}
        return kept | ({"value": float(getattr(best.estimator, option))} if values else {})

    found = remembered(task, ("choice", repr(estimator), estimator.version, values, seeds, steps), chosen)
    best = replace(estimator, **{option: found["value"]}) if values else estimator  # type: ignore[type-var]
    return ValidatedChoice(best, found["rate"], found["accuracy"])
