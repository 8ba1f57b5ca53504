from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest_plugins = ["tests.covering", "tests.costs"]

# Numba colours the text of every error, and most of those it catches itself, while it looks for a function that takes some types.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

if not torch.cuda.is_available():
    # Triton decides when kernels are defined whether its interpreter runs them; see `kernels.gpu.interpreted`.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of kernels as `gpu` if there is a GPU."""
    for item in items if torch.cuda.is_available() else []:
        if "gpu_kernels" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _trusted() -> Iterator[None]:
    """Run the kernels of a GPU, if there is one, without fallbacks and first-use checks."""
    if not torch.cuda.is_available():
        yield
        return
    from structgrad.oracles.kernels import gpu

    with gpu.trusted():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # `torch.manual_seed` writes the stack of its caller down for devices that are not there yet: half a second per thousand tests.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture(params=["cpu", *[pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device on which the kernels of the GPU serve: a GPU, or the CPU with Triton's interpreter in their place."""
    from structgrad.oracles.kernels import gpu

    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    _let_numbers_be_limits(monkeypatch)
    with gpu.interpreted(), gpu.trusted(), _patched_once(monkeypatch):
        yield torch.device("cpu")


def _let_numbers_be_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter holds a number as an array of one entry, which NumPy from 2.4 on does not take for the limit of a `range`."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patch_and_convert(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        replace = scope[0].set_attr if scope else setattr
        replace(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_convert)


@contextmanager
def _patched_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patch Triton's language once, because patching it for every call takes half of the interpreter's time."""
    interpreter, language = (importlib.import_module(name) for name in ("triton.runtime.interpreter", "triton.language"))
    executor = importlib.import_module("structgrad.oracles.derivations.gpu")
    scopes = [interpreter._patch_lang(function.fn) for function in (executor._values, language.standard.zeros)]
    monkeypatch.setattr(interpreter, "_patch_lang", lambda function: SimpleNamespace(restore=lambda: None))
    yield
    for scope in reversed([scope for scope in scopes if scope is not None]):
        scope.restore()
