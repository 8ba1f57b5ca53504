"""That a kernel serves only where it agrees with plain torch, and that one which fails is given up, without a wrong or a missing result."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators.relaxations.entmax import entmax
from structgrad.oracles import LinearChain, kernels, make_oracle
from structgrad.oracles.active_set.device_atoms import DeviceAtoms
from structgrad.oracles.kernels import gpu, notices, switch
from structgrad.oracles.kernels.gpu import first_use, verdicts
from structgrad.oracles.kernels.notices import KernelWarning
from structgrad.oracles.random_streams import SeedBlocks
from structgrad.oracles.simplex import projection

pytest.importorskip("triton", reason="Triton is offered for Linux alone")

CHAIN = "structgrad.oracles.linear_chain.gpu"
NAME = r"linear_chain\.log_partition 2x2x2 float64"


@pytest.fixture
def first(gpu_kernels: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device whose kernels have never been used, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(switch, "CHOSEN", "on")
    monkeypatch.setattr(gpu, "_trusting", False)
    forget()
    if gpu_kernels.type == "cuda":
        yield gpu_kernels
    else:
        with gpu.interpreted(comparing=True):
            yield gpu_kernels
    forget()


def forget() -> None:
    """Be a new process."""
    for cached in (gpu._kernel, gpu.unserved, first_use._use):
        cached.cache_clear()
    first_use._without.clear()
    notices._said.clear()


def index(device: torch.device) -> int:
    return 0 if device.type == "cuda" else first_use.INTERPRETER


def scores(device: torch.device, *event: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, *(event or (2, 2, 2)), dtype=torch.float64, device=device)


def expected(rows: Tensor) -> Tensor:
    with kernels.disabled():
        return LinearChain().log_partition(rows)


def right(rows: Tensor) -> bool:
    """Whether the log-partition is right up to rounding: the executor of derivations may serve where a kernel of the chain does not."""
    return torch.allclose(LinearChain().log_partition(rows), expected(rows), rtol=1e-12, atol=1e-12)


class Replaced:
    """A kernel that counts its launches, and in whose place a test may put something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str = CHAIN, operation: str = "log_partition") -> None:
        self.original = getattr(importlib.import_module(module), operation)
        self.launches, self.instead = 0, self.original
        monkeypatch.setattr(f"{module}.{operation}", self)

    def __call__(self, *tensors: Any) -> Any:
        self.launches += 1
        return self.instead(*tensors)

    def wrong(self, rows: Tensor, result: Tensor) -> None:
        self.original(rows, result)
        result += 1e-3


def raising(error: Exception) -> Callable[..., None]:
    def launch(*tensors: Tensor) -> None:
        raise error

    return launch


# Every kernel.

CASES: dict[str, tuple[int, ...]] = {
    "subset[k=2]": (3,),
    "linear_chain": (2, 2, 2),
    "alignment": (2, 3),
    "constituency": (3, 3),
    "projective_tree": (3, 3),
    "spanning_tree": (3, 3),
    "assignment": (2, 2),
    "shift_reduce[normalization=local]": (3, 3, 2),
    "semi_markov": (2, 2, 1, 1),
}

OPERATIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "argmax": lambda oracle, rows: oracle.argmax(rows),
    "log_partition": lambda oracle, rows: oracle.log_partition(rows),
    "marginals": lambda oracle, rows: oracle.marginals(rows),
    "covariance_product": lambda oracle, rows: oracle._compute_covariance_product(rows, rows),
    "sample": lambda oracle, rows: oracle._draw(rows, torch.full((1, 2, oracle._noise_size(rows.shape[1:])), 0.5).to(rows.device).double()),
    "project": lambda oracle, rows: oracle.project(rows).mean,
    "unranking": lambda oracle, rows: oracle.enumerate(tuple(rows.shape[1:]), device=rows.device),
}


def test_the_first_use_may_be_of_an_empty_batch(first: torch.device) -> None:
    """It is compared on a problem of its own, which is not empty."""
    oracle = make_oracle("subset[k=2]")
    assert oracle.argmax(scores(first, 4, batch=0)).shape == (0, 4)
    assert oracle.enumerate((4,), 3, 3, device=first).shape == (0, 4)
    known = verdicts.recorded(index(first))
    assert {name.split()[0] for name, wrong in known.items() if not wrong} == {"subset.argmax", "unranking.subset"}


