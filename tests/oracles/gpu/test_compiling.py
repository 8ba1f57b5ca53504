"""What dispatch launches is bound, specialised and compiled as for a GPU: the compiler refuses what Triton's interpreter accepts."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.costs import COMPILING

OPERATIONS = ("argmax", "log_partition", "marginals", "covariance_product", "sample")
SIZES: dict[str, tuple[tuple[int, tuple[int, ...]], ...]] = {
    "alignment": ((1, (1, 1)), (3, (3, 5)), (16, (128, 128)), (1, (512, 512))),
    "constituency": ((1, (1, 1)), (3, (5, 5)), (16, (40, 40)), (1, (100, 100))),
    "second_order_chain": ((1, (1, 1, 1, 1)), (3, (5, 3, 3, 3)), (16, (32, 8, 8, 8)), (1, (33, 32, 32, 32))),
}
"""Rows and events: where numbers are 1, which Triton makes constants of; where 16 does not divide them; where it often does, and people
have such; and the largest ones."""

SCRIPT = """
import json, math, sys, time
import torch
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from structgrad.oracles import make_oracle
from structgrad.oracles.kernels import gpu
from structgrad.oracles.random_streams import SeedBlocks

class Driver:  # of a device of compute capability 9.0 that is not there
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

class Zeroed(TorchFunctionMode):  # what kernels would write
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result.zero_() if function in (torch.empty, torch.empty_like, torch.Tensor.new_empty) else result

def run(kernel, *args, grid, warmup, **named):
    start = time.process_time()
    compiled = original(kernel, *args, grid=grid, warmup=True, **named)
    about = compiled.metadata
    # What the launcher and the device refuse.
    assert math.prod(grid) < 2**31 and all(extent < 65536 for extent in grid[1:]), grid
    assert about.shared <= 227 << 10 and about.num_warps <= 32, about
    name = kernel.fn.__module__.partition(".oracles.")[2] + "." + kernel.fn.__name__
    found.append({"kernel": name, "dtype": dtype, "seconds": time.process_time() - start})

driver.set_active(Driver())
original, JITFunction.run, found = JITFunction.run, run, []
gpu._interpreting.set(True)
with Zeroed():
    for case, rows, event, operation, dtype in json.loads(sys.argv[1]):
        oracle, scores = make_oracle(case), torch.randn(rows, *event, dtype=getattr(torch, dtype))
        if operation == "sample":
            oracle.sample(scores, rows, generator=SeedBlocks((7,), rows))
        elif operation == "covariance_product":
            oracle.marginals(scores.requires_grad_()).square().sum().backward()
        else:
            getattr(oracle, operation)(scores)
print(json.dumps(found))
"""


def compiled(request: pytest.FixtureRequest, tasks: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The kernels that these tasks launch, in a process whose kernels are defined without the interpreter."""
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(tasks)], capture_output=True, text=True, timeout=3000, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    costs = request.config.pluginmanager.get_plugin("costs")
    if costs is not None:
        costs.seconds[COMPILING] += sum(record["seconds"] for record in found)
    return found


def tasks_of(case: str, size: int, dtype: str) -> Iterator[tuple[Any, ...]]:
    rows, event = SIZES[case][size]
    return ((case, rows, event, operation, dtype) for operation in OPERATIONS)


def entries() -> dict[str, Any]:
    """The kernels that are launched, in the source: whatever is called with a grid."""
    module = importlib.import_module("structgrad.oracles.derivations.gpu")
    names = {
        ast.unparse(node.func.value)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    }
    return {f"derivations.gpu.{name}": kernel for name in names if hasattr(kernel := getattr(module, name, None), "fn")}


def test_every_kernel_is_compiled_for_a_device_that_is_not_there(request: pytest.FixtureRequest) -> None:
    tasks = [task for case, dtype in (("constituency", "float32"), ("alignment", "float64")) for task in tasks_of(case, 1, dtype)]
    found = compiled(request, tasks)
    assert {record["kernel"] for record in found} == entries().keys(), "a kernel that no operation launches, or none is"
    assert {record["dtype"] for record in found} == {"float32", "float64"}


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SIZES)
def test_every_operation_is_compiled_at_every_size(case: str, dtype: str, request: pytest.FixtureRequest) -> None:
    assert compiled(request, [task for size in range(4) for task in tasks_of(case, size, dtype)])
