"""Service of each operation of each structure on each device of this machine: by a compiled kernel or plain torch, and why."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

OPERATIONS = {
    "argmax": "argmax",
    "log_partition": "log-partition",
    "marginals": "marginals",
    "covariance_product": "covariance",
    "sample": "sample",
    "project": "project",
    "enumerate": "enumerate",
}
"""By the names of kernels, with titles."""

NO_KERNEL = "no kernel"


@dataclass(frozen=True)
class Served:
    """One operation of one structure on one device.

    Attributes:
        device, structure, operation: what.
        by: ``kernel``, ``torch``, or ``new``, a kernel that will be compared with plain torch when it is first used.
        why: it is plain torch; of kernels on a GPU, for how many kinds of sizes they were compared.
    """

    device: str
    structure: str
    operation: str
    by: str
    why: str = ""


def served() -> list[Served]:
    """On the CPU and on every CUDA device; nothing where the oracles cannot be imported, which the checks say.

    Raises:
        ValueError: the environment asks for kernels in a way that does not exist.
    """
    try:
        import torch

        devices = [-1, *range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
        return [row for device in devices for row in _on(device)]
    except ValueError:
        raise
    except Exception:  # whatever is wrong with the machine, a check names it
        return []


def _on(device: int) -> Iterator[Served]:
    """The rows of a device, the CPU's below 0."""
    from ....oracles import ORACLES
    from ....oracles.capabilities import EnumerableOracle, MarginalOracle, ProjectionOracle, SamplingOracle
    from ....oracles.derivations import DerivedOracle, StatedOracle, executor
    from ....oracles.derivations import device as on_device
    from ....oracles.kernels import gpu, switch
    from ....oracles.kernels.gpu import verdicts

    needed = {"argmax": object, "sample": SamplingOracle, "project": ProjectionOracle, "enumerate": EnumerableOracle}
    why = f"{switch.VARIABLE}=off" if switch.CHOSEN == "off" else "" if device < 0 else gpu.unserved(device)
    known = {} if device < 0 or why else verdicts.recorded(device)
    for structure, oracle in ORACLES.items():
        for operation in OPERATIONS:
            if issubclass(oracle, needed.get(operation, MarginalOracle)):
                stated = issubclass(oracle, StatedOracle) and device < 0 and operation in (*executor.OPERATIONS, "enumerate")
                derived = issubclass(oracle, DerivedOracle) and device >= 0 and operation in on_device.OPERATIONS
                module = on_device.structure(structure) if stated or derived else ""
                by = (
                    ("torch", why)
                    if why
                    else _by(device, *_kernel(device, structure, oracle.kernel or structure, operation), module, known)
                )
                yield Served("cpu" if device < 0 else f"cuda:{device}", structure, operation, *by)


def _kernel(device: int, structure: str, kernels: str, operation: str) -> tuple[str, str]:
    """The module and the function of a kernel, where there is one."""
    if operation == "enumerate":
        return "unranking", structure
    if operation == "project" and structure in ("categorical", "categories", "subset"):
        return "simplex", "project"
    if operation == "project" and structure == "assignment" and device < 0:
        return "birkhoff", "nearest"
    return kernels, operation


def _by(device: int, module: str, function: str, executor: str, known: dict[str, str]) -> tuple[str, str]:
    """What serves, and why: a kernel of the structure, or the executor of its derivations, which is named where it has the operation."""
    from ....oracles.kernels import modules

    name = modules.module_of(module, "cpu" if device < 0 else "gpu")
    if name is None or not hasattr(importlib.import_module(name), function):
        if not executor:
            return "torch", NO_KERNEL
        module = executor
    if device < 0:
        return "kernel", ""
    found = {kernel: wrong for kernel, wrong in known.items() if kernel.startswith(f"{module}.{function} ")}
    wrong = [f"{kernel} ({said})" for kernel, said in found.items() if said]
    if wrong:
        return "torch", f"the kernel differs from plain torch: {', '.join(wrong)}"
    return ("kernel", f"compared at {len(found)} kinds of sizes") if found else ("new", "not used yet")


def lines(rows: list[Served]) -> Iterator[str]:
    """A table for every set of devices that are served alike, and what is wrong with kernels."""
    alike: dict[tuple[Served, ...], list[str]] = {}
    for device in dict.fromkeys(row.device for row in rows):
        own = tuple(Served("", row.structure, row.operation, row.by, row.why) for row in rows if row.device == device)
        alike.setdefault(own, []).append(device)
    for own, devices in alike.items():
        yield from _table(", ".join(devices), own)


def _table(devices: str, rows: tuple[Served, ...]) -> Iterator[str]:
    if all(row.by == "torch" for row in rows) and len({row.why for row in rows}) == 1:
        yield f"{devices}: plain torch for everything, {rows[0].why}"
        return
    by = {(row.structure, row.operation): row.by for row in rows}
    structures = list(dict.fromkeys(row.structure for row in rows))
    width = max(map(len, [devices, *structures]))
    yield f"{devices:<{width}}  {'  '.join(OPERATIONS.values())}"
    for structure in structures:
        cells = (f"{by.get((structure, operation), ''):<{len(title)}}" for operation, title in OPERATIONS.items())
        yield f"{structure:<{width}}  {'  '.join(cells)}".rstrip()
    if "new" in by.values():
        yield "new: a kernel, which is compared with plain torch when it is first used here"
    for row in rows:
        if row.by == "torch" and row.why != NO_KERNEL:
            yield f"{row.structure} {row.operation}: plain torch, {row.why}"
