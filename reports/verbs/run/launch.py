"""One run of a plan: it is laid out, measured, stored and summarised, and any end of it says how to continue."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import typer

from ....suites import text
from ....suites.problems import comes_from_task, split_loss
from ....suites.problems.sized import sizes_of
from ....suites.running import runner, store
from ....suites.running.planning.grid import grid, load_problem
from ....suites.running.planning.plan import Machine, Plan, Scope, Shard
from ....suites.running.planning.presets import DEFAULT
from ....suites.running.remote import Mirror, writing
from ....suites.running.work import Grid
from ... import bibliography, page, results, terminal
from ...analysis import answers, tables
from ...results import PAGE, TABLE
from ...terminal import Verbosity
from ..options import RUNS, Options, command
from ..outcome import INTERRUPTED, SOME_FAILED, fail
from .dry_run import check_affordable, lines, outline

ERRORS_SHOWN = 5


def pin_threads(threads: int = 1) -> None:
    """Limit the threads of this process, by default to one: more make small tensors slower and times incomparable on a shared machine."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(threads)
    torch.set_num_threads(threads)


def launched(  # noqa: PLR0913
    plan: Plan, options: Options, *, machine: Machine, scope: Scope, preset: str, shard: Shard | None = None, longest: float = math.inf
) -> dict[str, int] | None:
    """Lay a plan out, refuse it if this machine cannot afford it, and measure it, or a shard of it.

    The options are those that repeat the run. The counts of cells by status are returned; None for a dry run.

    Raises:
        ValueError: a plan or a machine that cannot be, or a folder with results of a newer version.
        OSError: a folder that cannot be written.
        typer.Exit: interrupted, or nothing can be written any more; finished cells are kept.
    """
    verbosity, repeat = Verbosity(options.quiet, options.verbose, options.json), command(options)
    with verbosity.compiling():
        machine.checked(plan)
        whole = grid(plan)
        scope.check_names(whole.cells)
        work = whole if shard is None else shard.of_plan(whole)
        found = outline(plan, work, machine, preset, repeat)
        if options.dry_run and options.json:
            typer.echo(json.dumps(found, ensure_ascii=False))
        elif options.dry_run:
            verbosity.say("\n".join(lines(found, plan, machine, skips=True)), important=True)
        check_affordable(found, plan, machine, longest)
        if options.dry_run:
            return None
        settings = dataclasses.asdict(plan)
        manifest = {
            "plan": settings,
            "plan_hash": results.plan_hash(settings),
            "machine": dataclasses.asdict(machine),
            "seed": plan.seed,
            "preset": preset,
            "argv": sys.argv,
            "command": repeat,
            "started": _now(),
            "process": {"id": os.getpid(), "host": platform.node()},
            "environment": results.environment(plan.device),
            **({} if shard is None else {"shard": {**vars(shard), "cells": len(whole.cells)}}),
        }
        part = "" if shard is None else f"-shard-{shard.number}-of-{shard.of}"
        with opened(options.out or str(RUNS / f"{manifest['plan_hash']}{part}"), fresh=options.fresh) as (folder, mirror):
            verbosity.say("\n".join(lines(found, plan, machine, skips=False)))
            return Launch(plan, work, folder, mirror, machine, scope, verbosity, manifest).perform()


@contextmanager
def opened(place: str, *, fresh: bool = False) -> Iterator[tuple[Path, Mirror | None]]:
    """The locked folder of a run, and its mirror if the place is a URL; a fresh one holds no finished cells.

    Raises:
        ValueError: a folder with results of a newer version, or a URL that cannot be used.
        OSError: a folder that cannot be written.
    """
    with writing(place) as (folder, mirror):
        results.check_not_newer(folder)
        if fresh:
            store.discard(folder)
            if mirror is not None:
                mirror.remote.discard()
        yield folder, mirror


