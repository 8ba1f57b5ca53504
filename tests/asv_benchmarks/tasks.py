"""Prepared calls of benchmarks: once per process, because asv runs ``setup`` before every timed call; all operations of oracles."""

import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from structgrad.oracles import make_oracle
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.training import Job, Training, event_shape

from .cases import CASES, HOME, HOMES, SIZED

if not __name__.startswith("tests."):  # of asv, which forks each benchmark from a process with these imports
    import torch._dynamo  # for the profiler, which counts memory

STEP = 0.01  # the change of scores since the solution that a warm start begins with: about a step of training
MAX_NUMBERS = 2**26  # the most numbers of one tensor; larger cases are left out to save memory

MAX_RANK = 2**62
MAX_PERMUTATION = 8  # beyond it a sum over permutations takes minutes

MAX_LISTED = 4096


@dataclass(frozen=True)
class Inputs:
    """Scores [batch, *event], other scores, best structures, a generator, and a solution for the scores of the step before."""

    scores: Tensor
    others: Tensor
    structures: Tensor
    generator: torch.Generator
    before: Any = None


Operation = Callable[[Any, Inputs], Tensor]


def backward(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """The gradient of the sum of squares of a function."""
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    return gradient


OPERATIONS: dict[str, Operation] = {  # by name: the name of the method with a suffix for the kind of call
    "argmax": lambda oracle, given: oracle.argmax(given.scores),
    "score": lambda oracle, given: oracle.score(given.structures, given.scores),
    "log_partition": lambda oracle, given: oracle.log_partition(given.scores),
    "marginals": lambda oracle, given: oracle.marginals(given.scores),
    "marginals_backward": lambda oracle, given: backward(oracle.marginals, given.scores),
    "log_prob": lambda oracle, given: oracle.log_prob(given.structures, given.scores),
    "entropy": lambda oracle, given: oracle.entropy(given.scores),
    "kl": lambda oracle, given: oracle.kl(given.scores, given.others),
    "sample": lambda oracle, given: oracle.sample(given.scores, generator=given.generator),
    "sample_64": lambda oracle, given: oracle.sample(given.scores, 64, generator=given.generator),
    "project": lambda oracle, given: oracle.project(given.scores).mean,
    "project_warm": lambda oracle, given: oracle.project(given.scores, start=given.before).mean,
    "project_backward": lambda oracle, given: backward(lambda leaf: oracle.project(leaf).mean, given.scores),
    "sample_distinct_8": lambda oracle, given: oracle.sample_distinct(given.scores, 8, generator=given.generator).log_probs,
    "kbest_8": lambda oracle, given: oracle.kbest(given.scores, 8),
    "enumerate": lambda oracle, given: oracle.enumerate(event := tuple(given.scores.shape[1:]), 0, min(oracle.count(event), MAX_LISTED)),
    "rank": lambda oracle, given: oracle.rank(given.structures),
    "relax": lambda oracle, given: oracle.relax(given.scores, "l2"),
    "relaxed_value": lambda oracle, given: oracle.relaxed_value(given.scores, "l2"),
    "relaxed_sample": lambda oracle, given: oracle.relaxed_sample(given.scores, generator=given.generator),
    "step_log_probs": lambda oracle, given: oracle.step_log_probs(given.scores),
}

SUMS = frozenset(
    {"log_partition", "marginals", "marginals_backward", "log_prob", "entropy", "kl", "sample", "sample_64", "sample_distinct_8"}
)


def method_of(operation: str) -> str:
    """``sample_64`` → ``sample``."""
    return operation.removesuffix("_backward").removesuffix("_warm").removesuffix("_64").removesuffix("_8")


def left_out(operation: str, oracle: Any, event: tuple[int, ...], batch: int) -> str | None:
    """The reason that an operation is not measured; None if it is."""
    if not hasattr(oracle, method_of(operation)):
        return f"the oracle {oracle.name} has no {method_of(operation)}"
    if oracle.name == "assignment" and event[0] > MAX_PERMUTATION and operation in SUMS:
        return "sums over so many permutations are out of reach"
    if operation in ("enumerate", "rank") and oracle.count(event) > MAX_RANK:
        return "more structures than there are ranks"
    if batch * math.prod(event) * (64 if operation == "sample_64" else 1) > MAX_NUMBERS:
        return "too large for memory"
    return None


Prepared = tuple[Callable[[], Any], torch.Generator]  # a call, and the generator that it draws from


def clock() -> float:
    """CPU seconds of this process, without other processes. If CUDA is used, elapsed seconds once the device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def normal(*shape: int, seed: int, device: str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)


def prepare_device(device: str) -> None:
    """Use one thread; raise NotImplementedError for CUDA without a device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no CUDA device")
    torch.set_num_threads(1)


@functools.cache
def operation_task(case: str, operation: str, batch: int, device: str) -> Prepared:
    """An operation of an oracle, called once before, because the first call may compile."""
    prepare_device(device)
    oracle, event = structure(case)
    reason = left_out(operation, oracle, event, batch)
    if reason is not None:
        raise NotImplementedError(reason)
    scores, others = normal(2, batch, *event, seed=0, device=device)
    before = oracle.project(scores - STEP * others) if operation == "project_warm" else None
    given = Inputs(scores, others, oracle.argmax(scores), torch.Generator(device).manual_seed(0), before)
    OPERATIONS[operation](oracle, given)
    return functools.partial(OPERATIONS[operation], oracle, given), given.generator


@functools.cache
def estimator_task(name: str, case: str, batch: int, device: str) -> Prepared:
    """An estimate per row, called once before."""
    prepare_device(device)
    estimator, oracle, event = pair(name, case)
    scores, weights = normal(batch, *event, seed=0, device=device), normal(*event, seed=1, device=device)

    def loss(structures: Tensor) -> Tensor:  # quadratic, so that no estimator is unbiased by the loss being linear
        return (structures * weights).flatten(structures.ndim - weights.ndim).sum(-1).square()

    generator = torch.Generator(device).manual_seed(0)
    warmed = estimator.warmed_up(loss, oracle, scores, generator=generator)
    warmed.gradient(loss, oracle, scores, generator=generator)
    return functools.partial(warmed.gradient, loss, oracle, scores, generator=generator), generator


@functools.cache
def training_step(name: str, task: str) -> Callable[[], Any]:
    """A step of training with an estimator, within an endless run."""
    prepare_device("cpu")
    made = make_task(task)
    if (reason := made.unavailable()) is not None:
        raise NotImplementedError(reason)
    run = Training(made, fitting(name, made.oracle, event_shape(made)), [Job(0, made.rates[0])], steps=sys.maxsize, points=1)
    run.run(until=1)
    return lambda: run.run(until=run.step + 1)


def structure(case: str) -> tuple[Any, tuple[int, ...]]:
    """The oracle of a case, and the shape of its scores."""
    text, numbers = CASES[case]
    oracle: Any = make_oracle(text)
    return oracle, oracle.event_of(numbers) if case in SIZED else numbers


def fitting(name: str, oracle: Any, event: tuple[int, ...]) -> Any:
    """The estimator of a name; NotImplementedError, by which asv skips a benchmark, if it does not support the oracle at this size."""
    estimator = make_estimator(name)
    if (reason := estimator.incompatibility(oracle, event)) is not None:
        raise NotImplementedError(reason)
    return estimator


def pair(name: str, case: str) -> tuple[Any, Any, tuple[int, ...]]:
    """An estimator, the oracle of a case or of its `home`, and the shape of its scores."""
    oracle, event = structure(home(name) if case == HOME else case)
    return fitting(name, oracle, event), oracle, event


def home(name: str) -> str:
    """The first of the `HOMES` that an estimator supports."""
    estimator = make_estimator(name)
    for case in HOMES:
        if estimator.incompatibility(*structure(case)) is None:
            return case
    raise NotImplementedError(f"{name} supports none of {', '.join(HOMES)}")
