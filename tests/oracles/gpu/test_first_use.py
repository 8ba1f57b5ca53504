"""That the executor serves only where it agrees with plain torch, and is given up where it fails, without a wrong or a missing result."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, kernels, make_oracle
from structgrad.oracles.kernels import gpu, notices, switch
from structgrad.oracles.kernels.gpu import first_use
from structgrad.oracles.kernels.notices import KernelWarning

executor = pytest.importorskip("structgrad.oracles.derivations.gpu", reason="Triton is offered for Linux alone")

NAME = r"derivations\.linear_chain\.log_partition float64"


@pytest.fixture
def first(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device whose kernels have never been used."""
    monkeypatch.setattr(switch, "CHOSEN", "on")
    monkeypatch.setattr(gpu, "_trusting", False)
    forget()
    yield gpu_kernels
    forget()


def forget() -> None:
    """Be a new process."""
    for cached in (gpu.unserved, first_use.use_of):
        cached.cache_clear()
    notices._said.clear()


def scores(device: torch.device, *event: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, *(event or (2, 2, 2)), dtype=torch.float64, device=device)


def right(rows: Tensor) -> bool:
    """Whether the log-partition is that of plain torch up to rounding."""
    rounding = 1e-12 if rows.dtype == torch.float64 else 1e-6
    found = LinearChain().log_partition(rows)
    with kernels.disabled():
        return torch.allclose(found, LinearChain().log_partition(rows), rtol=rounding, atol=rounding)


class Replaced:
    """A function of the executor that counts its launches, and in whose place a test may put something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str = "log_partition") -> None:
        self.original = getattr(executor, operation)
        self.launches, self.instead = 0, self.original
        monkeypatch.setattr(executor, operation, self)

    def __call__(self, *tensors: Any) -> Any:
        self.launches += 1
        return self.instead(*tensors)

    def wrong(self, rows: Tensor, result: Tensor, graph: Any) -> None:
        self.original(rows, result, graph)
        result += 1e-3


def raising(error: Exception) -> Callable[..., None]:
    def launch(*tensors: Tensor) -> None:
        raise error

    return launch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_operation_agrees_and_would_not_if_it_were_a_little_wrong(
    dtype: torch.dtype, first: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    differ, seen = first_use._difference, []

    def looking(found: Tensor, expected: Tensor, rows: Tensor) -> str:
        changed = found.clone()
        changed[changed.isfinite().nonzero()[-1].unbind()] += 1e-3 * (1 + float(changed.abs().max()))
        seen.append((differ(found, expected, rows), differ(changed, expected, rows)))
        return seen[-1][0]

    monkeypatch.setattr(first_use, "_difference", looking)
    oracle, scores = make_oracle("ctc"), torch.randn(1, 3, 3, 3, dtype=dtype, device=first)
    oracle.argmax(scores)
    oracle.log_partition(scores)
    oracle.sample(scores, 2, generator=torch.Generator(first))
    oracle.marginals(scores.requires_grad_()).square().sum().backward()
    assert len(seen) >= 5
    assert all(said == "" and "1 of" in otherwise for said, otherwise in seen), seen


def test_the_first_use_may_be_of_an_empty_batch(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared on a problem of its own, which is not empty."""
    kernel = Replaced(monkeypatch, "argmax")
    assert LinearChain().argmax(scores(first, 2, 2, 2, batch=0)).shape == (0, 2, 2, 2)
    assert kernel.launches == 2