NO_KERNELS = {("semi_markov", "project"), ("semi_markov", "unranking")}


@pytest.mark.parametrize(("case", "operation"), [pair for pair in product(CASES, OPERATIONS) if pair not in NO_KERNELS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_kernel_agrees_and_would_not_if_it_were_a_little_wrong(
    case: str, operation: str, dtype: torch.dtype, first: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(monkeypatch, lambda: OPERATIONS[operation](make_oracle(case), torch.randn(1, *CASES[case], dtype=dtype, device=first)))


@pytest.mark.parametrize(
    "call",
    [
        lambda device: SeedBlocks((7,), 4, device).uniforms(4, 3, device),
        lambda device: entmax(torch.randn(2, 3, device=device), 1.3),
        lambda device: projection.project(torch.randn(2, 3, dtype=torch.float64, device=device), 1),
        lambda device: make_oracle("shift_reduce[normalization=local]").log_partition(torch.randn(1, 3, 3, 2, device=device)),
    ],
    ids=["philox", "entmax", "simplex", "policy"],
)
def test_so_do_the_kernels_beside_those_of_structures(
    call: Callable[[torch.device], Any], first: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(monkeypatch, lambda: call(first))


def agree(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
    differ, seen = first_use._difference, []

    def looking(found: Tensor, theirs: Tensor, tolerance: Tensor) -> str:
        said = differ(found, theirs, tolerance)
        assert said == ""
        changed = found.double().clone()
        changed[changed.isfinite().nonzero()[-1].unbind()] += 1e-3 * (1 + float(changed.abs().max()))
        seen.append(differ(changed, theirs, tolerance))
        return said

    monkeypatch.setattr(first_use, "_difference", looking)
    monkeypatch.setattr(gpu.DeviceKernel, "attempt", lambda kernel, launch, otherwise: otherwise())  # launched once is enough
    call()
    assert seen
    assert all("1 of" in said for said in seen), seen


# A kernel that is wrong.


def test_a_wrong_kernel_never_serves_and_that_is_remembered(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    kernel.instead = kernel.wrong
    with pytest.warns(
        KernelWarning, match=rf"`{NAME}` does not serve .* differs from plain torch: 3 of 3 numbers, by up to 0\.001.*delete"
    ):
        assert right(rows)
    assert right(rows)  # and no second warning, which would be an error
    assert kernel.launches == 1
    assert kernels.find("linear_chain", "log_partition", rows) is None
    forget()
    with pytest.warns(KernelWarning, match="differs from plain torch"):
        assert right(rows)
    assert kernel.launches == 1, "another process launched what is known to be wrong"


def test_a_right_kernel_is_compared_once_for_all_processes(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    for _ in range(3):
        torch.testing.assert_close(LinearChain().log_partition(rows), expected(rows))
    assert kernel.launches == 4
    forget()
    LinearChain().log_partition(rows)
    assert kernel.launches == 5
    monkeypatch.setattr(verdicts, "_source", lambda: "changed")
    verdicts.identity.cache_clear()
    forget()
    LinearChain().log_partition(rows)
    verdicts.identity.cache_clear()
    assert kernel.launches == 7, "the source changed, and the kernel was not compared anew"


def test_a_kernel_that_leaves_results_unwritten_is_wrong(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    kernel.instead = lambda rows, result: None
    with pytest.warns(KernelWarning, match="by up to inf"):
        assert right(rows)


@pytest.mark.parametrize("content", [b"\x00\xff\xfe{", b'{"kernel": 3, "wrong": ""}\n[1]\n7\n', b'{"kernel": "linear_chain.log'])
def test_what_cannot_be_read_is_compared_anew(content: bytes, first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    path = verdicts.file(index(first))
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for launches in (2, 3):
        LinearChain().log_partition(rows)
        assert kernel.launches == launches
        forget()


def test_without_a_folder_to_write_to_every_process_compares_for_itself(
    first: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for launches in (2, 4):
        torch.testing.assert_close(LinearChain().log_partition(rows), expected(rows))
        assert kernel.launches == launches
        forget()


@pytest.mark.usefixtures("first")
def test_processes_record_at_once() -> None:
    children = []
    for process in range(4):
        child = os.fork()
        if child == 0:
            for place in range(50):
                verdicts.record(first_use.INTERPRETER, f"{process} {place}", "x" * (process * 100))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    found = verdicts.recorded(first_use.INTERPRETER)
    assert found == {f"{process} {place}": "x" * (process * 100) for process in range(4) for place in range(50)}
    for line in verdicts.file(first_use.INTERPRETER).read_text().split("\n"):
        assert not line or json.loads(line)["device"] == "Triton's interpreter"


def test_the_executor_of_derivations_is_given_up_for_the_structure_that_it_is_wrong_for(
    first: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, oracle, other = Replaced(monkeypatch, "structgrad.oracles.derivations.gpu"), make_oracle("ctc"), make_oracle("semi_markov")

    def launch(rows: Tensor, result: Tensor, graph: Any) -> None:
        executor.original(rows, result, graph)
        if rows.ndim == 4:
            result += 1e-3

    executor.instead, rows = launch, scores(first, 2, 3, 3)
    with pytest.warns(
        KernelWarning, match=r"`derivations\.ctc\.log_partition 2x2\+1x2\+1 float64` does not serve .* differs from plain torch"
    ):
        found = oracle.log_partition(rows)
    assert executor.launches == 1
    with kernels.disabled():
        assert torch.equal(found, oracle.log_partition(rows))
    assert oracle._kernel("log_partition", rows) is None
    other.log_partition(scores(first, 2, 1, 1, 1))
    assert executor.launches == 3


# A kernel that cannot be launched.


def test_a_kernel_that_fails_is_reported_once_and_not_tried_again(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    kernel.instead = raising(RuntimeError("out of resource:\n  shared memory"))
    sentence = (
        rf"`{NAME}` does not serve .*: RuntimeError: out of resource: shared memory; its operation goes on in plain torch, more slowly"
    )
    with pytest.warns(KernelWarning, match=f"{sentence}; `structgrad doctor`") as said:
        assert right(rows)
    assert len(said) == 1
    assert right(rows)
    assert kernel.launches == 1
    # Another kernel fails for the same cause, of which nothing need be said again.
    other = Replaced(monkeypatch, operation="argmax")
    other.instead = kernel.instead
    LinearChain().argmax(rows)
    assert other.launches == 1
    # The executor of derivations serves instead.
    assert {name.partition(".")[0] for name in verdicts.recorded(index(first))} == {"derivations"}
    forget()
    kernel.instead = kernel.original
    torch.testing.assert_close(LinearChain().log_partition(rows), expected(rows))
    assert kernel.launches == 3, "another process did not try"


def test_where_nothing_can_be_compiled_no_other_kernel_is_tried(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, served, failing, other = scores(first), *(Replaced(monkeypatch, operation=name) for name in ("argmax", "marginals", "sample"))
    LinearChain().argmax(rows)
    failing.instead = raising(
        RuntimeError("`ptxas` stderr: Value 'sm_120' is not defined for option 'gpu-name'\nRepro command: ptxas /tmp/1")
    )
    with pytest.warns(KernelWarning, match="option 'gpu-name'; its .*; install a torch"):
        LinearChain().marginals(rows)
    LinearChain().sample(rows, generator=SeedBlocks((7,), 2, first))
    assert other.launches == 0
    before = served.launches
    LinearChain().argmax(rows)
    assert served.launches == before + 1, "what is compiled goes on"


def test_a_kernel_that_fails_for_one_size_serves_the_others(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, small, large = Replaced(monkeypatch), scores(first), scores(first, 2, 5, 5)

    def launch(rows: Tensor, result: Tensor) -> None:
        if rows.shape[-1] > 4:
            raise OSError("out of resource: shared memory")
        kernel.original(rows, result)

    kernel.instead = launch
    LinearChain().log_partition(small)
    with pytest.warns(KernelWarning, match=r"log_partition 2x4\+1x4\+1 float64` .*shared memory"):
        assert right(large)
    before = kernel.launches
    LinearChain().log_partition(small)
    assert kernel.launches == before + 1


def test_a_kernel_that_fails_later_leaves_its_call_to_its_reference(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows, many = Replaced(monkeypatch), scores(first), scores(first, batch=5)

    def launch(rows: Tensor, result: Tensor) -> None:
        result.fill_(7.0)
        if len(rows) > 3:
            raise OSError("a grid that is too large")
        kernel.original(rows, result)

    kernel.instead = launch
    LinearChain().log_partition(rows)
    with pytest.warns(KernelWarning, match="OSError: a grid that is too large"):
        assert right(many)
    before = kernel.launches
    assert right(rows)
    assert kernel.launches == before


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), RuntimeError("Triton Error [CUDA]: out of memory")], ids=["torch", "triton"]
)
def test_memory_that_runs_out_is_no_failure(proven: bool, error: Exception, first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    if proven:
        LinearChain().log_partition(rows)
    kernel.instead = raising(error)
    with pytest.raises(torch.OutOfMemoryError):
        LinearChain().log_partition(rows)
    kernel.instead = kernel.original
    before = kernel.launches
    torch.testing.assert_close(LinearChain().log_partition(rows), expected(rows))
    assert kernel.launches > before


def test_what_plain_torch_raises_too_is_not_the_kernels_fault(first: torch.device) -> None:
    rows, result = scores(first), torch.zeros(2, dtype=torch.float64, device=first)
    use = first_use.Use("a", "kernel", "", index(first))
    use.proven = True

    def reference(rows: Tensor) -> tuple[Tensor]:
        raise ValueError("these rows are no good")

    with pytest.raises(ValueError, match="no good"):
        gpu.DeviceKernel(raising(RuntimeError("who knows")), (), use).run((rows,), (result,), reference)
    assert not use.refused


def test_an_error_of_cuda_and_one_in_a_capture_pass(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    use = first_use.Use("a", "kernel", "", index(first))
    use.proven = True
    for error, capturing in ((torch.AcceleratorError("CUDA error: it is gone"), False), (RuntimeError("not permitted"), True)):
        monkeypatch.setattr(gpu, "_capturing", lambda capturing=capturing: capturing)
        kernel = gpu.DeviceKernel(raising(error), (), use)
        with pytest.raises(type(error), match=r"gone|permitted"):
            kernel.attempt(lambda kernel=kernel: kernel(scores(first)), lambda: None)
        assert not use.refused


# Projections.


def test_projections_and_their_gradients_go_on_without_kernels(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, rows, direction = LinearChain(), scores(first).requires_grad_(), scores(first)

    def projected() -> tuple[Tensor, Tensor]:
        mean = oracle.project(rows).mean
        return mean.detach(), torch.autograd.grad(mean, rows, direction)[0]

    with kernels.disabled():
        mean, product = projected()
    torch.testing.assert_close(projected(), (mean, product))
    monkeypatch.setattr(DeviceAtoms, "_moved_by_kernel", raising(RuntimeError("no move")))
    with pytest.warns(KernelWarning, match="linear_chain.project .*no move"):
        torch.testing.assert_close(projected(), (mean, product))
    assert kernels.find("linear_chain", "project", rows) is None
    torch.testing.assert_close(projected(), (mean, product))
    forget()
    project = Replaced(monkeypatch, operation="project")
    project.instead = raising(RuntimeError("no projection"))
    with pytest.warns(KernelWarning, match="no projection"):
        torch.testing.assert_close(projected(), (mean, product))


def test_a_projection_of_shorter_items_is_launched_as_such(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, lengths = scores(first), torch.tensor([1, 2], device=first)
    kernel = Replaced(monkeypatch, operation="project")
    with kernels.disabled():
        mean = LinearChain().project(rows, lengths=lengths).mean
    kernel.instead = lambda rows, inside, *rest: (
        kernel.original(rows, inside, *rest) if inside.shape[1] else pytest.fail("not what is in use")
    )
    torch.testing.assert_close(LinearChain().project(rows, lengths=lengths).mean, mean)
    assert kernel.launches == 2
    kernel.instead = raising(RuntimeError("not now"))
    with pytest.warns(KernelWarning, match="not now"):
        torch.testing.assert_close(LinearChain().project(rows, lengths=lengths).mean, mean)


# What the environment asks for.


def test_a_check_is_made_anew_and_what_differs_or_fails_is_an_error(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    LinearChain().log_partition(rows)
    monkeypatch.setattr(switch, "CHOSEN", "check")
    for instead, said in (
        (kernel.wrong, "differs from plain torch: 3 of 3"),
        (raising(OSError("no compiler")), "OSError: no compiler"),
    ):
        forget()
        kernel.instead = instead
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"`{NAME}` .*{said}.*; expected that it does, as STRUCTGRAD_KERNELS=check asks; .*"):
                LinearChain().log_partition(rows)


def test_a_launch_that_fails_later_is_an_error_too(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    monkeypatch.setattr(switch, "CHOSEN", "check")
    LinearChain().log_partition(rows)
    kernel.instead = raising(OSError("a grid"))
    with pytest.raises(RuntimeError, match="OSError: a grid; expected"):
        LinearChain().log_partition(rows)


def test_off_is_off_on_the_cpu_too() -> None:
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


def test_what_it_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, chosen in (("", "on"), ("on", "on"), ("off", "off"), ("check", "check")):
        monkeypatch.setenv(switch.VARIABLE, value)
        assert switch.chosen() == chosen
    monkeypatch.delenv(switch.VARIABLE)
    assert switch.chosen() == "on"
    monkeypatch.setenv(switch.VARIABLE, "no")
    with pytest.raises(
        ValueError, match=r"^the environment variable STRUCTGRAD_KERNELS got 'no'; expected on, off or check; unset it for on$"
    ):
        switch.chosen()


# When there is no comparing.


def test_in_a_capture_only_what_is_known_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(verdicts, "recorded", lambda device: {"known.argmax of 2": verdicts.RIGHT})
    known, new = (first_use.Use(name, "argmax", "of 2", 0) for name in ("known", "new"))
    first_use.judge(known, pytest.fail)
    assert known.proven
    with pytest.raises(
        RuntimeError, match=r"`new.argmax of 2` got its first call inside the capture .*; expected one before, .*; call the operation"
    ):
        first_use.judge(new, pytest.fail)
    assert not new.proven
    assert not new.refused


def test_it_waits_though_waiting_is_refused(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = [2]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(verdicts, "identity", lambda device: {})
    monkeypatch.setattr(first_use, "compared", lambda trial, device: "" if modes == [2, 0] else "it was refused")
    trial: Any = None
    first_use.judge(first_use.Use("a", "kernel", "", 0), lambda: trial)
    assert modes == [2, 0, 2]


def test_a_kernel_that_breaks_cuda_is_remembered(first: torch.device) -> None:
    def launch(*tensors: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nCUDA kernel errors might")

    use = first_use.Use("a", "kernel", "", index(first))
    trial = first_use.Trial((torch.zeros(1, 1),), lambda rows: (rows,), launch)
    with pytest.raises(RuntimeError, match=r"`a.kernel ` broke CUDA .*\(CUDA error: an illegal memory access\).*; start it again"):
        first_use.judge(use, lambda: trial)
    assert verdicts.recorded(index(first)) == {"a.kernel ": "it broke CUDA (CUDA error: an illegal memory access)"}


def test_what_its_caller_has_set_for_torch_does_not_matter(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    with torch.inference_mode(), torch.autocast(first.type, torch.bfloat16), torch.device("meta"):
        found = LinearChain().log_partition(rows)
    torch.testing.assert_close(found, expected(rows))
    assert kernel.launches == 2
    torch.testing.assert_close(torch.func.vmap(LinearChain().marginals)(rows), LinearChain().marginals(rows))


# Which devices and sizes.


@pytest.mark.parametrize(
    ("hip", "capability", "available", "said"),
    [
        ("6.2", (9, 0), True, "ROCm"),
        (None, (6, 1), True, "compute capability 6.1, below 7.0"),
        (None, (9, 0), False, "no Triton"),
        (None, (7, 0), True, ""),
    ],
)
def test_devices_that_kernels_do_not_serve(
    hip: str | None, capability: tuple[int, int], available: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, hip, capability, available)
    assert gpu.unserved(0).startswith(said)
    assert bool(gpu.unserved(0)) == bool(said)
    tensor: Any = SimpleNamespace(is_cuda=True, get_device=lambda: 0)
    assert gpu.takes(tensor) == (not said)
    forget()


def pretend(monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: tuple[int, int], available: bool) -> SimpleNamespace:
    """A device of these properties, and the driver of Triton for it."""
    forget()
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(gpu, "_available", lambda: available)
    active = SimpleNamespace(get_current_target=lambda: None)
    monkeypatch.setattr("triton.runtime.driver", SimpleNamespace(active=active))
    return active


def test_a_triton_that_launches_nothing_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    active = pretend(monkeypatch, None, (9, 0), True)
    active.get_current_target = raising(subprocess.CalledProcessError(1, ["gcc", "/tmp/a"]))
    with pytest.warns(KernelWarning, match="Triton cannot launch kernels: gcc ended with 1; .* plain torch, .*; install a C compiler"):
        assert "cannot launch" in gpu.unserved(0)
    assert "cannot launch" in gpu.unserved(1)
    monkeypatch.setattr(switch, "CHOSEN", "check")
    with pytest.raises(
        RuntimeError, match=r"Triton cannot launch kernels: .*; expected that it can, as STRUCTGRAD_KERNELS=check asks; install"
    ):
        gpu.unserved(2)
    forget()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("Failed to find C compiler."), "install a C compiler"),
        (subprocess.CalledProcessError(1, "gcc"), "the headers of Python"),
        (RuntimeError("ptxas fatal: Value 'sm_120' is not defined for option 'gpu-name'"), "that knows this card"),
        (RuntimeError("out of resource"), "structgrad doctor"),
    ],
)
def test_what_to_do(error: Exception, said: str) -> None:
    assert said in first_use.advice_on(error)


def test_tests_of_kernels_may_trust_them() -> None:
    def trusted() -> bool:
        kernel = gpu.find("linear_chain", "log_partition", (2, 2, 2), torch.float64, (), 0)
        assert kernel is not None
        return kernel.use.trusted

    with gpu.trusted():
        assert trusted()
    assert trusted() == torch.cuda.is_available()
    forget()


def test_sizes_of_one_kind_are_those_that_are_compiled_alike() -> None:
    def kind(size: int, operation: str = "marginals", *options: Any) -> str:
        return first_use.kind(first_use.capped("constituency", operation, (size, size), options), torch.float32, options)

    assert kind(33) == "32+1x32+1 float32"
    assert kind(34) == kind(47) == kind(63) != kind(48) == "<64/16x<64/16 float32"
    assert len({kind(size) for size in (31, 32, 33, 40, 48, 64, 65)}) == 7
    assert kind(129) == kind(500) == kind(128)
    assert kind(500, "sample") != kind(128, "sample")
    assert kind(8, "argmax", True) != kind(8, "argmax", False)
    assert kind(8, "argmax", 5) == kind(8, "argmax", 5) != kind(8, "argmax", 9)
    assert first_use.capped("subset", "marginals", (16384,), (5000,)) == (10000,)
    assert first_use.capped("alignment", "marginals", (600, 300), ()) == (512, 300)


def test_a_larger_problem_is_compared_at_a_smaller_size(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first, 4, 2, 2)
    sizes: list[int] = []

    def launch(rows: Tensor, result: Tensor) -> None:
        sizes.append(rows.shape[1])
        kernel.original(rows, result)

    kernel.instead = launch
    monkeypatch.setattr(first_use, "LARGEST", 2)
    torch.testing.assert_close(LinearChain().log_partition(rows), expected(rows))
    assert sizes == [2, 4]
