"""``structgrad doctor``: check this machine, and test the oracles on a device."""

import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...suites.text import number
from .outcome import OK, REGRESSED, SOME_FAILED, sentences

MIN_DISK = 0.2 * 2**30


@dataclass(frozen=True)
class MachineCheck:
    """A property of the machine, and the advice that repairs it. A broken one fails runs; others make them slower or noisier."""

    name: str
    value: str
    advice: str = ""
    broken: bool = False


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="Test every oracle on this device, such as cuda.")] = None,
    only: Annotated[str, typer.Option(help="With --device or --served: only oracles whose names contain this text.")] = "",
    served: Annotated[bool, typer.Option("--served", help="Print which code computes each operation of each oracle on the CPU.")] = False,
) -> None:
    """Check versions, cores, GPU, memory, disk, compiled kernels, plugins and score files, and suggest fixes.

    With --device, test every operation of every oracle on that device against an enumeration of all structures, as `structgrad audit
    --oracle` does on the CPU. With --served, print whether the CPU computes an operation by the executor of derivations, by a kernel of
    the structure, or by torch. On other devices, torch computes all but searches and lists.

    Exit codes: 0 runs work; 1 an operation on the device is wrong; 2 no such device; 3 a problem that would make runs fail.
    """
    with sentences():
        if device is not None:
            raise typer.Exit(_test_device(device, only, as_json=as_json))
        if served:
            return _print_served(only, as_json=as_json)
        if only:
            raise ValueError(f"`doctor` got --only {only} without --device or --served; expected one of them, or no --only")
        found = checks()
    broken = sum(check.broken for check in found)
    if as_json:
        typer.echo(json.dumps({"broken": broken, "checks": list(map(asdict, found))}, indent=2, ensure_ascii=False))
    else:
        for check in found:
            mark = "X" if check.broken else "!" if check.advice else " "
            typer.echo(f"{mark} {check.name:<18}  {check.value}" + (f"\n{'':<22}-> {check.advice}" if check.advice else ""))
        typer.echo(f"{broken} broken: runs would fail" if broken else "runs work here")
    raise typer.Exit(SOME_FAILED if broken else OK)


def _chosen(only: str) -> dict[str, Any]:
    """The oracles whose names contain a text, by name."""
    from ...oracles import ORACLES, Subset

    chosen = {name: Subset(2) if name == "subset" else kind() for name, kind in ORACLES.items() if only in name}
    if not chosen:
        raise ValueError(f"`doctor` got --only {only}; expected part of the name of an oracle: {', '.join(ORACLES)}")
    return chosen


def _print_served(only: str, *, as_json: bool) -> None:
    """Print a table of structures and operations: by the executor of derivations, by a kernel of the structure, or by torch."""
    from ...oracles.serving import OPERATIONS, served
    from ...suites.audit.oracles import small_events

    table = {name: served(oracle, small_events(oracle)[-1]) for name, oracle in _chosen(only).items()}
    width, rows = max(map(len, table)), {"": {name: name for name in OPERATIONS}, **table}
    cells = ([f"{name:<{width}}", *(f"{ways.get(one, '-'):<13}" for one in OPERATIONS)] for name, ways in rows.items())
    typer.echo(json.dumps(table, indent=2) if as_json else "\n".join("  ".join(row).rstrip() for row in cells))


def _test_device(device: str, only: str, *, as_json: bool) -> int:
    """Print a line for each oracle as its test ends, and return the exit code."""
    from ...suites.audit.oracles import audit_oracle
    from ...suites.running.planning.plan import check_device

    check_device(device)
    records = []
    for name, oracle in _chosen(only).items():
        audit = audit_oracle(on_device(oracle, device), quick=True)
        failures = [f"{check.law}, {check.where}: {check.detail}" for check in audit.checks if check.status in ("violated", "crashed")]
        records.append({"oracle": name, "verdict": audit.verdict, "checks": len(audit.checks), "failures": failures})
        if not as_json:
            typer.echo("\n  ".join([f"{name:<22}  {audit.verdict:<9}  {len(audit.checks):>3} checks on {device}", *failures]))
    wrong = sum(record["verdict"] != "right" for record in records)
    typer.echo(json.dumps(records, indent=2) if as_json else f"{wrong} of {len(records)} oracles are wrong on {device}")
    return REGRESSED if wrong else OK


def on_device(oracle: Any, device: str) -> Any:
    """Copy an oracle so that it computes on a device, with arguments and results on the CPU."""
    import torch

    from ...oracles.active_set.solution import SparseSolution
    from ...suites.truth.replay import hooked

    class OnCpu:
        def __init__(self, solution: SparseSolution) -> None:
            self._solution = solution

        def __getattr__(self, name: str) -> Any:
            return moved(getattr(self._solution, name), "cpu")

    def moved(value: Any, place: str) -> Any:
        if isinstance(value, torch.Generator):
            return torch.Generator(place).manual_seed(value.initial_seed())
        return value.to(place) if isinstance(value, torch.Tensor) else OnCpu(value) if isinstance(value, SparseSolution) else value

    def call(name: str, _: Any, *args: Any, **named: Any) -> Any:
        operation = getattr(oracle, name)  # without the hook, because a call within a call has its arguments on the device
        there = {key: moved(value, device) for key, value in named.items()}
        return moved(operation(*(moved(value, device) for value in args), **there), "cpu")

    members = inspect.getmembers_static(type(oracle), inspect.isfunction)
    return hooked(oracle, [name for name, _ in members if not name.startswith("_")], call)


