"""How kernels are run, and the arithmetic that they share."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from structgrad.oracles import kernels
from structgrad.oracles.kernels.exponential import exponentials


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
@pytest.mark.parametrize("number", [1, 2, 3, 16])
def test_rows_are_split_over_threads(rows: int, number: int) -> None:
    torch.set_num_threads(number)
    seen: list[int] = []

    def noting(rows: np.ndarray, result: np.ndarray, factor: float) -> None:
        seen.append(len(rows))
        result[:] = factor * rows

    values, result = torch.arange(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    kernels.launch(noting, [values.numpy(), result.numpy()], (2.0,), operations=10**9)
    assert torch.equal(result, 2 * values)
    assert sum(seen) == rows
    assert len(seen) == max(1, min(rows, number))


def test_uncertified_rows_are_left_to_the_reference() -> None:
    def even(rows: np.ndarray, result: np.ndarray, certified: np.ndarray, factor: float) -> None:
        result[::2], certified[::2] = factor * rows[::2], True

    rows = torch.arange(12.0).reshape(4, 3)
    (found,) = kernels.Kernel(even, (2.0,), 1).computed((rows,), (((3,), None),), lambda given: (-given,))
    assert torch.equal(found, torch.where(torch.tensor([[True], [False], [True], [False]]), 2 * rows, -rows))


def test_an_error_in_another_thread_is_raised() -> None:
    torch.set_num_threads(2)

    def failing(rows: np.ndarray) -> None:
        if rows[-1] == 1:
            raise ArithmeticError("in the last part")

    with pytest.raises(ArithmeticError, match="in the last part"):
        kernels.launch(failing, (torch.tensor([0.0, 1.0]),), (), operations=10**9)


def test_a_forked_process_has_threads_of_its_own() -> None:
    program = (
        "import os, torch\n"
        "from structgrad.oracles import LinearChain, kernels\n"
        "torch.set_num_threads(2)\n"
        "kernels.GRAIN = 100\n"
        # Small enough for torch to stay in one thread: its own threads do not survive a fork.
        "scores = torch.randn(8, 8, 8, 8)\n"
        "expected = LinearChain().log_partition(scores)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if torch.equal(LinearChain().log_partition(scores), expected) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120, env=environment)


@pytest.mark.parametrize("size", [*range(1, 20), 20_003])
def test_exponentials_are_exact_to_the_last_place(size: int) -> None:
    """In place too, of any size; 0 below the range, of which 0 alone is certified."""
    values = np.random.default_rng(size).uniform(-698, 699, size)
    values[size // 2] = -np.inf
    room = np.concatenate([values, [7.0]])
    exponentials(room[:size], room[:size])
    np.testing.assert_allclose(room, [*np.exp(values), 7.0], rtol=4.5e-16)
    out = np.empty(4)
    exponentials(np.array([-np.inf, -706.0, -1e300, 0.0]), out)
    assert out.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("value", ["on", "off", "check"])
def test_the_environment_switches_kernels(value: str) -> None:
    """Torch's compiler is imported by neither."""
    program = (
        "import sys, threading, torch, structgrad.estimators\n"
        "from structgrad.oracles import LinearChain, kernels\n"
        "rows = torch.zeros(2, 3, 3, 3)\n"
        "assert abs(float(LinearChain().log_partition(rows)[0]) - 3.2958) < 1e-3\n"
        "other = threading.Thread(target=lambda: print(kernels.running.get(), 'numba' in sys.modules))\n"
        "other.start(), other.join()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    environment = {**os.environ, "STRUCTGRAD_KERNELS": value}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    if value == "check":
        assert "the environment variable STRUCTGRAD_KERNELS got 'check'; expected on or off; unset it for on" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "False False\n" if value == "off" else "True True\n"), done.stderr


def test_what_does_not_count_references_gets_and_gives_no_arrays() -> None:
    """Otherwise an array would be freed twice, or never. That no array is made, the compiler checks."""
    functions: dict[str, tuple[str, ast.FunctionDef]] = {}
    room = Path(kernels.__file__).parents[1]
    for path in sorted({*(room / "kernels").glob("*.py"), *room.glob("*/cpu*.py"), *room.glob("*/cpu/*.py")}):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list and isinstance(node.decorator_list[0], ast.Name):
                functions[f"{path.parent.name}/{path.stem}.{node.name}"] = (node.decorator_list[0].id, node)
    counted = {"compiled", "inner"}
    numbers = {"float", "int", "bool"}
    givers = {node.name for decorator, node in functions.values() if decorator in counted and _returned(node)}
    givers -= {node.name for _, node in functions.values() if isinstance(node.returns, ast.Name) and node.returns.id in numbers}
    uncounted = {name: node for name, (decorator, node) in functions.items() if decorator not in counted}
    assert len(uncounted) > 100
    for name, node in uncounted.items():
        called = {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
        own = {other.split(".")[1] for other in uncounted}
        assert not called & givers - own, f"{name} may get an array from {called & givers}"
        arrays = {
            part.value.id for part in ast.walk(node) if isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.value, ast.Name)
        }
        given = {part.id for value in _returned(node) for part in getattr(value, "elts", [value]) if isinstance(part, ast.Name)}
        assert not given & arrays, f"{name} returns {given & arrays}"


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
