"""Access to the measured commit, which may be old.

A missing part raises `NotImplementedError` in ``setup``, by which asv skips a benchmark with the reason.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from typing import Any

import torch

MODULES = ("oracles", "estimators", "suites.truth", "suites.measures.bias", "suites.measures.memory", "suites.measures.sparsity")


def load() -> None:
    """Import the package, the compiler and torch's autograd.

    asv forks every benchmark from a process that has imported this folder, so 1.5 s are spent once, not a thousand times. A failure here
    is a failure again in the benchmarks that need the module.
    """
    torch.set_num_threads(1)
    for module in (*(f"structgrad.{name}" for name in MODULES), "torch._dynamo"):  # the last for the profiler, which counts memory
        with suppress(Exception):
            importlib.import_module(module)
    with suppress(Exception):
        leaf = torch.zeros(2, requires_grad=True)
        # Only an explicit weight imports half of torch.
        torch.autograd.grad(make_oracle("subset[k=1]").log_partition(leaf), leaf, torch.ones(()))


def of_commit(module: str, name: str) -> Any:
    """An attribute of the measured package, such as ``of_commit("estimators", "make_estimator")``.

    Raises:
        NotImplementedError: this commit has no such module or attribute.
        ModuleNotFoundError: a library is not installed.
    """
    path = f"structgrad.{module}"
    try:
        return getattr(importlib.import_module(path), name)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise
        raise NotImplementedError(f"this commit has no {path}") from error
    except AttributeError as error:
        raise NotImplementedError(f"this commit has no {path}.{name}") from error


def make_oracle(text: str) -> Any:
    """The oracle of a name with options, such as ``subset[k=5]``."""
    return _made(text, "oracle")


def make_estimator(name: str, oracle: Any, event: tuple[int, ...]) -> Any:
    """The estimator of a name, if it supports the oracle at this size."""
    estimator = _made(name, "estimator")
    # Before categories and policies, no estimator asked for sizes.
    asked = (oracle, event)[: len(inspect.signature(estimator.incompatibility).parameters)]
    reason = estimator.incompatibility(*asked)
    if reason is not None:
        raise NotImplementedError(reason)
    return estimator


def _made(text: str, kind: str) -> Any:
    if text.partition("[")[0] not in of_commit(f"{kind}s", f"{kind.upper()}S"):
        raise NotImplementedError(f"this commit has no {kind} {text}")
    return of_commit(f"{kind}s", f"make_{kind}")(text)


if __package__ == "benchmarks":  # the name under which asv imports this folder
    load()
