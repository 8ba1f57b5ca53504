import os
from pathlib import Path

import pytest
import torch

pytest_plugins = ["tests.covering", "tests.costs"]

# Numba colours the text of every error, and most of those it catches itself, while it looks for a function that takes some types.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Benchmarks that are not asked for need not be imported."""
    return (collection_path.name == "benchmarks" and "not benchmark" in config.option.markexpr) or None


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Reset the number of threads and the seed, which the test before may have set."""
    torch.set_num_threads(1)
    # `torch.manual_seed` writes the stack of its caller down for devices that are not there yet: half a second per thousand tests.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture(params=["cpu", *[pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
