from __future__ import annotations

import math
import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, kernels

linear_chain = pytest.importorskip("structgrad.oracles.linear_chain.gpu", reason="Triton is offered for Linux alone")

FEW = [(1, 1, torch.float64), (1, 3, torch.float32), (3, 2, torch.float64), (4, 5, torch.float32), (3, 5, torch.float64)]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def hard_rows(length: int, tags: int, dtype: torch.dtype) -> Tensor:
    """Flat scores, plain ones of which some are forbidden, large ones far from 0, and none that is feasible; NaN in what is ignored."""
    rows = torch.tensor([0.05, 1.0, 50.0, 1.0]).reshape(4, 1, 1, 1).to(dtype) * torch.randn(4, length, tags, tags, dtype=dtype)
    rows[1, torch.rand(length, tags, tags) < 0.3] = -math.inf
    # Tag 0 is where nothing may start, the last one where everything may go on.
    rows[1, 0, 0, 0] = -math.inf
    rows[1, 0, 0, -1] = rows[1, 1:, -1, -1] = 0
    rows[2] = (rows[2] + 1e4).half().to(dtype) - 7e3
    rows[3, -1] = -math.inf
    rows[:, 0, 1:] = math.nan
    return rows


def read(rows: Tensor) -> Tensor:
    """The rows as the references get them."""
    return torch.where(LinearChain().read_mask(tuple(rows.shape[1:]), rows.device), rows, 0)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=device)


def call(operation: str, rows: Tensor, *others: Tensor) -> None:
    kernel = kernels.find("linear_chain", operation, rows)
    assert isinstance(kernel, kernels.gpu.DeviceKernel)
    kernel(rows, *others)