def checks() -> list[MachineCheck]:
    """Run all checks; a check that raises is broken."""
    found: list[MachineCheck] = []
    for look in CHECKS:
        try:
            found += look()
        except Exception as error:  # any fault of the machine
            advice = "this check failed; repair the named package"
            found.append(MachineCheck(look.__name__.strip("_"), f"{type(error).__name__}: {error}", advice, broken=True))
    return found


def _versions() -> Iterator[MachineCheck]:
    from ..results import version_of

    yield MachineCheck("python", platform.python_version())
    yield MachineCheck("structgrad", version_of("structgrad") or "not installed")
    required = importlib.metadata.requires("structgrad") or []  # optional packages, such as `ray`, are checked where they are used
    for package in (re.split(r"[^\w-]", one)[0] for one in required if "extra ==" not in one):
        try:
            importlib.import_module(package)
            yield MachineCheck(package, version_of(package) or "of unknown version")
        except Exception as error:  # a broken installation may raise anything
            yield MachineCheck(package, f"cannot be imported: {error}", f"pip install --force-reinstall {package}", broken=True)


def _gpu() -> Iterator[MachineCheck]:
    import torch

    from ...oracles.magnitudes import gibibytes

    if not torch.cuda.is_available():
        unused = shutil.which("nvidia-smi") is not None
        advice = "install a torch that is built for this driver: https://pytorch.org/get-started/locally"
        yield MachineCheck("gpu", "not used by torch" if unused else "none", advice if unused else "")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        yield MachineCheck(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {gibibytes(free)} of {gibibytes(total)} free")


def _processors() -> Iterator[MachineCheck]:
    from ...oracles.magnitudes import gibibytes
    from ...suites.running.planning.plan import CORES
    from .run.launch import WORKER_BYTES

    load, available = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, _available_memory()
    yield MachineCheck("cores", f"{CORES} workers by default, of {os.cpu_count()}")
    advice = "other programs use this machine: times will be noisy, other numbers are unaffected"
    yield MachineCheck("load", number(load, 2), advice if load > 0.5 * CORES else "")
    if available is not None:
        fit = int(available / WORKER_BYTES)
        advice = f"{CORES} workers take {gibibytes(CORES * WORKER_BYTES)}: run with --jobs {max(fit, 1)}"
        yield MachineCheck("memory", f"{gibibytes(available)} free", advice if fit < CORES else "", broken=fit == 0)


def _available_memory() -> int | None:
    with suppress(OSError):  # only Linux reports it there
        found = re.search(r"^MemAvailable: *(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def _disk() -> Iterator[MachineCheck]:
    from ...oracles.magnitudes import gibibytes

    here = Path.cwd()
    free = shutil.disk_usage(here).free
    advice = "free some space, or run with --out on another disk" if free < MIN_DISK else ""
    yield MachineCheck("disk", f"{gibibytes(free)} free", advice, broken=bool(advice))
    advice = "" if _can_write(here) else "run elsewhere, or with --out DIR"
    yield MachineCheck("folder", f"{here}{', not writable' if advice else ''}", advice, broken=bool(advice))


def _can_write(folder: Path) -> bool:
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=folder):
        return True
    return False


def _kernels() -> Iterator[MachineCheck]:
    import torch

    from ...oracles import Categorical
    from ...user_cache import user_cache

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folders = [Path(chosen)] if chosen else [Path(__file__).parents[2] / "oracles", user_cache().parent]
    warm = sum(1 for folder in folders for _ in folder.rglob("*.nbi"))
    writable = any(_can_write(folder if folder.is_dir() else folder.parent) for folder in folders)
    value = f"{warm} in {folders[0]}" if warm else "none yet: the first run compiles for a few minutes"
    advice = "" if writable else "they cannot be written, and every process compiles for minutes: set NUMBA_CACHE_DIR to a writable folder"
    yield MachineCheck("compiled kernels", value, advice)
    right = abs(float(Categorical().marginals(torch.tensor([0.0, 1.0]).double())[1]) - 0.7310585786300049) < 1e-12
    yield MachineCheck("oracles", "correct" if right else "wrong results", "" if right else "reinstall torch and numba", broken=not right)


def _plugins() -> Iterator[MachineCheck]:
    from ... import estimators  # noqa: F401 - registers its catalogue
    from ...oracles.plugins import plugins

    for one in plugins():
        advice = f"update or remove {one.source}; everything else works without it" if one.problem else ""
        yield MachineCheck(f"plugin {one.name}", one.problem or f"{one.kind} of {one.source}", advice)


def _score_files() -> Iterator[MachineCheck]:
    from ...suites.problems import available, default_data

    try:
        folder = default_data()
        value = f"{len(available(folder))} sets of trained models' scores in {folder}" if folder else "none found: built-in scores are used"
        yield MachineCheck("score files", value)
    except ValueError as error:
        yield MachineCheck("score files", str(error), "or give the folder with --data", broken=True)


CHECKS = (_versions, _gpu, _processors, _disk, _kernels, _plugins, _score_files)  # in the order of the output
