"""Checks of a machine: what it offers to a run, and what is wrong with it; every check says what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ....suites.text import gibibytes, number, whole

PACKAGES = ("torch", "numpy", "scipy", "pandas", "pyarrow", "numba", "pebble", "seaborn", "jinja2", "typer", "rich")
"""What every run needs; `safetensors` and `ray` are asked for where they are used."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")

GIB = 2**30
WORKER_GIB = 0.45
LEAST_DISK_GIB = 0.2
COARSE_CLOCK = 1e-6
"""Seconds; a clock that ticks more rarely cannot time small tensors."""


@dataclass(frozen=True)
class MachineCheck:
    """One thing looked at.

    Attributes:
        name, value: what, and what was found.
        verdict: ``ok``; ``note``, it makes numbers worse or runs slower; ``broken``, runs fail.
        advice: what to do; empty where nothing is to be done.
    """

    name: str
    value: str
    verdict: Literal["ok", "note", "broken"] = "ok"
    advice: str = ""


def checks() -> list[MachineCheck]:
    """All of them; one that fails itself is broken."""
    found: list[MachineCheck] = []
    for look in CHECKS:
        try:
            found += look()
        except Exception as error:  # whatever is wrong with the machine is what is asked for
            name = look.__name__.strip("_").replace("_", " ")
            found.append(MachineCheck(name, f"{type(error).__name__}: {error}", "broken", "this check failed; repair the named package"))
    return found


def _versions() -> Iterator[MachineCheck]:
    yield MachineCheck("python", platform.python_version())
    yield MachineCheck(
        "structgrad", _version("structgrad") or "not installed", *_advice(_version("structgrad") is None, "note", "pip install -e .")
    )
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except Exception as error:  # a broken installation may raise anything
            yield MachineCheck(package, f"cannot be imported: {error}", "broken", f"pip install --force-reinstall {package}")
            continue
        yield MachineCheck(package, _version(package) or "of unknown version")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _advice(wrong: bool, verdict: Literal["note", "broken"], advice: str) -> tuple[Literal["ok", "note", "broken"], str]:
    return (verdict, advice) if wrong else ("ok", "")


def _accelerator() -> Iterator[MachineCheck]:
    import torch

    driver = _nvidia_driver()
    if not torch.cuda.is_available():
        yield MachineCheck(
            "gpu", "none" if driver is None else f"driver {driver}, not used by torch", *_advice(driver is not None, "note", _CUDA)
        )
        return
    yield MachineCheck("cuda", f"{torch.version.cuda}, driver {driver or 'not known'}")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield MachineCheck(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {gibibytes(free)} of {gibibytes(total)} free")
    tf32 = torch.backends.cuda.matmul.allow_tf32
    yield MachineCheck(
        "TF32",
        "on" if tf32 else "off",
        *_advice(tf32, "note", "float32 products lose digits: torch.backends.cuda.matmul.allow_tf32 = False"),
    )


_CUDA = "install a torch that is built for this driver: https://pytorch.org/get-started/locally"


def _nvidia_driver() -> str | None:
    """The version of the driver, where its own tool answers."""
    try:
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.split("\n")[0].strip() or None


def _processors() -> Iterator[MachineCheck]:
    import torch

    from ....suites.running.planning.plan import CORES
    from ...results import processor

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    yield MachineCheck("processor", processor())
    yield MachineCheck("cores", f"{CORES} workers by default, of {os.cpu_count()}")
    busy = load > 0.5 * CORES
    yield MachineCheck(
        "load",
        number(load, 2),
        *_advice(busy, "note", "other programs use this machine: times will be noisy, other numbers are unaffected"),
    )
    several = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if os.environ.get(name, "1") != "1"]
    yield MachineCheck(
        "threads", f"torch uses {torch.get_num_threads()} here, runs use 1", *_advice(bool(several), "note", _threads(several))
    )
    yield MachineCheck(
        "determinism", "on in torch" if torch.are_deterministic_algorithms_enabled() else "off in torch; runs do not need it"
    )


def _threads(several: list[str]) -> str:
    return f"{', '.join(several)} is set; runs use 1 instead, choose more with --threads"