@pytest.mark.parametrize(("length", "tags", "dtype"), FEW)
def test_laws_equal_the_reference(length: int, tags: int, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    oracle, rows = LinearChain(), hard_rows(length, tags, dtype).to(gpu_kernels)
    direction = torch.randn(rows.shape, dtype=dtype).to(gpu_kernels)
    marginals, product = (poisoned(tuple(rows.shape), dtype, gpu_kernels) for _ in range(2))
    alone, beside = (poisoned((4,), torch.float64, gpu_kernels) for _ in range(2))
    call("log_partition", rows, alone)
    call("marginals", rows, marginals, beside)
    call("covariance_product", rows, direction, product)
    with kernels.disabled():
        expected, log_partition = oracle._compute_marginals(rows.double())
        varied = oracle._compute_covariance_product(rows.double(), direction.double())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(alone, log_partition, rtol=tolerance / 10, atol=tolerance)
    assert torch.equal(alone, beside)
    torch.testing.assert_close(marginals.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(product.double(), varied, rtol=0, atol=4 * tolerance)
    assert bool((marginals[3] == 0).all())
    assert bool((product[3] == 0).all())
    torch.testing.assert_close(
        marginals[:3].sum((-2, -1)).double(), torch.ones(3, length, device=gpu_kernels).double(), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize(("length", "tags", "dtype"), FEW)
def test_best_equals_the_reference(length: int, tags: int, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    rows = hard_rows(length, tags, dtype)
    rows = torch.cat([rows, (1.5 * rows[:2]).round(), torch.zeros_like(rows[:1])]).to(gpu_kernels)
    structures = poisoned(tuple(rows.shape), dtype, gpu_kernels)
    call("argmax", rows, structures)
    with kernels.disabled():
        assert torch.equal(LinearChain()._feasible_or_zero(structures, rows), LinearChain().argmax(read(rows)))


@pytest.mark.parametrize(("length", "tags", "count"), [(1, 3, 1), (3, 1, 2), (5, 5, 5)])
def test_samples_equal_the_reference(
    length: int, tags: int, count: int, gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = torch.float64 if tags == 1 else torch.float32
    monkeypatch.setattr(linear_chain, "LANES", 16)
    rows = hard_rows(length, tags, dtype).to(gpu_kernels)
    uniforms = torch.rand(4, count, length, dtype=torch.float64).to(gpu_kernels)
    uniforms[:, 0], uniforms[:, -1, 0] = 0, 1 - 2**-53
    structures = poisoned((4, count, length, tags, tags), dtype, gpu_kernels)
    call("sample", rows, uniforms, structures)
    assert torch.equal(structures, LinearChain()._reference_draw(read(rows), uniforms).to(dtype))
    assert bool((structures[3] == 0).all())


def test_long_chains_lose_nothing(gpu_kernels: torch.device) -> None:
    rows = 20 * torch.randn(1, 30, 3, 3) + 1e4
    rows = rows.round(decimals=2).to(gpu_kernels)
    marginals, log_partition = LinearChain()._compute_marginals(rows)
    with kernels.disabled():
        expected, value = LinearChain()._compute_marginals(rows.double())
    torch.testing.assert_close(marginals.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(log_partition.double(), value, rtol=1e-7, atol=0)


def test_a_direction_common_to_all_has_no_product(gpu_kernels: torch.device) -> None:
    rows = torch.randn(1, 12, 3, 3).to(gpu_kernels)
    product = LinearChain()._compute_covariance_product(rows, torch.full_like(rows, 1e3))
    torch.testing.assert_close(product, torch.zeros_like(product), rtol=0, atol=1e-3)


def test_rows_do_not_depend_on_their_batch(gpu_kernels: torch.device) -> None:
    rows = torch.randn(3, 3, 3, 3).to(gpu_kernels)
    whole, _ = LinearChain()._compute_marginals(rows)
    single, _ = LinearChain()._compute_marginals(rows[1:2])
    assert torch.equal(whole[1:2], single)


def test_the_oracle_takes_them(gpu_kernels: torch.device) -> None:
    oracle, scores = LinearChain(), torch.randn(2, 2, 3, 3, dtype=torch.float64).to(gpu_kernels).requires_grad_()
    direction = torch.randn_like(scores)

    def derivatives() -> tuple[Tensor, Tensor]:
        (first,) = torch.autograd.grad(oracle.log_partition(scores).sum(), scores, create_graph=True)
        return first, torch.autograd.grad((first * direction).sum(), scores)[0]

    found = derivatives()
    with kernels.disabled():
        torch.testing.assert_close(found, derivatives())
    half = scores.detach().half()
    assert oracle.marginals(half).dtype == oracle.argmax(half).dtype == torch.float16
    lengths = torch.tensor([1, 2], device=gpu_kernels)
    with kernels.disabled():
        expected = oracle.marginals(scores.detach(), lengths=lengths)
    torch.testing.assert_close(oracle.marginals(scores.detach(), lengths=lengths), expected)
    generator = torch.Generator(gpu_kernels).manual_seed(0)
    assert oracle.sample(half, 2, generator=generator).sum().item() == 8


def test_wide_chains_run_on_the_reference(gpu_kernels: torch.device) -> None:
    assert kernels.find("linear_chain", "marginals", torch.zeros(1, 2, 65, 65, device=gpu_kernels)) is None


def test_steps_times_samples_may_exceed_32_bits(gpu_kernels: torch.device, tmp_path: Path) -> None:
    """One sample of many, in a file of which nothing but its own tags is ever touched."""
    from structgrad.oracles.linear_chain.gpu_walks import write_kernel

    length, count = 16, 2**31 // 15 + 1
    if gpu_kernels.type == "cuda":
        drawn = torch.empty(length, count, dtype=torch.int32, device=gpu_kernels)
        places = drawn[:, 0]
    else:
        with (tmp_path / "drawn").open("wb+") as file:
            file.truncate(4 * length * count)
            space = mmap.mmap(file.fileno(), 0)
        # The interpreter copies what a tensor holds, and reads wherever a pointer leads.
        drawn, places = torch.frombuffer(space, dtype=torch.int32, count=1), torch.frombuffer(space, dtype=torch.int32)[::count]
    tags = torch.tensor([0, 1] * (length // 2), dtype=torch.int32)
    places.copy_(tags)
    found = torch.zeros(length, 2, 2, device=gpu_kernels)
    write_kernel[(2,)](drawn, found, count, 2, length, 2, 2, 8, num_warps=1)
    assert found[1:].nonzero().tolist() == [[step - 1, (step - 1) % 2, step % 2] for step in range(1, length)]
