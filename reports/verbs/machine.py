"""Checks of this machine for ``structgrad doctor``: each finds a value, and says how to repair it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...suites.text import gibibytes, number, whole

PACKAGES = (
    *("torch", "numpy", "scipy", "pandas", "pyarrow", "matplotlib", "seaborn"),
    *("altair", "typer", "rich", "jinja2", "numba", "pebble", "pydantic"),
)
"""The dependencies of the package. Optional ones, such as `ray`, are checked where they are used."""

MIN_DISK = 0.2 * 2**30

Verdict = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class MachineCheck:
    """A check of the machine.

    Attributes:
        name, value: the property and its value.
        verdict: ``ok``; ``note``: numbers are noisier or runs are slower; ``broken``: runs fail.
        advice: the repair; empty for ``ok``.
    """

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


def checks() -> list[MachineCheck]:
    """Run all checks; a check that raises is broken."""
    found: list[MachineCheck] = []
    for look in CHECKS:
        try:
            found += look()
        except Exception as error:  # any fault of the machine
            name = look.__name__.strip("_").replace("_", " ")
            found.append(_check(name, f"{type(error).__name__}: {error}", "this check failed; repair the named package", "broken"))
    return found


def _check(name: str, value: str, advice: str | Literal[False] = False, verdict: Verdict = "note") -> MachineCheck:
    """A check that is ``ok`` without advice."""
    return MachineCheck(name, value, verdict, advice) if advice else MachineCheck(name, value)


def _versions() -> Iterator[MachineCheck]:
    from ..results import version_of

    yield _check("python", platform.python_version())
    own = version_of("structgrad")
    yield _check("structgrad", own or "not installed", own is None and "pip install -e .")
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except Exception as error:  # a broken installation may raise anything
            yield _check(package, f"cannot be imported: {error}", f"pip install --force-reinstall {package}", "broken")
        else:
            yield _check(package, version_of(package) or "of unknown version")


def _accelerator() -> Iterator[MachineCheck]:
    import torch

    driver = _nvidia_driver()
    if not torch.cuda.is_available():
        advice = "install a torch that is built for this driver: https://pytorch.org/get-started/locally"
        yield _check("gpu", "none" if driver is None else f"driver {driver}, not used by torch", driver is not None and advice)
        return
    yield _check("cuda", f"{torch.version.cuda}, driver {driver or 'not known'}")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield _check(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {gibibytes(free)} of {gibibytes(total)} free")
    tf32 = torch.backends.cuda.matmul.allow_tf32
    advice = "float32 products lose digits: torch.backends.cuda.matmul.allow_tf32 = False"
    yield _check("TF32", "on" if tf32 else "off", tf32 and advice)


def _nvidia_driver() -> str | None:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.split("\n")[0].strip() or None


def _processors() -> Iterator[MachineCheck]:
    import torch

    from ...suites.running.planning.plan import CORES
    from ..results import processor

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    yield _check("processor", processor())
    yield _check("cores", f"{CORES} workers by default, of {os.cpu_count()}")
    advice = "other programs use this machine: times will be noisy, other numbers are unaffected"
    yield _check("load", number(load, 2), load > 0.5 * CORES and advice)
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    several = ", ".join(f"{name}={os.environ[name]}" for name in variables if os.environ.get(name, "1") != "1")
    advice = f"{several} is set; runs use 1 instead, choose more with --threads"
    yield _check("threads", f"torch uses {torch.get_num_threads()} here, runs use 1", several and advice)
    yield _check("determinism", "on in torch" if torch.are_deterministic_algorithms_enabled() else "off in torch; runs do not need it")


def _clock() -> Iterator[MachineCheck]:
    ticks = []
    for _ in range(100):
        start = now = time.perf_counter()
        while now == start:
            now = time.perf_counter()
        ticks.append(now - start)
    yield _check("clock", f"{whole(min(ticks) * 1e9)} ns", min(ticks) > 1e-6 and "times of small tensors are unreliable")


def _memory() -> Iterator[MachineCheck]:
    from ...suites.running.planning.plan import CORES
    from .run.dry_run import WORKER_BYTES

    available = _available_memory()
    if available is not None:
        fit = int(available / WORKER_BYTES)
        advice = f"{CORES} workers take {gibibytes(CORES * WORKER_BYTES)}: run with --jobs {max(fit, 1)}"
        yield _check("memory", f"{gibibytes(available)} free", fit < CORES and advice, "note" if fit else "broken")


def _available_memory() -> int | None:
    """Bytes that are free without swapping; None if the system does not report them."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _disk() -> Iterator[MachineCheck]:
    here = Path.cwd()
    free, writable = shutil.disk_usage(here).free, _can_write(here)
    yield _check("disk", f"{gibibytes(free)} free", free < MIN_DISK and "free some space, or run with --out on another disk", "broken")
    value = f"{here}{'' if writable else ', not writable'}"
    yield _check("folder", value, not writable and "run elsewhere, or with --out DIR", "broken")