@dataclasses.dataclass(frozen=True)
class Launch:
    """One run of a plan into a folder, with its output.

    Args:
        plan: the measurements. ``work``: their cells.
        folder: local folder of the results. ``mirror``: its copy under a URL.
        machine: workers. ``scope``: cells to measure again, and limits.
        verbosity: amount of output.
        manifest: that of the run, without its end.
    """

    plan: Plan
    work: Grid
    folder: Path
    mirror: Mirror | None
    machine: Machine
    scope: Scope
    verbosity: Verbosity
    manifest: results.Manifest

    @property
    def place(self) -> str:
        """The folder or URL of the results."""
        return str(self.folder) if self.mirror is None else self.mirror.remote.url

    def perform(self) -> dict[str, int]:
        """Measure, write and summarise.

        Returns:
            How many cells are ok, failed, skipped and left.

        Raises:
            typer.Exit: interrupted, or nothing can be written any more; finished cells are kept.
        """
        self.verbosity.say(f"results go to {self.place}" + (f", by way of {self.folder}" if self.mirror is not None else ""))
        if behind := self._left_behind():
            self.verbosity.say(behind, "yellow", important=True)
        with self._sentence():
            results.write_manifest(self.folder, {**self.manifest, "status": "running"})
            with _terminable(), self.verbosity.progress() as progress:
                settings: dict[str, Any] = {"progress": progress, "scope": self.scope, "mirror": self.mirror}
                runner.measure(self.plan, self.folder, self.work, self.machine, **settings)
            left = self._left()
            frame, manifest = publish(self.plan, self.folder, self.place, self.manifest, left)
            counts = {**tables.counts(frame), "left": left}
            sentences = self._summarise(frame, manifest)
            self.verbosity.say(text.cells_line(counts), important=True, apart=True)
            if self.mirror is not None:
                self.mirror.write()
            self._conclude(manifest["status"], sentences, counts)
        return counts

    def _left_behind(self) -> str:
        """A warning if the folder holds cells of another plan: they are kept, and this command restores their table."""
        with suppress(ValueError, OSError):
            manifest = results.manifest_of(self.folder) if (self.folder / TABLE).is_file() else {}
            if not manifest or not store.holds_run(self.folder):
                return ""
            with store.Store(self.folder) as found:
                count = len({cell.identity for cell in found.planned().cells} - {cell.identity for cell in self.work.cells})
            if count:
                return (
                    f"{self.place} holds a run with {text.plural(count, 'other cell')}. This run replaces its table and page, and keeps "
                    "its cells. Choose another --out to keep both, or restore the earlier table with: "
                    f"{manifest.get('command', 'its command, which was not stored')}"
                )
        return ""

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        """End an interrupted or broken run with one sentence, and with its status in ``run.json`` if that can still be written."""
        try:
            yield
            return
        except KeyboardInterrupt:
            said, status, code = "interrupted", "interrupted", INTERRUPTED
        except OSError as error:
            where = f" at {error.filename}" if error.filename else ""
            said, status, code = f"cannot write{where} ({error.strerror or error})", "broken", SOME_FAILED
        with suppress(OSError):
            results.write_manifest(self.folder, {**self.manifest, "status": status, "finished": _now()})
            if self.mirror is not None and status != "broken":  # the store itself may be broken, and one wait for it is enough
                self.mirror.write()
        total = len(self.work.cells)
        kept = f"{total - self._left()} of {total} cells are in {self.folder}; finished cells are kept"
        fail(f"{said}; {kept}, continue with: {self.manifest['command']}", code)

    def _left(self) -> int:
        """The number of cells that are not measured."""
        if not store.holds_run(self.folder):
            return len(self.work.cells)
        with store.Store(self.folder) as found:
            known = found.known()
        return sum(cell.identity not in known for cell in self.work.cells)

    def _summarise(self, frame: Any, manifest: results.Manifest) -> list[str]:
        """Print answers, tables and errors; return the answers of training."""
        trained, measured, verbosity = page.learning_of(frame), tables.by_loss(page.of_gradients(frame)), self.verbosity
        sentences = trained.sentences if trained else []
        for position, sentence in enumerate(sentences):
            verbosity.say(sentence, important=position == 0, apart=position == 0)
        overviews = terminal.summary(measured)
        if overviews:
            verbosity.say(page.headline(measured, manifest), apart=True)
        for table in [*(trained.overviews if trained else []), *overviews]:
            verbosity.table(table)
        for kind, legend in ((True, terminal.ANSWER_LEGEND), (False, terminal.LEGEND)):
            if any(("of" in table) == kind for table in overviews):
                verbosity.say(legend, "dim", apart=True)
        for line in terminal.compared(measured):
            verbosity.say(line, apart=True)
        for line in page.contradictions(tables.claims(frame)):
            verbosity.say(f"! {line}", "red")
        for row in tables.records(tables.errors(frame).head(ERRORS_SHOWN)):
            where = ", ".join(filter(None, (row.problem, row.stage, row.instance)))
            verbosity.say(f"{row.status}: {row.estimator} on {where}: {row.reason}", "red")
        return sentences

    def _conclude(self, status: str, sentences: list[str], counts: dict[str, int]) -> None:
        """Print the files of the run and the command that continues or repeats it."""
        local, repeat, left = self.mirror is None, self.manifest["command"], counts["left"]
        table, report = (str((self.folder / name).resolve()) if local else f"{self.place}/{name}" for name in (TABLE, PAGE))
        self.verbosity.say(f"results: {self.folder / TABLE if local else table}\nreport:  {report}", important=True)
        again = f"{left} cells left, continue with" if left else "again, failed cells only" if counts["failed"] else "repeat"
        self.verbosity.say(f"{again}: {repeat}", important=True)
        if self.manifest["preset"] == DEFAULT and not left:
            deeper = repeat.partition(" --out ")[0].replace(f"--preset {DEFAULT}", "--preset standard").replace(" --quick", "")
            self.verbosity.say(f"for conclusions, with more instances or steps: {deeper}")
        paths = {"folder": str(self.folder.resolve()) if local else self.place, "results": table, "report": report}
        answer = {"answer": sentences} if sentences else {}
        if self.verbosity.as_json:
            typer.echo(json.dumps({"status": status, **answer, **counts, **paths, "command": repeat}))


