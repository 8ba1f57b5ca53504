"""``structgrad doctor``: check this machine, list compiled kernels, and test the oracles on a device."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from .outcome import OK, REGRESSED, SOME_FAILED, sentences

OPERATIONS = {name: name for name in ("argmax", "log_partition", "marginals", "covariance_product", "sample", "project", "enumerate")}
OPERATIONS |= {"log_partition": "log-partition", "covariance_product": "covariance"}
"""Names of kernels, and their titles in the table."""

NO_KERNEL = "no kernel"


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="Test every oracle on this device, such as cuda.")] = None,
    only: Annotated[str, typer.Option(help="With --device: only oracles whose names contain this text.")] = "",
) -> None:
    """Check versions, processor, GPU, clock, memory, disk, compiled kernels, plugins and score files, and suggest fixes.

    A table shows which operations use compiled kernels and which use plain PyTorch, for each device.

    With --device, test every operation of every oracle on that device against an enumeration of all structures, as `structgrad audit
    --oracle` does on the CPU.

    Exit codes: 0 runs work; 1 an operation on the device is wrong; 2 no such device; 3 a problem that would make runs fail.
    """
    with sentences():
        if device is not None:
            _test_device(device, only, as_json=as_json)
        if only:
            raise ValueError(f"`doctor` got --only {only} without --device; expected both, or neither")
        from .machine import checks

        found, rows = checks(), kernel_rows()
    broken = sum(check.verdict == "broken" for check in found)
    if as_json:
        page = {"broken": broken, "checks": [vars(check) for check in found], "served": [row._asdict() for row in rows]}
        typer.echo(json.dumps(page, indent=2, ensure_ascii=False))
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark = {"ok": " ", "note": "!", "broken": "X"}[check.verdict]
            typer.echo(f"{mark} {check.name:<{width}}  {check.value}" + (f"\n  {'':<{width}}  -> {check.advice}" if check.advice else ""))
        for line in kernel_table(rows):
            typer.echo(f"  {line}")
        typer.echo(f"{broken} broken: runs would fail" if broken else "runs work here")
    raise typer.Exit(SOME_FAILED if broken else OK)


def _test_device(device: str, only: str, *, as_json: bool) -> None:
    """Test the laws of every oracle on a device, and print a line for each as it ends."""
    from ...oracles import ORACLES, Subset
    from ...suites.audit.oracles import audit_oracle
    from ...suites.running.planning.plan import check_device

    check_device(device)
    chosen = [name for name in ORACLES if only in name]
    if not chosen:
        raise ValueError(f"`doctor` got --only {only}; expected part of the name of an oracle: {', '.join(ORACLES)}")
    records = []
    for name in chosen:
        audit = audit_oracle(on_device(Subset(2) if name == "subset" else ORACLES[name](), device), quick=True)
        failures = [f"{check.law}, {check.where}: {check.detail}" for check in audit.checks if check.status in ("violated", "crashed")]
        records.append({"oracle": name, "verdict": audit.verdict, "checks": len(audit.checks), "failures": failures})
        if not as_json:
            typer.echo(f"{name:<22}  {audit.verdict:<9}  {len(audit.checks):>3} checks on {device}")
            for failure in failures:
                typer.echo(f"  {failure}")
    wrong = sum(record["verdict"] != "right" for record in records)
    typer.echo(json.dumps(records, indent=2) if as_json else f"{wrong} of {len(records)} oracles are wrong on {device}")
    raise typer.Exit(REGRESSED if wrong else OK)


def on_device(oracle: Any, device: str) -> Any:
    """Copy an oracle so that it computes on a device, with arguments and results on the CPU."""
    import torch

    from ...oracles.active_set.solution import SparseSolution
    from ...suites.oracle_proxy import hooked

    def moved(value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(place)
        if isinstance(value, torch.Generator):
            return torch.Generator(place).manual_seed(value.initial_seed())
        return _OnCpu(value) if isinstance(value, SparseSolution) else value

    class _OnCpu:
        def __init__(self, solution: SparseSolution) -> None:
            self._solution = solution

        def __getattr__(self, name: str) -> Any:
            return moved(getattr(self._solution, name), "cpu")

    depth = 0

    def call(name: str, operation: Any, *args: Any, **named: Any) -> Any:
        nonlocal depth
        if depth:  # a call within a call has its arguments on the device
            return operation(*args, **named)
        depth += 1
        try:
            result = operation(*(moved(value, device) for value in args), **{key: moved(value, device) for key, value in named.items()})
        finally:
            depth -= 1
        return moved(result, "cpu")

    kind = type(oracle)
    functions = [name for name, _ in inspect.getmembers_static(kind, inspect.isfunction) if not name.startswith("_")]
    methods = [name for name in functions if not isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)]
    return hooked(oracle, methods, call)


class KernelRow(NamedTuple):
    """One operation of one structure on one device.

    Attributes:
        device, structure, operation: the place in the table.
        by: ``kernel`` or ``torch``; a kernel of a GPU is compared with plain PyTorch at its first use in a process.
        why: reason for plain PyTorch.
    """

    device: str
    structure: str
    operation: str
    by: str
    why: str = ""


def kernel_rows() -> list[KernelRow]:
    """List kernels on the CPU and on every CUDA device; nothing if the oracles cannot be imported, which a check reports.

    Raises:
        ValueError: an unknown value of STRUCTGRAD_KERNELS.
    """
    try:
        import torch

        devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        return [row for device in (None, *devices) for row in _rows_of(device)]
    except ValueError:
        raise
    except Exception:  # any fault of the machine; a check names it
        return []


def _rows_of(device: int | None) -> Iterator[KernelRow]:
    """Rows of a CUDA device, or of the CPU."""
    from ...oracles import ORACLES
    from ...oracles.capabilities import EnumerableOracle, MarginalOracle, ProjectionOracle, SamplingOracle
    from ...oracles.kernels import gpu, switch

    needed = {"argmax": object, "sample": SamplingOracle, "project": ProjectionOracle, "enumerate": EnumerableOracle}
    place = "cpu" if device is None else f"cuda:{device}"
    why = f"{switch.VARIABLE}=off" if switch.CHOSEN == "off" else "" if device is None else gpu.unserved(device)
    pairs = [(name, oracle, each) for name, oracle in ORACLES.items() for each in OPERATIONS]
    for structure, oracle, operation in pairs:
        if not issubclass(oracle, needed.get(operation, MarginalOracle)):
            continue
        served = not why and _has_kernel(structure, oracle, operation, cpu=device is None)
        yield KernelRow(place, structure, operation, "kernel" if served else "torch", "" if served else why or NO_KERNEL)


def _has_kernel(structure: str, oracle: Any, operation: str, *, cpu: bool) -> bool:
    """Whether a kernel of the structure, or the executor of derivations, serves an operation."""
    from ...oracles.capabilities import Oracle
    from ...oracles.derivations import DerivedOracle, StatedOracle, device, executor
    from ...oracles.kernels import modules

    if not cpu:  # samples of chains take uniforms in another order
        derived = issubclass(oracle, DerivedOracle) and oracle._kernel is not Oracle._kernel
        return derived and operation in device.OPERATIONS and (structure, operation) != ("linear_chain", "sample")
    module, function = oracle.kernel or structure, operation
    if operation == "enumerate":
        module, function = "unranking", structure
    elif operation == "project" and structure in ("categorical", "categories", "subset"):
        module = "simplex"
    elif operation == "project" and structure == "assignment":
        module, function = "birkhoff", "nearest"
    name = modules.module_of(module)
    own = name is not None and hasattr(importlib.import_module(name), function)
    return own or (issubclass(oracle, StatedOracle) and operation in (*executor.OPERATIONS, "enumerate"))


def kernel_table(rows: list[KernelRow]) -> Iterator[str]:
    """Print one table for all devices with the same kernels."""
    equal: dict[tuple[KernelRow, ...], list[str]] = {}
    for device in dict.fromkeys(row.device for row in rows):
        equal.setdefault(tuple(row._replace(device="") for row in rows if row.device == device), []).append(device)
    for own, devices in equal.items():
        title = ", ".join(devices)
        if all(row.by == "torch" for row in own) and len({row.why for row in own}) == 1:
            yield f"{title}: plain torch for everything, {own[0].why}"
            continue
        by = {(row.structure, row.operation): row.by for row in own}
        structures = list(dict.fromkeys(row.structure for row in own))
        width = max(map(len, [title, *structures]))
        yield f"{title:<{width}}  {'  '.join(OPERATIONS.values())}"
        for structure in structures:
            cells = (f"{by.get((structure, operation), ''):<{len(heading)}}" for operation, heading in OPERATIONS.items())
            yield f"{structure:<{width}}  {'  '.join(cells)}".rstrip()