def test_a_wrong_kernel_never_serves(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    kernel.instead = kernel.wrong
    with pytest.warns(KernelWarning, match=rf"`{NAME}` does not serve .* differs from plain torch: 3 of 3 numbers, by up to 0\.001"):
        assert right(rows)
    assert right(rows)  # and no second warning, which would be an error
    assert kernel.launches == 1
    assert LinearChain()._kernel("log_partition", rows) is None
    assert LinearChain()._kernel("argmax", rows) is not None


def test_a_right_kernel_is_compared_once_for_what_is_compiled_alike(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Replaced(monkeypatch)
    for rows in (scores(first), scores(first), scores(first, 3, 2, 2)):
        assert right(rows)
    assert kernel.launches == 4
    assert right(scores(first).float())
    assert kernel.launches == 6
    monkeypatch.setattr(first_use, "LARGEST", 20)
    forget()
    assert right(scores(first, 8, 2, 2))
    assert kernel.launches == 7, "what is large was compared"


def test_a_kernel_that_fails_is_reported_once_and_not_tried_again(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    kernel.instead = raising(RuntimeError("out of resource:\n  shared memory"))
    sentence = rf"`{NAME}` does not serve .*: RuntimeError: out of resource: shared memory; its operation goes on in plain torch"
    with pytest.warns(KernelWarning, match=f"{sentence}, more slowly; `structgrad doctor`") as said:
        assert right(rows)
    assert len(said) == 1
    assert right(rows)
    assert kernel.launches == 1
    # Another kernel fails for the same cause, of which nothing need be said again.
    other = Replaced(monkeypatch, "argmax")
    other.instead = kernel.instead
    LinearChain().argmax(rows)
    assert other.launches == 1


def test_a_kernel_that_fails_later_leaves_its_call_to_its_reference(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows, many = Replaced(monkeypatch), scores(first), scores(first, batch=5)

    def launch(rows: Tensor, result: Tensor, graph: Any) -> None:
        result.fill_(7.0)
        if len(rows) > 3:
            raise OSError("a grid that is too large")
        kernel.original(rows, result, graph)

    kernel.instead = launch
    assert right(rows)
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
        assert right(rows)
    kernel.instead = raising(error)
    with pytest.raises(torch.OutOfMemoryError):
        LinearChain().log_partition(rows)
    kernel.instead = kernel.original
    before = kernel.launches
    assert right(rows)
    assert kernel.launches > before


@pytest.mark.parametrize(
    ("error", "capturing", "reference", "raised"),
    [
        (RuntimeError("who knows"), False, ValueError("these rows are no good"), "no good"),  # plain torch raises too
        (torch.AcceleratorError("CUDA error: it is gone"), False, None, "gone"),
        (RuntimeError("not permitted"), True, None, "permitted"),
    ],
)
def test_errors_that_are_not_the_kernels_fault_pass(
    error: Exception, capturing: bool, reference: Exception | None, raised: str, *, first: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = first_use.Use("a.kernel", -1)
    use.proven = True
    monkeypatch.setattr(gpu, "_capturing", lambda: capturing)
    with pytest.raises(type(reference or error), match=raised):
        gpu.DeviceKernel(raising(error), (), use).computed((scores(first),), (), raising(reference) if reference else pytest.fail)
    assert not use.refused


def test_a_check_that_was_asked_for_fails(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "CHOSEN", "check")
    kernel = Replaced(monkeypatch)
    kernel.instead = kernel.wrong
    with pytest.raises(RuntimeError, match=rf"`{NAME}` does not serve .*; expected that it does, as STRUCTGRAD_KERNELS=check asks"):
        LinearChain().log_partition(scores(first))


def test_a_first_call_in_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    use = first_use.Use("a.kernel", 0)
    with pytest.raises(RuntimeError, match=r"`a.kernel` got its first call inside the capture .*; expected one before, .*; call the"):
        first_use.judge(use, pytest.fail, (torch.zeros(1, 1),), (), pytest.fail)
    assert not use.proven
    assert not use.refused


def test_a_kernel_that_breaks_cuda_ends_the_process(first: torch.device) -> None:
    error, rows = torch.AcceleratorError("CUDA error: an illegal memory access\nCUDA kernel errors might"), torch.zeros(1, 1, device=first)
    room = (1,), torch.float64
    with pytest.raises(RuntimeError, match=r"`a.kernel` broke CUDA .*\(CUDA error: an illegal memory access\).* STRUCTGRAD_KERNELS=off"):
        first_use.judge(first_use.Use("a.kernel", -1), raising(error), (rows,), (room,), lambda rows: (rows.sum(1),))


def test_what_its_caller_has_set_for_torch_does_not_matter(first: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, rows = Replaced(monkeypatch), scores(first)
    with torch.inference_mode(), torch.autocast(first.type, torch.bfloat16), torch.device("meta"):
        LinearChain().log_partition(rows)
    assert kernel.launches == 2
    assert right(rows)
    torch.testing.assert_close(torch.func.vmap(LinearChain().marginals)(rows), LinearChain().marginals(rows))


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
