from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Triton decides when kernels are defined whether its interpreter runs them; see `kernels.gpu.interpreted`.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture
def gpu_kernels() -> Iterator[torch.device]:
    """A device on which the kernels of the GPU serve: a GPU, or the CPU with Triton's interpreter in their place."""
    from structgrad.oracles.kernels import gpu

    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    with gpu.interpreted():
        yield torch.device("cpu")