def _clock() -> Iterator[MachineCheck]:
    ticks = []
    for _ in range(100):
        start = now = time.perf_counter()
        while now == start:
            now = time.perf_counter()
        ticks.append(now - start)
    coarse = _advice(min(ticks) > COARSE_CLOCK, "note", "times of small tensors are unreliable")
    yield MachineCheck("clock", f"{whole(min(ticks) * 1e9)} ns", *coarse)


def _memory() -> Iterator[MachineCheck]:
    from ....suites.running.planning.plan import CORES

    available = _available_memory()
    if available is None:
        return
    fit = int(available / (WORKER_GIB * GIB))
    advice = f"{CORES} workers take {gibibytes(CORES * WORKER_GIB * GIB)}: run with --jobs {max(fit, 1)}"
    yield MachineCheck("memory", f"{gibibytes(available)} free", *_advice(fit < CORES, "note" if fit else "broken", advice))


def _available_memory() -> int | None:
    """Bytes that can be had without swapping, where the kernel says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _disk() -> Iterator[MachineCheck]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    yield MachineCheck(
        "disk",
        f"{gibibytes(free)} free",
        *_advice(free < LEAST_DISK_GIB * GIB, "broken", "free some space, or run with --out on another disk"),
    )
    writable = _can_write(here)
    yield MachineCheck(
        "folder", f"{here}{'' if writable else ', not writable'}", *_advice(not writable, "broken", "run elsewhere, or with --out DIR")
    )


def _can_write(folder: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _kernels() -> Iterator[MachineCheck]:
    from ....suites.running.planning.compiling import cache_folders

    folder, *others = cache_folders()
    warm = sum(len(list(place.rglob("*.nbi"))) for place in (folder, *others) if place.is_dir())
    writable = _can_write(folder if folder.is_dir() else folder.parent)
    if not writable:
        advice = "every process compiles for minutes: set NUMBA_CACHE_DIR to a writable folder"
        yield MachineCheck("compiled kernels", f"{folder} is not writable", "note", advice)
    else:
        cold = "none yet: the first run compiles for a few minutes"
        yield MachineCheck("compiled kernels", f"{warm} in {folder}" if warm else cold)


def _oracles_work() -> Iterator[MachineCheck]:
    import torch

    from ....oracles import Categorical

    scores = torch.tensor([0.0, 1.0], dtype=torch.float64)
    right = (
        Categorical().argmax(scores).tolist() == [0.0, 1.0] and abs(float(Categorical().marginals(scores)[1]) - 0.7310585786300049) < 1e-12
    )
    yield MachineCheck("oracles", "correct" if right else "wrong results", *_advice(not right, "broken", "reinstall torch and numba"))


def _source() -> Iterator[MachineCheck]:
    from ...results import commit_of_package

    commit, dirty = commit_of_package()
    advice = "results of uncommitted code are recorded under the commit: commit before an important run"
    value = "an installed copy, not a checkout" if commit is None else f"{commit[:10]}{', changed' if dirty else ''}"
    yield MachineCheck("source", value, *_advice(bool(dirty), "note", advice))


def _plugins() -> Iterator[MachineCheck]:
    from .... import estimators  # noqa: F401 - registers its catalogue
    from ....oracles.plugins import plugins

    found = plugins()
    if not found:
        yield MachineCheck("plugins", "none")
    for plugin in found:
        advice = f"update or remove {plugin.source}; everything else works without it"
        yield MachineCheck(
            f"plugin {plugin.name}", plugin.problem or f"{plugin.kind} of {plugin.source}", *_advice(bool(plugin.problem), "note", advice)
        )


def _score_files() -> Iterator[MachineCheck]:
    from ....suites.problems import available, default_data

    try:
        folder = default_data()
    except ValueError as error:
        yield MachineCheck("score files", str(error), "broken", "or give the folder with --data")
        return
    yield MachineCheck(
        "score files",
        f"{len(available(folder))} sets of trained models' scores in {folder}" if folder else "none found: built-in scores are used",
    )


CHECKS: tuple[Callable[[], Iterator[MachineCheck]], ...] = (
    _versions,
    _accelerator,
    _processors,
    _clock,
    _memory,
    _disk,
    _kernels,
    _oracles_work,
    _source,
    _plugins,
    _score_files,
)
"""In the order in which they are shown."""
