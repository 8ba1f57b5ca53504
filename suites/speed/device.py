"""Measurements of an operation on a device, step by step, in this process: is it right, and its time beside that of others."""

from __future__ import annotations

import hashlib
import importlib
import math
import platform
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...oracles import DERIVED, kernels
from ...oracles.derivations import device as executor
from ...oracles.kernels.switch import CHOSEN
from ...oracles.random_streams import SeedBlocks
from ..measures.cost.timing import clock
from ..text import reason_of
from .cases import OPERATIONS
from .floor import MachineLimits
from .peers import torch_struct
from .targets import DEVICE_CASES, DeviceTask

THREADS = 2
"""Of the CPU, as the targets say."""

ROUNDS = 5
SHORTEST = 2e-3
"""Seconds that one timing takes at least: calls are repeated up to this."""

LONGEST = 1.5
"""Seconds of one call from which on a contender is timed once, after its first call."""

REPEATS = 10
"""Calls that must give the same bits."""

FEW, MANY_SMALL = 16, 64
"""Rows that are compared, at the size of a case and at a small one."""

TOLERANCES = {"float32": 1e-4, "float64": 1e-8}
"""Of a difference, relative to the scale of a result."""

SMALL: dict[str, tuple[int, ...]] = {
    "linear_chain": (5, 4, 4), "tied_chain": (9, 4), "constituency": (6, 6), "projective_tree": (6, 6), "spanning_tree": (6, 6),
    "alignment": (5, 4), "assignment": (5, 5), "subset": (14,), "shift_reduce": (6, 6, 2), "categorical": (9,), "categories": (4, 3),
} | {name: kind.event_of(kind.examples.small[-1]) for name, kind in DERIVED.items()}  # fmt: skip
"""An event that plain torch is quick with, by structure."""

Call = Callable[[], Any]


