"""Mutations in scratch copies of the sources, and the verdicts of their tests.

A copy is kept between runs, with its compiled kernels. Numba looks only at the time of a kernel's own file, and kernels may have inlined a
mutated function of another module. So the compiled kernels of all modules that use a mutated one are set aside during its tests. The
mutated file gets another time, and its byte code is removed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutants.imports import PACKAGE, ROOMS, imported, importers, modules, users
from mutants.places import Mutation

FOUND, MISSED, NOTHING, BROKEN = "found", "missed", "nothing ran", "error"
"""Outcomes of a set of tests: some test failed, none did, none was chosen, or pytest itself failed."""

PYTEST = ("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "--no-header", "-rfE", "--tb=no")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TIME_IS_UP = "(time is up)"
PATIENCE = 4
"""Wall seconds per CPU second of the limit, so that tests that wait forever end too."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a set of tests, the failing test, wall seconds, and CPU seconds."""

    outcome: str
    test: str
    seconds: float
    cpu_seconds: float


class Copy:
    """A copy of the sources, imported as the package in place of the installed one."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.tree, self.path, self.kept = root, folder / "tree", folder / "path", folder / "kept"
        if self.kept.exists():  # a run was cut off
            self._restore()
            for known in (modules, imported, importers):  # the copy may get other files
                known.cache_clear()
        self._synchronise()
        (self.path / "structgrad").mkdir(parents=True, exist_ok=True)
        # Without its own `__init__.py`, the folder would stand back behind the installed package, wherever that lies on the path.
        package = {path.name: path.relative_to(self.tree) for path in (self.tree / PACKAGE).parent.glob("*.py")}
        for name, source in {**{room: Path(room) for room in ROOMS}, **package}.items():
            link = self.path / "structgrad" / name
            if not link.is_symlink():
                link.symlink_to(self.tree / source)
        self._check()

    def _synchronise(self) -> None:
        """Write only changed files: compiled kernels of the others stay valid."""
        names = _listed(self.root)
        for path in [path for path in self.tree.rglob("*.py") if str(path.relative_to(self.tree)) not in names]:
            path.unlink()
        changed = []
        for name in names:
            source, target = self.root / name, self.tree / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)
                changed.append(target)
        for path in set(changed) & set(modules(self.tree).values()):
            for compiled in self._compiled(str(path.relative_to(self.tree))):
                compiled.unlink()

    def _check(self) -> None:
        """Check that the package is imported from the copy."""
        code = "from structgrad import oracles, reports, user_cache; print(oracles.__file__, reports.__file__, user_cache.__file__)"
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, cwd=self.tree, env=self._environment(), capture_output=True, text=True, check=True).stdout.split()
        if any(not Path(file).resolve().is_relative_to(self.tree.resolve()) for file in found):
            raise RuntimeError(f"got the package from {found}; expected it from {self.tree}")

    def _environment(self) -> dict[str, str]:
        """One thread per library, the copy before the installed package, and a cache of kernels next to their sources."""
        kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        return {**kept, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": f"{self.path}{os.pathsep}{self.tree}"}

    def test(self, mutation: Mutation, options: tuple[str, ...], limit: int) -> Verdict:
        """Run the tests of a mutation on the copy as it is, the nearest first, up to the first that fails."""
        files = [str(path.relative_to(self.tree)) for pattern in mutation.tests for path in self._by_nearness(pattern, mutation)]
        if not files:
            return Verdict(NOTHING, "", 0.0, 0.0)
        choice = ("-k", mutation.choose) if mutation.choose else ()
        status, output, *seconds = self._pytest(("-x", *files, *choice, *options), limit)
        named = _failures(output)
        if status is None:
            return Verdict(FOUND, TIME_IS_UP, *seconds)
        outcome = {0: MISSED, 5: NOTHING}.get(status, FOUND if status in {1, 2} or status < 0 else BROKEN)
        said = (named or [f"(exit status {status})"])[0] if outcome == FOUND else output[-400:] if outcome == BROKEN else ""
        return Verdict(outcome, said, *seconds)

    def _by_nearness(self, pattern: str, mutation: Mutation) -> list[Path]:
        """The files of a pattern: first those that are taken whole, then those named after the folder of the mutated file."""
        whole, folder = mutation.choose.split(" or "), Path(mutation.file).parent.name
        return sorted(self.tree.glob(pattern), key=lambda path: (path.stem not in whole, not path.stem.endswith(f"_{folder}"), path.stem))

    def not_passing(self, tests: list[str], options: tuple[str, ...], limit: int) -> set[str]:
        """The tests that fail on the copy without a mutation; a test without a case there cannot fail."""
        status, output, *_ = self._pytest((*tests, *options), limit)
        if status == pytest.ExitCode.USAGE_ERROR:  # not all are there, and pytest says so by their names without their cases
            half = len(tests) // 2
            return set().union(*(self.not_passing(part, options, limit) for part in (tests[:half], tests[half:]))) if half else set()
        return set(tests) if status not in {0, 1} else set(_failures(output))

    def _pytest(self, arguments: tuple[str, ...], limit: int) -> tuple[int | None, str, float, float]:
        """Run pytest in the copy: its exit status, None if time was up, its output, and its time.

        The limit is one of the processor's time, or other work on the machine would decide what is found.
        """
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # or failures of one mutation were tried first on the next
        start, status = time.monotonic(), None
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            command = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh", sys.executable, *PYTEST, *arguments]
            process = subprocess.Popen(
                command, cwd=self.tree, env=self._environment(), stdout=output, stderr=output, start_new_session=True
            )
            try:
                status, used = _waited(process, start + PATIENCE * limit)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also its children
            output.seek(0)
            return status, output.read(), round(time.monotonic() - start, 1), round(used, 1)

    @contextmanager
    def mutated(self, mutation: Mutation, text: str) -> Iterator[None]:
        """Replace a file by the mutated text, and set aside the kernels compiled from it and its users."""
        file = self.tree / mutation.file
        self.kept.mkdir()
        for path in (file, *self._compiled(mutation.file)):
            self._move(path, self.kept / path.relative_to(self.tree))
        try:
            file.write_text(text)
            stamp = (self.kept / mutation.file).stat().st_mtime_ns + 7_000_000_000
            os.utime(file, ns=(stamp, stamp))
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        """Put back the files set aside, with their times."""
        (file,) = self.kept.rglob("*.py")
        for path in self._compiled(str(file.relative_to(self.kept))):
            path.unlink()
        for path in [path for path in self.kept.rglob("*") if path.suffix != ".pyc" and path.is_file()]:
            self._move(path, self.tree / path.relative_to(self.kept))
        shutil.rmtree(self.kept)

    @staticmethod
    def _move(path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)

    def _compiled(self, file: str) -> list[Path]:
        """The byte code of a file, and the kernels compiled from it or its users."""
        names = {path: name for name, path in modules(self.tree).items()}
        path = self.tree / file
        affected = [modules(self.tree)[name] for name in sorted(users(self.tree, names[path]))]
        kernels = [found for one in affected for found in one.parent.glob(f"__pycache__/{one.stem}.*.nb*")]
        return [*path.parent.glob(f"__pycache__/{path.stem}.*.pyc"), *kernels]


def _listed(root: Path) -> list[str]:
    """The files of a checkout that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in found.split("\0") if name and (root / name).is_file())


def _waited(process: subprocess.Popen[bytes], until: float) -> tuple[int | None, float]:
    """The exit status of a process, None where it had to be ended, and the time that it took of the processor, with those it started."""
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            process.returncode = os.waitstatus_to_exitcode(status)
            over = process.returncode in {-signal.SIGXCPU, -signal.SIGKILL}
            return None if over else process.returncode, usage.ru_utime + usage.ru_stime
        if time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = -signal.SIGKILL
            return None, usage.ru_utime + usage.ru_stime
        time.sleep(0.1)


def _failures(output: str) -> list[str]:
    """The tests that pytest's summary names, the first failure first."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
