"""How kernels are run, and the arithmetic that they share."""

from __future__ import annotations

import ast
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from structgrad.estimators import make_estimator
from structgrad.oracles import LinearChain, ShiftReduce, Subset, kernels
from structgrad.oracles.capabilities import Oracle
from structgrad.oracles.kernels import switch
from structgrad.oracles.kernels.exponential import exponential_single, exponentials
from structgrad.oracles.kernels.vectors import WIDTH, high_half, load_singles, low_half, store
from tests.helpers import refused_rows


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def double(rows: np.ndarray, result: np.ndarray, factor: float) -> None:
    result[:] = factor * rows


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
@pytest.mark.parametrize("number", [1, 2, 3, 16])
@pytest.mark.usefixtures("threads")
def test_rows_are_split_over_threads(rows: int, number: int) -> None:
    torch.set_num_threads(number)
    seen: list[int] = []

    def noting(rows: np.ndarray, result: np.ndarray, factor: float) -> None:
        seen.append(len(rows))
        double(rows, result, factor)

    values, result = torch.arange(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    kernels.launch(noting, (values, result), (2.0,), operations=10**9)
    assert torch.equal(result, 2 * values)
    assert sum(seen) == rows
    assert len(seen) == max(1, min(rows, number))


def test_uncertified_rows_are_left_to_the_reference() -> None:
    def even(rows: np.ndarray, result: np.ndarray, certified: np.ndarray, factor: float) -> None:
        result[::2], certified[::2] = factor * rows[::2], True

    rows = torch.arange(12.0).reshape(4, 3)
    (found,) = kernels.Kernel(even, (2.0,), 1).computed((rows,), (((3,), None),), lambda given: (-given,))
    assert torch.equal(found, torch.where(torch.tensor([[True], [False], [True], [False]]), 2 * rows, -rows))


def test_an_oracle_that_has_served_goes_to_another_process() -> None:
    oracle = Subset(2)
    oracle.marginals(torch.zeros(3, 4))
    assert pickle.loads(pickle.dumps(oracle)) == oracle


@pytest.mark.usefixtures("threads")
def test_a_little_work_is_not_split() -> None:
    torch.set_num_threads(4)
    seen = []
    kernels.launch(lambda rows: seen.append(len(rows)), (torch.zeros(8),), (), operations=kernels.GRAIN // 8)
    assert seen == [8]


def test_a_maximum_is_less_work_than_a_sum() -> None:
    rows = torch.zeros(2, 5, 3, 3)
    maximum, total = (kernels.find("linear_chain", operation, rows) for operation in ("argmax", "marginals"))
    assert isinstance(maximum, kernels.Kernel)
    assert isinstance(total, kernels.Kernel)
    assert 1 < maximum.operations < total.operations


def test_many_samples_are_more_work_than_one() -> None:
    kernel = kernels.find("tied_chain", "sample", torch.zeros(2, 8, 3))
    assert isinstance(kernel, kernels.Kernel)
    one, many = (kernel.drawing(torch.zeros(2, samples, 5)).operations for samples in (1, 64))
    assert kernel.operations < one < many


@pytest.mark.usefixtures("threads")
def test_many_numbers_are_converted_without_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.linspace(-1, 1, kernels.SMALL).double() * 1e39  # beyond float32 at both ends
    expected = values.to(torch.float32)
    torch.set_num_threads(2)
    monkeypatch.setattr(torch.Tensor, "to", lambda *_: pytest.fail("torch converts"))
    assert torch.equal(kernels.converted(values, torch.float32), expected)
    assert torch.equal(kernels.converted(expected, torch.float64), torch.from_numpy(expected.numpy().astype(np.float64)))


@pytest.mark.usefixtures("threads")
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


def test_the_compiler_is_loaded_on_first_use() -> None:
    program = (
        "import sys, torch, structgrad.oracles as oracles\n"
        "assert 'numba' not in sys.modules\n"
        "oracles.LinearChain().argmax(torch.zeros(2, 2, 2))\n"
        "assert 'numba' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_kernels_apply_to_the_cpu_and_can_be_switched_off() -> None:
    rows = torch.zeros(1, 2, 2, 2)
    assert kernels.find("linear_chain", "argmax", rows) is not None
    assert kernels.find("linear_chain", "no_such_operation", rows) is None
    assert kernels.find(None, "argmax", rows) is None
    assert kernels.find("linear_chain", "argmax", rows.half()) is None
    with kernels.disabled():
        assert kernels.find("linear_chain", "argmax", rows) is None
        with kernels.disabled():
            pass
        assert not kernels.enabled(rows)
    assert kernels.enabled(rows)


STREAM = torch.Generator()

GRADIENTS: dict[str, tuple[Any, tuple[int, ...], Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "of the gradient of a log-partition": (
        LinearChain(),
        (3, 2, 2),
        lambda oracle, leaf: torch.autograd.grad(oracle.log_partition(leaf).sum(), leaf, create_graph=True)[0].square(),
    ),
    "of marginals": (LinearChain(), (3, 2, 2), lambda oracle, leaf: oracle.marginals(leaf).square()),
    "of a policy": (ShiftReduce("local"), (4, 4, 2), lambda oracle, leaf: oracle.step_log_probs(leaf).exp()),
    "of an estimator": (
        LinearChain(),
        (3, 2, 2),
        lambda oracle, leaf: make_estimator("blackbox").structure(oracle, leaf, generator=STREAM),
    ),
    "under torch.func": (LinearChain(), (3, 2, 2), lambda oracle, leaf: torch.func.vmap(oracle.marginals)(leaf).square()),
}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_computed_by_what_computed_its_value(name: str, enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU autograd does so in a thread of its own, which knows nothing of the context of the call."""
    oracle, event, compute = GRADIENTS[name]
    served: list[bool] = []

    def spied(choose: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*given: Any) -> Any:
            served.append(switch.SERVING.get())
            return choose(*given)

        return chosen

    monkeypatch.setattr(Oracle, "_kernel", spied(Oracle._kernel))
    monkeypatch.setattr(kernels, "find", spied(kernels.find))
    leaf = torch.randn(2, *event, requires_grad=True)
    with switch.serving_as(enabled):
        value = compute(oracle, leaf).nan_to_num().sum()
    served.clear()
    context = switch.serving_as(not enabled)

    def backward() -> None:
        with context:
            value.backward()

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert leaf.grad is not None
    assert set(served) == {enabled}


def test_rows_without_a_certificate_go_to_the_reference() -> None:
    scores = torch.randn(4, 5, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[1::2] *= 1e4
    kernel = kernels.find("linear_chain", "log_partition", scores)
    assert kernel is not None
    failed = refused_rows(kernel, (scores,), (torch.empty(4, dtype=torch.float64),))
    assert failed is not None
    assert failed.tolist() == [1, 3]
    with kernels.disabled():
        expected = LinearChain().log_partition(scores)
    torch.testing.assert_close(LinearChain().log_partition(scores), expected, rtol=1e-12, atol=0)


def test_exponentials_are_exact_to_the_last_place() -> None:
    values = np.concatenate([np.linspace(-699, 700, 20_001), [0.0, -0.0, -1e-300]])
    out = np.empty_like(values)
    exponentials(values, 0.0, out)
    np.testing.assert_allclose(out, np.exp(values), rtol=4.5e-16)
    exponentials(np.array([-np.inf, -701.0, -1e300, 5.0]), 5.0, out[:4])
    assert out[:4].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("size", [*range(1, 20), 100])
def test_exponentials_in_place_and_of_any_size(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    values[size // 2] = -np.inf
    room = np.concatenate([values, [7.0]])
    exponentials(room[:size], 0.5, room[:size])
    np.testing.assert_allclose(room, [*np.exp(values - 0.5), 7.0], rtol=4.5e-16)


def test_exponentials_in_single_precision() -> None:
    @njit
    def apply(values: np.ndarray, out: np.ndarray) -> None:
        for x in range(0, len(values), 2 * WIDTH):
            weight = exponential_single(load_singles(values, x))
            store(out, x, low_half(weight))
            store(out, x + WIDTH, high_half(weight))

    values = np.linspace(-85, 0, 20_000).astype(np.float32)
    out = np.empty(20_000)
    apply(values, out)
    np.testing.assert_allclose(out, np.exp(values.astype(np.float64)), rtol=1.3e-7)
    apply(np.full(16, -np.inf, np.float32), out)
    apply(np.full(16, -87, np.float32), out[16:])
    assert not out[:32].any()


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


@pytest.mark.parametrize("size", [3, 5000])
def test_numbers_are_rounded_to_float32_as_torch_rounds_them(size: int) -> None:
    special = torch.tensor([math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, 1e-42, 1 + 2.0**-24, 0.1, -0.0], dtype=torch.float64)
    values = special.repeat(size)
    found = kernels.converted(values, torch.float32)
    np.testing.assert_array_equal(found.view(torch.int32).numpy(), values.to(torch.float32).view(torch.int32).numpy())
    assert kernels.converted(values, torch.float64) is values
    assert kernels.converted(values, torch.float16).dtype == torch.float16


def test_off_is_off() -> None:
    program = (
        "import sys, threading, torch\n"
        "from structgrad.oracles import LinearChain, kernels\n"
        "rows = torch.zeros(2, 3, 3, 3)\n"
        "assert abs(float(LinearChain().log_partition(rows)[0]) - 3.2958) < 1e-3\n"
        "assert not kernels.enabled(rows) and 'numba' not in sys.modules\n"
        "other = threading.Thread(target=lambda: print(kernels.find('linear_chain', 'argmax', rows)))\n"
        "other.start(), other.join()\n"
    )
    environment = {**os.environ, switch.VARIABLE: "off"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_what_the_environment_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, chosen in (("", "on"), ("on", "on"), ("off", "off"), ("check", "check")):
        monkeypatch.setenv(switch.VARIABLE, value)
        assert switch.chosen() == chosen
    monkeypatch.delenv(switch.VARIABLE)
    assert switch.chosen() == "on"
    monkeypatch.setenv(switch.VARIABLE, "no")
    said = r"^the environment variable STRUCTGRAD_KERNELS got 'no'; expected on, off or check; unset it for on$"
    with pytest.raises(ValueError, match=said):
        switch.chosen()