def publish(plan: Plan, folder: Path, place: str, manifest: results.Manifest, left: int, **more: Any) -> tuple[Any, results.Manifest]:
    """Write table, manifest and page of a run, with the number of cells that are left, and read the table and the manifest back."""
    rows, end = runner.collect(folder), {"status": "stopped" if left else "finished", "finished": _now()}
    results.write(rows, folder, {**manifest, **end, "catalogue": _catalogue(plan, rows), **more})
    frame, whole = results.read(folder)
    results.write_whole(folder / PAGE, page.to_html(frame, {**whole, "folder": place}).encode())
    return frame, whole


def _catalogue(plan: Plan, rows: runner.Results) -> results.Manifest:
    """Facts on classes and score files, so that a report imports none of them."""
    measured = [row for row in rows if row.status != "skipped"]
    families, oracles = dict.fromkeys(row.family for row in measured), dict.fromkeys(row.oracle for row in measured)
    return {
        "values_only": list(filter(answers.needs_values_only, dict.fromkeys(row.estimator for row in measured))),
        "references": bibliography.cited(families, oracles),
        "explained": bibliography.explained(families),
        "sizes": _sizes(plan, dict.fromkeys((row.problem, row.stage, row.instance) for row in measured)),
    }


def _sizes(plan: Plan, instances: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """The sizes of the measured instances of each problem with scores, in words."""
    measured: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    problems: dict[str, dict[str, None]] = defaultdict(dict)
    for name, stage, instance in instances:
        if instance and not comes_from_task(name):
            scores = split_loss(name)[0]
            problems[scores][name] = None
            measured[scores][stage].add(instance)
    found: dict[str, str] = {}
    for scores, named in problems.items():
        events: list[tuple[int, ...]] = []
        # A problem of the user's may raise anything, and a label must not end the run.
        with suppress(Exception):
            for stage, names in measured[scores].items():
                problem = load_problem(plan, next(iter(named)), stage, len(names))
                events += [tuple(item.scores.shape) for item in problem.instances if item.name in names]
            if written := sizes_of(problem.oracle, events):
                found |= dict.fromkeys(named, written)
    return found


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send, as Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
