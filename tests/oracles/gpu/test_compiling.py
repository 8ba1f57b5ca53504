"""What dispatch launches is bound, specialised, compiled and launched as on a device; see `compiling`, which runs in its own process."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.costs import COMPILING

HERE = Path(__file__).parent


def names_of_cases() -> list[str]:
    """Those of `compiling`, which cannot be imported here: kernels are defined for the interpreter in this process."""
    tree = ast.parse((HERE / "compiling.py").read_text(encoding="utf-8"))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CASES")
    return [ast.literal_eval(name) for name in table.keys]


@pytest.fixture
def _tools() -> None:
    """What Triton needs too, on every machine."""
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang"))):
        pytest.skip("no C compiler")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no headers of Python")


def run(script: Path, *words: str) -> str:
    """What a script says without the interpreter, and without a device."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), environment.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=3000, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def launched(request: pytest.FixtureRequest, *words: str) -> list[dict[str, Any]]:
    """What `compiling` prints; compiling is accounted for by itself, as that of the kernels of the CPU."""
    found = [json.loads(line) for line in run(HERE / "compiling.py", *words).splitlines()]
    costs = request.config.pluginmanager.get_plugin("costs")
    if costs is not None:
        costs.seconds[COMPILING] += sum(record.get("seconds", 0) for record in found)
    return found


def failures(found: list[dict[str, Any]]) -> list[str]:
    return ["{case} {operation} {size} {dtype}, {kernel}: {error}".format(**record) for record in found if "error" in record]


def entries() -> dict[str, Any]:
    """The kernels that are launched, in the source: whatever is called with a grid."""
    return {called(kernel): kernel for kernel in _launched_by(importlib.import_module("structgrad.oracles.derivations.gpu"))}


def _launched_by(module: Any) -> Iterator[Any]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            kernel = module
            for part in ast.unparse(node.func.value).split("."):
                kernel = getattr(kernel, part, None)
            if hasattr(kernel, "fn"):
                yield kernel


def called(kernel: Any) -> str:
    """The name that `compiling` gives it."""
    return f"{kernel.fn.__module__.partition('.oracles.')[2]}.{kernel.fn.__name__}"


@pytest.mark.usefixtures("_tools")
def test_every_kernel_is_launched_on_a_device_that_is_not_there(request: pytest.FixtureRequest) -> None:
    found = launched(request, "covering")
    assert not failures(found)
    assert {record["kernel"] for record in found} == entries().keys(), "a kernel that no operation of `compiling` launches, or none is"
    assert {record["dtype"] for record in found} == {"float32", "float64"}


@pytest.mark.sweep
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize("case", names_of_cases())
def test_every_operation_is_launched_at_every_size(case: str, request: pytest.FixtureRequest) -> None:
    found = launched(request, case)
    assert not failures(found)
    assert found
    assert all(record["programs"] > 0 for record in found)


@pytest.mark.usefixtures("_tools")
def test_what_a_device_refuses_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    refused = (
        "duplicate argument 'options'", "object has no attribute 'to'", "invalid argument", "more programs than Triton launches",
        "out of resource: shared memory", "none",
    )  # fmt: skip
    said = run(script).splitlines()
    assert len(said) == len(refused)
    assert not [pair for pair in zip(refused, said, strict=True) if pair[0] not in pair[1]]


REFUSED = """
import torch, triton, triton.language as tl
from pretended_device import launched, set_up

@triton.jit
def named(values, options):
    tl.store(values, 1.0)

@triton.jit
def converted(values, number):
    tl.store(values, number.to(tl.float32))

@triton.jit
def turned(values, extent: tl.constexpr):
    place = tl.arange(0, extent)
    pointers = values + place[:, None] * extent + place[None, :]
    tl.store(pointers, tl.trans(tl.load(pointers)))

set_up()
values = torch.zeros(4)
for kernel, grid, arguments in [
    (named, (1,), (0,)), (converted, (1,), (1,)), (turned, (1, 65536), (16,)), (turned, (32768, 65536), (16,)), (turned, (1,), (256,)),
    (turned, (1,), (16,)),
]:
    with launched() as launches:
        try:
            kernel[grid](values, *arguments, num_warps=32)
        except Exception:
            pass
    error = launches[0].error
    print(str(error or "none").splitlines()[-1])
"""


def test_parameters_of_launched_kernels_are_not_names_of_triton() -> None:
    reserved = names_of_triton()
    assert {"options", "params", "specialization", "grid", "warmup", "num_warps", "maxnreg"} <= reserved
    taken = {name: reserved & set(inspect.signature(kernel.fn).parameters) for name, kernel in entries().items()}
    assert not {name: names for name, names in taken.items() if names}


def names_of_triton() -> set[str]:
    """What a launch takes besides the parameters of a kernel, and what the function that binds those calls its own."""
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    jit, nvidia = (importlib.import_module(name) for name in ("triton.runtime.jit", "triton.backends.nvidia.compiler"))
    kernel = jit.JITFunction(_kernel)
    backend = nvidia.CUDABackend(importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32))
    binder = jit.create_function_from_signature(kernel.signature, kernel.params, backend).__code__
    launch = inspect.signature(jit.JITFunction.run).parameters.values()
    own = {parameter.name for parameter in launch if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    return own | {field.name for field in dataclasses.fields(nvidia.CUDAOptions)} | ({*binder.co_varnames, *binder.co_names} - {"value"})


def _kernel(value):
    """For `names_of_triton`."""
