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

import typer

from ....oracles import plugins
from ....suites import text
from ....suites.problems import comes_from_task, split_loss
from ....suites.problems.sized import sizes_of
from ....suites.running import replay_cell, runner, store
from ....suites.running.engines import ENGINES
from ....suites.running.planning import compiling
from ....suites.running.planning.grid import grid
from ....suites.running.planning.plan import Machine, Plan, Scope, Shard
from ....suites.running.planning.presets import DEFAULT
from ....suites.running.remote import Mirror, is_url, mirrored
from ....suites.running.results import Results
from ....suites.running.scores import load_problem
from ....suites.running.store import Store, locked
from ....suites.running.work import Cell, Grid
from ... import bibliography, page, results, terminal
from ...analysis import answers, tables
from ...results import PAGE
from ...terminal import Verbosity
from ..options import RUNS, Options, command
from ..outcome import INTERRUPTED, SOME_FAILED, fail
from .outline import as_json, check_affordable, limits_lines, lines, outline, skips_lines

ERRORS_SHOWN = 5


def pin_threads(threads: int = 1) -> None:
    """Limit the threads of this process, by default to one: more make small tensors slower and times incomparable on a shared machine."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(threads)
    import torch

    torch.set_num_threads(threads)


def launched(  # noqa: PLR0913
    plan: Plan, options: Options, *, machine: Machine, scope: Scope, preset: str, shard: Shard | None = None
) -> dict[str, int] | None:
    """Lay a plan out, refuse it if this machine cannot afford it, and measure it, or a shard of it.

    The options are those that repeat the run. The counts of cells by status are returned; None for a dry run.

    Raises:
        ValueError: a plan or a machine that cannot be, or a folder with results of a newer version.
        OSError: a folder that cannot be written.
        typer.Exit: as `Launch.perform` does.
    """
    verbosity, repeat = Verbosity(options.quiet, options.verbose, options.json), command(options)
    with verbosity.compiling():
        machine.checked(ENGINES, plan)
        with compiling.shared(plan, machine.jobs):
            whole = grid(plan)
        scope.check_names(whole.cells)
        work = whole if shard is None else shard.of_plan(whole)
        found = outline(plan, work, machine, preset, sum(verbosity.compiled))
        if options.dry_run and options.json:
            typer.echo(json.dumps(as_json(found, work, plan, repeat), ensure_ascii=False))
        elif options.dry_run:
            structures = f"structures to enumerate: about {text.number(found.structures)}"
            for line in (*lines(found, plan, machine), structures, *skips_lines(work)):
                verbosity.say(line, important=True)
        check_affordable(found, plan, machine, scope.longest or math.inf)
        if options.dry_run:
            return None
        part = {} if shard is None else {"shard": {**vars(shard), "cells": len(whole.cells)}}
        with opened(plan, options, shard) as (folder, mirror):
            if options.fresh:
                store.discard(folder)
            for line in (*lines(found, plan, machine), *limits_lines(work)):
                verbosity.say(line)
            return Launch(plan, work, folder, machine, preset, repeat, scope, verbosity, part, mirror).perform()


@contextmanager
def opened(plan: Plan, options: Options, shard: Shard | None) -> Iterator[tuple[Path, Mirror | None]]:
    """The locked folder of a run, by default named after the plan, and its mirror if it lies under a URL.

    Raises:
        ValueError: a folder with results of a newer version, or a URL that cannot be used.
        OSError: a folder that cannot be written.
    """
    if options.out is not None and is_url(options.out):
        with mirrored(options.out) as mirror:
            results.check_not_newer(mirror.folder)
            if options.fresh:
                mirror.discard()
            yield mirror.folder, mirror
        return
    name = results.plan_hash(dataclasses.asdict(plan)) + ("" if shard is None else f"-shard-{shard.number}-of-{shard.of}")
    folder = Path(options.out) if options.out else RUNS / name
    results.check_not_newer(folder)
    store.check_writable(folder)
    with locked(folder):
        yield folder, None


@dataclasses.dataclass(frozen=True)
class Launch:
    """One run of a plan into a folder, with its output.

    Args:
        plan: the measurements. ``work``: their cells.
        folder: local folder of the results. ``mirror``: its copy under a URL.
        machine: workers. ``scope``: cells to measure again, and limits.
        preset: name of the plan's preset. ``repeat``: the command that repeats the run.
        verbosity: amount of output.
        part: entry of the manifest for a shard.
    """

    plan: Plan
    work: Grid
    folder: Path
    machine: Machine
    preset: str
    repeat: str
    scope: Scope
    verbosity: Verbosity
    part: results.Manifest
    mirror: Mirror | None

    @property
    def place(self) -> str:
        """The folder or URL of the results."""
        return str(self.folder) if self.mirror is None else self.mirror.remote.url

    def _left_behind(self) -> str:
        """A warning if the folder holds cells of another plan: they are kept, and this command restores their table."""
        with suppress(ValueError, OSError):
            manifest = results.manifest_of(self.folder) if (self.folder / results.TABLE).is_file() else {}
            planned = replay_cell.cells_of(self.folder) if manifest and store.holds_run(self.folder) else ()
            count = len({cell.identity for cell in planned} - {cell.identity for cell in self.work.cells})
            if count:
                return (
                    f"{self.place} holds a run with {text.plural(count, 'other cell')}. This run replaces its table and page, and keeps "
                    "its cells. Choose another --out to keep both, or restore the earlier table with: "
                    f"{manifest.get('command', 'its command, which was not stored')}"
                )
        return ""

    def perform(self) -> dict[str, int]:
        """Measure, write and summarise.

        Returns:
            How many cells are ok, failed, skipped and left.

        Raises:
            typer.Exit: interrupted, or nothing can be written any more; finished cells are kept.
        """
        manifest = self._manifest(started=_now())
        self.verbosity.say(f"results go to {self.place}" + (f", by way of {self.folder}" if self.mirror is not None else ""))
        if behind := self._left_behind():
            self.verbosity.say(behind, "yellow", important=True)
        with self._sentence():
            results.write_manifest(self.folder, {**manifest, "status": "running"})
            with _terminable(), self.verbosity.progress() as progress:
                settings: dict[str, Any] = {"machine": self.machine, "progress": progress, "scope": self.scope, "work": self.work}
                runner.measure(self.plan, self.folder, mirror=self.mirror, **settings)
            left = len(self._unmeasured())
            _write(self.plan, self.folder, {**manifest, **_ending(left)})
            return self._finish(left)

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        """End an interrupted or broken run with one sentence, and with its status in ``run.json`` if that can still be written."""
        try:
            yield
        except KeyboardInterrupt:
            self._mark("interrupted")
            fail(f"interrupted; {self._kept()}", INTERRUPTED)
        except OSError as error:
            self._mark("broken")
            where = f" at {error.filename}" if error.filename else ""
            fail(f"cannot write{where} ({error.strerror or error}); {self._kept()}", SOME_FAILED)

    def _mark(self, status: str) -> None:
        with suppress(OSError):
            results.write_manifest(self.folder, {**self._manifest(started=_now()), "status": status, "finished": _now()})
            if status != "broken":  # the store itself may be broken, and one wait for it is enough
                self._mirror_documents()

    def _mirror_documents(self) -> None:
        if self.mirror is not None:
            self.mirror.write()

    def _kept(self) -> str:
        total = len(self.work.cells)
        there = total - len(self._unmeasured())
        return f"{there} of {total} cells are in {self.folder}; finished cells are kept, continue with: {self.repeat}"

    def _unmeasured(self) -> list[Cell]:
        if not store.holds_run(self.folder):
            return list(self.work.cells)
        with Store(self.folder) as found:
            known = found.known()
        return [cell for cell in self.work.cells if cell.identity not in known]

    def _manifest(self, *, started: str) -> results.Manifest:
        settings = dataclasses.asdict(self.plan)
        return {
            "plan": settings,
            "plan_hash": results.plan_hash(settings),
            "machine": dataclasses.asdict(self.machine),
            "seed": self.plan.seed,
            "preset": self.preset,
            "argv": sys.argv,
            "command": self.repeat,
            "started": started,
            "process": {"id": os.getpid(), "host": platform.node()},
            "environment": results.environment(self.plan.device),
            **self.part,
        }

    def _finish(self, left: int) -> dict[str, int]:
        """Write the page, print the summary, and return the counts of cells by status."""
        frame, manifest = results.read(self.folder)
        results.write_whole(self.folder / PAGE, page.to_html(frame, {**manifest, "folder": self.place}).encode())
        trained, measured, verbosity = page.learning_of(frame), tables.by_loss(page.of_gradients(frame)), self.verbosity
        sentences = trained.sentences if trained else []
        for position, sentence in enumerate(sentences):
            verbosity.say(sentence, important=position == 0, apart=position == 0)
        overviews = terminal.summary(measured)
        if overviews:
            verbosity.say(page.headline(measured, manifest), apart=True)
        for table in [*trained.overviews, *overviews]:
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
        counts = {**tables.counts(frame), "left": left}
        verbosity.say(text.cells_line(counts), important=True, apart=True)
        self._mirror_documents()
        places = {name: self.folder / name for name in (results.TABLE, PAGE)}
        shown = {name: f"{self.place}/{name}" if self.mirror else str(path.resolve()) for name, path in places.items()}
        stored = shown[results.TABLE] if self.mirror else places[results.TABLE]
        verbosity.say(f"results: {stored}\nreport:  {shown[PAGE]}", important=True)
        again = f"{left} cells left, continue with" if left else "again, failed cells only" if counts["failed"] else "repeat"
        verbosity.say(f"{again}: {self.repeat}", important=True)
        if self.preset == DEFAULT and not left:
            deeper = self.repeat.partition(" --out ")[0].replace(f"--preset {DEFAULT}", "--preset standard").replace(" --quick", "")
            verbosity.say(f"for conclusions, with more instances or steps: {deeper}")
        paths = {
            "folder": self.place if self.mirror else str(self.folder.resolve()),
            "results": shown[results.TABLE],
            "report": shown[PAGE],
        }
        answer = {"answer": sentences} if sentences else {}
        verbosity.outcome({"status": manifest["status"], **answer, **counts, **paths, "command": self.repeat})
        return counts


def conclude(folder: Path, manifest: results.Manifest, shards: list[str], left: int) -> dict[str, int]:
    """Write table, manifest and page of a run that was merged from shards, and count its cells by status."""
    plan = replay_cell.plan_from(manifest["plan"])
    plugins.use(plan.plugins)
    parent = {name: value for name, value in manifest.items() if name not in ("shard", "argv", "process")}
    _write(plan, folder, {**parent, **_ending(left)}, shards=shards)
    frame, whole = results.read(folder)
    results.write_whole(folder / PAGE, page.to_html(frame, {**whole, "folder": str(folder)}).encode())
    return tables.counts(frame)


def _ending(left: int) -> results.Manifest:
    return {"status": "stopped" if left else "finished", "finished": _now()}


def _write(plan: Plan, folder: Path, manifest: results.Manifest, **more: Any) -> None:
    """Write the table of a run."""
    rows = runner.collect(folder)
    results.write(rows, folder, {**manifest, "catalogue": _catalogue(plan, rows), **more})


def _catalogue(plan: Plan, rows: Results) -> results.Manifest:
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
    measured: dict[tuple[str, str], set[str]] = defaultdict(set)
    problems: dict[str, dict[str, None]] = defaultdict(dict)
    for name, stage, instance in instances:
        if instance and not comes_from_task(name):
            scores = split_loss(name)[0]
            problems[scores][name] = None
            measured[scores, stage].add(instance)
    found: dict[str, str] = {}
    for scores, named in problems.items():
        events: list[tuple[int, ...]] = []
        # A problem of the user's may raise anything, and a label must not end the run.
        with suppress(Exception):
            for stage in [stage for name, stage in measured if name == scores]:
                problem = load_problem(plan, next(iter(named)), stage, len(measured[scores, stage]))
                events += [tuple(item.scores.shape) for item in problem.instances if item.name in measured[scores, stage]]
            if written := sizes_of(problem.oracle, events):
                found |= dict.fromkeys(named, written)
    return found


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send, as Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
