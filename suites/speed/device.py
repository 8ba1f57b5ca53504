"""Time our operations on a device: against the CPU, plain torch on the same device, peers and what the hardware allows, in one run."""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...oracles import kernels
from ..measures.interleaving import described
from ..measures.timing import clock
from .cases import OPERATIONS, Case
from .floor import Machine, floor
from .peers import torch_struct
from .targets import Task

ROUNDS = 5
SHORTEST = 2e-3
"""Seconds that one timing takes at least: calls are repeated up to this."""

LONGEST = 1.5
"""Seconds of one call from which on a contender is timed once."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class DeviceTiming:
    """One operation at one size.

    Attributes:
        task: what was timed.
        seconds: median time of one call, by contender: ``structgrad``, ``torch`` (the same without kernels), ``cpu``, and peers.
        kernel: whether a kernel of the device serves it; where not, ``structgrad`` is plain torch.
        replay: seconds of one replay of the operation as a CUDA graph; None where it is not captured.
        floor: seconds that bytes or arithmetic take at least.
        memory: bytes that the operation takes beyond its inputs.
        difference: the largest difference from plain torch, relative to the scale of its result; None where samples cannot be compared.
        failures: contenders that raised an error, with its first line; ``graph`` says why there is no replay.
    """

    task: Task
    seconds: dict[str, float]
    kernel: bool
    replay: float | None
    floor: float
    memory: int
    difference: float | None
    failures: dict[str, str] = field(default_factory=dict)

    def ratio(self, contender: str) -> float | None:
        """How many times longer a contender takes than we do; None where it was not timed."""
        ours, theirs = self.seconds.get("structgrad"), self.seconds.get(contender)
        return None if ours is None or theirs is None else theirs / ours

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or where its contender was not timed."""
        ratio = None if self.task.target is None else self.ratio(self.task.target.contender)
        return None if ratio is None or self.task.target is None else ratio >= self.task.target.factor


def measure_device(device: torch.device, repeats: int = 5) -> Machine:
    """The bandwidth of a copy of 256 MB, and the float32 multiply-adds of a matrix product, at best."""
    on_cpu = device.type == "cpu"
    source = torch.ones(2**21 if on_cpu else 2**25, dtype=torch.float64, device=device)
    matrix = torch.ones((512 if on_cpu else 4096,) * 2, device=device)
    target = torch.empty_like(source)
    copies = [_timed(lambda: target.copy_(source), 1, device) for _ in range(repeats)]
    products = [_timed(lambda: matrix @ matrix, 1, device) for _ in range(repeats)]
    return Machine(2 * source.numel() * 8 / min(copies), len(matrix) ** 3 / min(products))


def time_on_device(tasks: list[Task], device: torch.device, deadline: float = math.inf) -> Iterator[DeviceTiming]:
    """Every task, one after the other, as long as the deadline (of `time.monotonic`) allows.

    Args:
        tasks: what is timed.
        device: where; the CPU stands in for a GPU in tests.
        deadline: no task begins after it.
    """
    machine = measure_device(device)
    for task in tasks:
        if time.monotonic() < deadline:
            yield time_task(task, device, machine)


def time_task(task: Task, device: torch.device, machine: Machine) -> DeviceTiming:
    """Time one operation against all contenders that offer it."""
    failures: dict[str, str] = {}
    scores = task.case.scores(task.batch).to(device)
    ours = _operation(task, scores)
    memory = _memory(ours, device)
    difference = _difference(task, ours, _without_kernels(ours), failures)
    seconds = interleaved(_contenders(task, scores), device, failures)
    replay = _replay(ours, device, failures)
    least = floor(task.case, task.operation, task.batch, machine)
    return DeviceTiming(task, seconds, serves(task, scores), replay, least, memory, difference, failures)


def serves(task: Task, scores: Tensor) -> bool:
    """Whether a kernel of the device serves the operation itself."""
    structure, name = task.kernel
    options = (1,) if task.case.structure == "categorical" else task.case.options
    kernel = kernels.find(structure, name, scores.double() if task.double else scores, options)
    return isinstance(kernel, kernels.gpu.DeviceKernel)


def _operation(task: Task, scores: Tensor) -> Call:
    return lambda: OPERATIONS[task.operation](task.case.oracle, scores)


def _without_kernels(call: Call) -> Call:
    def run() -> Any:
        with kernels.disabled():
            return call()

    return run