def _can_write(folder: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _kernels() -> Iterator[MachineCheck]:
    from ...oracles.kernels import modules
    from ...user_cache import user_cache

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    near = dict.fromkeys(path.parent / "__pycache__" for path in modules.files())
    folder, *others = [Path(chosen)] if chosen else [*near, user_cache().parent / "numba"]
    if not _can_write(folder if folder.is_dir() else folder.parent):
        advice = "every process compiles for minutes: set NUMBA_CACHE_DIR to a writable folder"
        yield _check("compiled kernels", f"{folder} is not writable", advice)
        return
    warm = sum(len(list(place.rglob("*.nbi"))) for place in (folder, *others) if place.is_dir())
    cold = "none yet: the first run compiles for a few minutes"
    yield _check("compiled kernels", f"{warm} in {folder}" if warm else cold)


def _oracles_work() -> Iterator[MachineCheck]:
    import torch

    from ...oracles import Categorical

    scores, oracle = torch.tensor([0.0, 1.0], dtype=torch.float64), Categorical()
    right = oracle.argmax(scores).tolist() == [0.0, 1.0] and abs(float(oracle.marginals(scores)[1]) - 0.7310585786300049) < 1e-12
    yield _check("oracles", "correct" if right else "wrong results", not right and "reinstall torch and numba", "broken")


def _source() -> Iterator[MachineCheck]:
    from ..results import commit_of_package

    commit, dirty = commit_of_package()
    advice = "results of uncommitted code are recorded under the commit: commit before an important run"
    value = "an installed copy, not a checkout" if commit is None else f"{commit[:10]}{', changed' if dirty else ''}"
    yield _check("source", value, dirty is True and advice)


def _plugins() -> Iterator[MachineCheck]:
    from ... import estimators  # noqa: F401 - registers its catalogue
    from ...oracles.plugins import plugins

    found = plugins()
    if not found:
        yield _check("plugins", "none")
    for one in found:
        advice = f"update or remove {one.source}; everything else works without it"
        yield _check(f"plugin {one.name}", one.problem or f"{one.kind} of {one.source}", bool(one.problem) and advice)


def _score_files() -> Iterator[MachineCheck]:
    from ...suites.problems import available, default_data

    try:
        folder = default_data()
    except ValueError as error:
        yield _check("score files", str(error), "or give the folder with --data", "broken")
        return
    value = f"{len(available(folder))} sets of trained models' scores in {folder}" if folder else "none found: built-in scores are used"
    yield _check("score files", value)


CHECKS: list[Callable[[], Iterator[MachineCheck]]] = [_versions, _accelerator, _processors, _clock, _memory, _disk, _kernels]
CHECKS += [_oracles_work, _source, _plugins, _score_files]
"""Checks, in the order of the output."""