def look(device: str) -> dict[str, Any]:
    """Which device it is, what figures depend on, and what it does at best; ``refused`` where torch has no such device."""
    from ..running.planning.plan import check_device

    try:
        check_device(device)
    except ValueError as error:
        return {"refused": str(error)}
    place = torch.device(device)
    found = {"device": "the CPU", "python": platform.python_version(), "torch": torch.__version__}
    if place.type == "cuda":
        found |= {
            "device": torch.cuda.get_device_name(place),
            "memory": f"{torch.cuda.mem_get_info(place)[1] / 2**30:.0f} GiB",
            "compute capability": ".".join(map(str, torch.cuda.get_device_capability(place))),
            "cuda": str(torch.version.cuda),
        }
    found |= {package: _version(package) for package in ("triton", "numba")}
    machine = measure_device(place)
    return {
        "environment": found | {"kernels": CHOSEN, "code of the oracles": _digest()},
        "machine": [machine.bytes_per_second, machine.multiply_adds_per_second],
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _digest() -> str:
    """Of the code of the oracles: figures of another one are others."""
    found, room = hashlib.blake2b(digest_size=6), Path(kernels.__file__).parents[1]
    for path in sorted(room.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def measure_device(device: torch.device, repeats: int = 5) -> MachineLimits:
    """The bandwidth of a copy of 256 MB, and the float32 multiply-adds of a matrix product, at best."""
    on_cpu = device.type == "cpu"
    source = torch.ones(2**21 if on_cpu else 2**25, dtype=torch.float64, device=device)
    matrix = torch.ones((512 if on_cpu else 4096,) * 2, device=device)
    target = torch.empty_like(source)
    copies = [_timed(lambda: target.copy_(source), 1, device) for _ in range(repeats)]
    products = [_timed(lambda: matrix @ matrix, 1, device) for _ in range(repeats)]
    return MachineLimits(2 * source.numel() * 8 / min(copies), len(matrix) ** 3 / min(products))


def measure(step: str, case: str, operation: str, batch: int, device: str) -> dict[str, Any]:
    """One step of one operation, as `measure_task`; arguments and result are what JSON can hold.

    What this package warns of meanwhile, such as a kernel that does not serve, is ``said``.
    """
    torch.set_num_threads(THREADS)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = measure_task(step, DeviceTask(DEVICE_CASES[case], operation, batch), torch.device(device))
    said = {str(each.message) for each in heard if each.category.__module__.partition(".")[0] == "structgrad"}
    return found | ({"said": sorted(said)} if said else {})


def measure_task(step: str, task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """One step of one operation.

    Args:
        step: ``right``, compare with plain torch; ``warm``, compile what the CPU runs; ``structgrad``, time ours, and call it again and
            again; ``graph``, capture and replay it; ``structgrad@1`` and ``cpu@1``, one row; else a contender of `contender`.
        task: an operation at a size and a batch.
        device: where; the CPU stands in for a GPU in tests.
    """
    steps: dict[str, Callable[[DeviceTask, torch.device], dict[str, Any]]] = {
        "right": right, "warm": warm, "structgrad": ours, "graph": replay
    }  # fmt: skip
    if step in steps:
        return steps[step](task, device)
    if step.endswith("@1"):
        place = device if step == "structgrad@1" else torch.device("cpu")
        return {"seconds": interleaved({step: _operation(task, _scores(task, 1, place))}, device, {}).get(step)}
    return beside(step, task, device)


# Right.


def right(task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """The largest differences from plain torch, by dtype, at the size of the case and at a small one; seconds of the very first call.

    Where plain torch takes minutes at the size of the case, the CPU's kernels stand in for it there.
    """
    small = replace(task, case=replace(task.case, event=SMALL[task.case.structure]))
    few = min(FEW, task.batch)
    start = clock(device)
    _operation(task, _scores(task, few, device))()
    found: dict[str, Any] = {"first": clock(device) - start, "off": {}}
    reference = torch.device("cpu") if task.slow else None
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        if reference is None or find_spec("numba") is not None:  # which compiles the CPU's kernels
            found["off"][name] = _number(_off(task, task.case.scores(few).to(dtype), device, reference))
        found["off"][f"small {name}"] = _number(_off(small, small.case.scores(MANY_SMALL).to(dtype), device, None))
    return found


def _off(task: DeviceTask, scores: Tensor, device: torch.device, elsewhere: torch.device | None) -> float:
    """The difference from plain torch on the device, or from the kernels of another one, both in float64."""
    given = scores.to(device)
    found = _operation(task, given, philox(given))()
    if elsewhere is None:
        expected = _without_kernels(_operation(task, given.double(), philox(given)))()
    else:
        there = scores.to(elsewhere).double()
        expected = _operation(task, there, philox(there))().to(device)
    if task.operation == "argmax":
        # Of two structures whose scores rounding cannot tell apart, either is right.
        with kernels.disabled():
            found, expected = (task.case.oracle.score(z.double(), given.double()) for z in (found, expected))
    return relative(found, expected)


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the scale of what is expected; NaN where something is not a number."""
    difference = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-300)
    return float(difference)


def _number(value: float) -> float | None:
    """None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def philox(scores: Tensor) -> SeedBlocks:
    """The same random numbers on every device, made before they are used: making them waits for the device."""
    return SeedBlocks((0,), len(scores), scores.device)


# Fast.


def ours(task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """Time of a call, memory, what serves it, and whether the whole batch is what it should be."""
    scores = _scores(task, task.batch, device)
    call, failures = _operation(task, scores), dict[str, str]()
    seconds = interleaved({"structgrad": call}, device, failures)
    if failures:
        return {"failure": failures["structgrad"]}
    same = _operation(task, scores, philox(scores))
    first = same()
    repeats = all(torch.equal(same(), first) for _ in range(REPEATS))
    found: dict[str, Any] = {"repeats": repeats, "finite": bool(first.isfinite().all())}
    if not task.draws:
        few = min(FEW, len(scores))
        found["alone"] = _number(relative(first[-few:], _operation(task, scores[-few:].contiguous())()))
    del first
    return found | {"seconds": seconds["structgrad"], "memory": _memory(call, device), "kernel": serves(task, scores)}


def replay(task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """Seconds of a replay of what a call launches, as a CUDA graph, and whether it gives the same numbers."""
    scores = _scores(task, task.batch, device)
    call = _operation(task, scores, philox(scores))
    expected = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    graph.replay()
    same = bool(torch.equal(found, expected))
    return {"seconds": statistics.median(_timed(graph.replay, 20, device) for _ in range(ROUNDS)), "same": same}


def beside(name: str, task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """Seconds of a contender and of ours, in turns; nothing where it does not offer the operation."""
    scores = _scores(task, task.batch, device)
    call = contender(name, task, scores)
    if call is None:
        return {}
    mine, failures = _operation(task, scores), dict[str, str]()
    if name == "compiled" and not relative(call(), mine()) <= TOLERANCES["float32"]:
        return {"failure": "other numbers than ours"}
    seconds = interleaved({"structgrad": mine, name: call}, device, failures)
    if name in failures:
        return {"failure": failures[name]}
    return {"seconds": seconds[name], "ours": seconds.get("structgrad")}


def warm(task: DeviceTask, device: torch.device) -> dict[str, Any]:
    """Let the CPU's kernels be compiled and kept on disk, for a batch and for a row, so that nobody waits for that later."""
    for rows in (min(FEW, task.batch), 1):
        _operation(task, _scores(task, rows, torch.device("cpu")))()
    return {}


def serves(task: DeviceTask, scores: Tensor) -> bool:
    """Whether a kernel serves the operation itself, as far as is known after calls."""
    structure, name = task.kernel
    if structure == "derivations":
        return executor.kernel(task.case.oracle, name, scores.double() if task.double else scores) is not None
    options = (1,) if task.case.structure == "categorical" else task.case.options
    return kernels.find(structure, name, scores.double() if task.double else scores, options) is not None


@lru_cache(maxsize=2)
def _drawn(case: str, event: tuple[int, ...], batch: int, device: torch.device) -> Tensor:
    return DEVICE_CASES[case].scores(batch).to(device)


def _scores(task: DeviceTask, batch: int, device: torch.device) -> Tensor:
    """Those of a case are kept, because several steps take them."""
    if DEVICE_CASES.get(task.case.name) == task.case:
        return _drawn(task.case.name, task.case.event, batch, device)
    return task.case.scores(batch).to(device)


def _operation(task: DeviceTask, scores: Tensor, generator: torch.Generator | None = None) -> Call:
    """A call of ours; from a `SeedBlocks`, every call draws the same numbers."""
    given = torch.Generator(scores.device).manual_seed(0) if generator is None else generator

    def call() -> Tensor:
        if isinstance(given, SeedBlocks):
            given.draws = 0
        return OPERATIONS[task.operation](task.case.oracle, scores, given)

    return call


def _without_kernels(call: Call) -> Call:
    def run() -> Any:
        with kernels.disabled():
            return call()

    return run


def contender(name: str, task: DeviceTask, scores: Tensor) -> Call | None:
    """What else can do the same, on the device or on the CPU; None where it cannot.

    ``torch`` is ours without kernels, ``compiled`` what torch.compile makes of that, ``cpu`` ours on the CPU; ``lu64`` a factorisation in
    float64, ``scipy`` item by item, ``popping`` another exact sampler, and ``torch-struct`` a library.
    """
    found: dict[str, Callable[[], Call | None]] = {
        "torch": lambda: _without_kernels(_operation(task, scores)),
        "compiled": lambda: compiled(task, scores),
        "cpu": lambda: _operation(task, scores.cpu()),
        "lu64": lambda: lambda: determinant(scores.double(), gradient=task.operation == "marginals"),
        "scipy": lambda: _item_by_item(scores),
        "popping": lambda: lambda: popping(task.case.oracle, scores, 64 if task.operation == "sample64" else 1),
        "torch-struct": lambda: torch_struct(task.case, task.operation, scores),
    }
    return found[name]()


def _item_by_item(scores: Tensor) -> Call:
    numbers = scores.cpu().double().numpy()
    return lambda: [linear_sum_assignment(item, maximize=True) for item in numbers]


def compiled(task: DeviceTask, scores: Tensor) -> Call | None:
    """Plain torch through torch.compile, of the operations that are one function of the scores; it is compiled at the first call."""
    oracle = task.case.oracle

    def best(rows: Tensor) -> Any:
        return oracle.reference_argmax(rows)

    def value(rows: Tensor) -> Any:
        return oracle.reference_log_partition(rows)

    def gradient(rows: Tensor) -> Any:
        return torch.func.grad(lambda given: value(given).sum())(rows)

    def second(rows: Tensor) -> Any:
        return torch.func.grad(lambda given: gradient(given).square().sum())(rows)

    function = {"argmax": best, "log_partition": value, "marginals": gradient, "marginals_backward": second}.get(task.operation)
    if function is None:
        return None
    made = torch.compile(function, dynamic=False)
    return lambda: made(scores)


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
    popped = importlib.import_module("structgrad.oracles.spanning_tree.gpu.cycle_popping").popped
    uniforms = torch.rand(len(scores), number, 2, dtype=torch.float64, device=scores.device)
    trees = scores.new_empty(len(scores), number, *scores.shape[1:])
    unfinished = torch.empty(len(scores), number, dtype=torch.bool, device=scores.device)
    roots = torch.multinomial(oracle.marginals(scores)[:, 0, 1:], number, replacement=True) + 1 if oracle.single_root else None
    popped(scores.contiguous(), uniforms, trees, unfinished, roots)
    return trees


def interleaved(calls: Mapping[str, Call], device: torch.device, failures: dict[str, str]) -> dict[str, float]:
    """Median seconds of one call of each, timed in turns; what raises goes to the failures and is out.

    The first call of each is not counted: it compiles, reads what was compiled before, or asks for memory.
    """
    once: dict[str, float] = {}
    for name, call in calls.items():
        try:
            call()
            once[name] = _timed(call, 1, device)
        except Exception as error:  # a peer's, or memory that ran out
            failures[name] = reason_of(error)
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