def _contenders(task: Task, scores: Tensor) -> dict[str, Call]:
    """Ours first, and whatever else can do the same on the device or on the CPU."""
    ours, copy = _operation(task, scores), scores.cpu()
    found: dict[str, Call] = {"structgrad": ours, "torch": _without_kernels(ours)}
    if scores.device.type != "cpu":
        found["cpu"] = _operation(task, copy)
    if task.case.structure == "spanning_tree" and task.operation in ("log_partition", "marginals"):
        found["lu64"] = lambda: determinant(scores.double(), gradient=task.operation == "marginals")
    if task.case.structure == "assignment" and task.operation == "argmax":
        numbers = copy.double().numpy()
        found["scipy"] = lambda: [linear_sum_assignment(item, maximize=True) for item in numbers]
    if task.case.structure == "spanning_tree" and task.operation.startswith("sample") and kernels.gpu.takes(scores):
        found["popping"] = lambda: popping(task.case.oracle, scores, 64 if task.operation == "sample64" else 1)
    struct = _torch_struct(task.case, task.operation, scores)
    return found | ({} if struct is None else {"torch-struct": struct})


def _torch_struct(case: Case, operation: str, scores: Tensor) -> Call | None:
    try:
        return torch_struct(case, operation, scores)
    except ImportError:
        return None


def determinant(scores: Tensor, *, gradient: bool) -> Tensor:
    """The log-partition of single-root trees by a factorisation of the Laplacian (Koo et al. 2007), or its gradient; fast, not exact."""
    leaf = scores.detach().requires_grad_(gradient)
    weights = leaf[:, 1:, 1:].exp() * (1 - torch.eye(leaf.shape[-1] - 1, dtype=leaf.dtype, device=leaf.device))
    laplacian = torch.diag_embed(weights.sum(1)) - weights
    laplacian = torch.cat([leaf[:, 0, None, 1:].exp(), laplacian[:, 1:]], 1)
    value = torch.linalg.slogdet(laplacian).logabsdet
    return torch.autograd.grad(value.sum(), leaf)[0] if gradient else value


def popping(oracle: Any, scores: Tensor, number: int) -> Tensor:
    """Trees [b, s, n + 1, n + 1] by popping cycles, those that took too many rounds left at 0: the other exact sampler, to be compared."""
    popped = importlib.import_module("structgrad.oracles.kernels.gpu.cycle_popping").popped
    uniforms = torch.rand(len(scores), number, 2, dtype=torch.float64, device=scores.device)
    trees = scores.new_empty(len(scores), number, *scores.shape[1:])
    unfinished = torch.empty(len(scores), number, dtype=torch.bool, device=scores.device)
    roots = torch.multinomial(oracle.marginals(scores)[:, 0, 1:], number, replacement=True) + 1 if oracle.single_root else None
    popped(scores.contiguous(), uniforms, trees, unfinished, roots)
    return trees


def interleaved(calls: Mapping[str, Call], device: torch.device, failures: dict[str, str]) -> dict[str, float]:
    """Median seconds of one call of each, timed in turns; what raises goes to the failures and is out."""
    once: dict[str, float] = {}
    for name, call in calls.items():
        try:
            first = _timed(call, 1, device)
            once[name] = first if first > LONGEST and name != "structgrad" else _timed(call, 1, device)
        except Exception as error:  # a peer's, or memory that ran out
            failures[name] = described(error)
            _release(device)
    timings: dict[str, list[float]] = {name: [seconds] for name, seconds in once.items()}
    for _ in range(ROUNDS):
        for name in (name for name in once if once[name] < LONGEST):
            repeats = max(1, min(200, math.ceil(SHORTEST / max(once[name], 1e-7))))
            timings[name].append(_timed(calls[name], repeats, device))
    return {name: statistics.median(values[1:] or values) for name, values in timings.items()}


def _timed(call: Call, repeats: int, device: torch.device) -> float:
    start = clock(device)
    for _ in range(repeats):
        call()
    return (clock(device) - start) / repeats


def _release(device: torch.device) -> None:
    """Give back what a failed call left behind."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _memory(call: Call, device: torch.device) -> int:
    """Bytes at most, beyond what was there; 0 on the CPU, where torch does not count."""
    call()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _difference(task: Task, ours: Call, plain: Call, failures: dict[str, str]) -> float | None:
    if task.operation.startswith("sample"):
        return None
    try:
        expected = np.asarray(plain().detach().cpu(), dtype=np.float64)
    except Exception as error:  # memory that ran out
        failures["torch"] = described(error)
        return None
    got = np.asarray(ours().detach().cpu(), dtype=np.float64)
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


def _replay(call: Call, device: torch.device, failures: dict[str, str]) -> float | None:
    """Seconds of a replay of what the call launches; capturing fails where the operation waits for the device."""
    if device.type != "cuda":
        return None
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return statistics.median(_timed(graph.replay, 20, device) for _ in range(ROUNDS))
    except Exception as error:  # whatever the operation did that a graph cannot hold
        failures["graph"] = described(error)
        return None
