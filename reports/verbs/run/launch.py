"""One run of a plan: it is estimated, measured, stored and summarised, and any end of it says how to continue."""

import dataclasses
import json
import os
import platform
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import typer

from ....oracles.magnitudes import beyond_memory, gibibytes
from ....suites import text
from ....suites.base import split_loss
from ....suites.measures import SUITES
from ....suites.problems import OWN_LOSS, comes_from_task
from ....suites.problems.sized import sizes_of
from ....suites.running import runner, store
from ....suites.running.planning.estimates import START, CostModel
from ....suites.running.planning.grid import grid, load_problem, sample
from ....suites.running.planning.plan import Machine, Plan, Scope, Shard
from ....suites.running.planning.presets import DEFAULT
from ....suites.running.remote import Mirror, writing
from ....suites.running.work import Grid, Progress
from ... import bibliography, page, results, terminal
from ...analysis import answers, tables
from ...results import PAGE, TABLE
from ...terminal import Verbosity
from ..options import RUNS, Options, command
from ..outcome import INTERRUPTED, SOME_FAILED, fail

ERRORS_SHOWN, SKIPS_SHOWN = 5, 20
WORKER_BYTES = 0.45 * 2**30  # memory of a worker after its imports and its first compiled kernels, as measured
COPIES = 40  # tensors of a launch that live at one time, as measured on the preset quick: samples, losses, gradients, in float64

Outline = dict[str, Any]  # names, counts and estimates of a plan as JSON values


def pin_threads(threads: int = 1) -> None:
    """Limit the threads of this process, by default to one: more make small tensors slower and times incomparable on a shared machine."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(threads)
    torch.set_num_threads(threads)


def launched(  # noqa: PLR0913
    plan: Plan, options: Options, *, machine: Machine, scope: Scope, preset: str, shard: Shard | None = None
) -> dict[str, int] | None:
    """Lay a plan out, refuse it if this machine cannot afford it, and measure it, or a shard of it.

    The options are those that repeat the run. The counts of cells by status are returned; None for a dry run.
    """
    verbosity, repeat = Verbosity(options.quiet, options.json), command(options)
    machine.checked(plan)
    every = grid(plan)
    scope.check_names(every.cells)
    work = every if shard is None else shard.of_plan(every)
    found = outline(plan, work, machine, preset, repeat)
    if options.dry_run and options.json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    elif options.dry_run:
        verbosity.say("\n".join(lines(found, plan, machine, skips=True)), important=True)
    if machine.engine == "local" and (beyond := beyond_memory(found["bytes"])):
        raise ValueError(
            f"the plan takes about {beyond}; choose fewer rows by --batch-size (it is {plan.batch_size}, and numbers do not depend on "
            f"it), fewer --jobs (they are {machine.jobs}), or smaller problems"
        )
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
        **({} if shard is None else {"shard": {**vars(shard), "cells": len(every.cells)}}),
    }
    part = "" if shard is None else f"-shard-{shard.number}-of-{shard.of}"
    with opened(options.out or str(RUNS / f"{manifest['plan_hash']}{part}"), fresh=options.fresh) as (folder, mirror):
        verbosity.say("\n".join(lines(found, plan, machine, skips=False)))
        with _kept(work, folder, mirror, manifest):
            place = str(folder) if mirror is None else mirror.remote.url
            verbosity.say(f"results go to {place}" + (f", by way of {folder}" if mirror is not None else ""))
            if behind := _left_behind(work, folder, place):
                verbosity.say(behind, "yellow", important=True)
            results.write_manifest(folder, {**manifest, "status": "running"})
            progress: Progress = (lambda _: None) if options.quiet else terminal.plain_progress()
            runner.measure(plan, folder, work, machine, progress=progress, scope=scope, mirror=mirror)
            left = _left(work, folder)
            frame, whole = publish(plan, folder, place, manifest, left)
            counts = {**tables.counts(frame), "left": left}
            sentences = _summarise(frame, verbosity)
            verbosity.say(text.cells_line(counts), important=True, apart=True)
            if mirror is not None:
                mirror.write()
            absolute = str(folder.resolve()) if mirror is None else place
            table, report = f"{absolute}/{TABLE}", f"{absolute}/{PAGE}"
            verbosity.say(f"results: {folder / TABLE if mirror is None else table}\nreport:  {report}", important=True)
            again = f"{left} cells left, continue with" if left else "again, failed cells only" if counts["failed"] else "repeat"
            verbosity.say(f"{again}: {repeat}", important=True)
            if manifest["preset"] == DEFAULT and not left:
                deeper = repeat.partition(" --out ")[0].replace(f"--preset {DEFAULT}", "--preset standard").replace(" --quick", "")
                verbosity.say(f"for conclusions, with more instances or steps: {deeper}")
            if verbosity.as_json:
                answer = {"answer": sentences} if sentences else {}
                paths = {"folder": absolute, "results": table, "report": report, "command": repeat}
                typer.echo(json.dumps({"status": whole["status"], **answer, **counts, **paths}))
            return counts


def outline(plan: Plan, work: Grid, machine: Machine, preset: str, command: str) -> Outline:
    """Estimate a plan; nothing is measured, and time to compile kernels does not count."""
    cells, costs = work.cells, CostModel(plan)
    instances = {cell.scores: cell.instances for cell in cells}
    samples = {scores: sample(plan, *scores) for scores in instances}
    structures = 0
    for scores, problem in samples.items():  # of a few instances; larger spaces are not enumerated
        counts = [problem.oracle.count(tuple(item.scores.shape)) for item in problem.instances]
        structures += sum(count for count in counts if count <= plan.effort.cap) * instances[scores] // len(counts)
    parts = max((item.scores.numel() for problem in samples.values() for item in problem.instances), default=0)
    launches = 8.0 * COPIES * parts * plan.batch_size if plan.device_kind == "cpu" else 0.0  # a device has its own memory
    longest = max(((costs.seconds(cell), cell.label) for cell in cells), key=lambda cost: cost[0], default=(0.0, ""))
    measured = Counter(cell.suite for cell in cells for _ in range(cell.instances))
    return {
        "preset": preset,
        "source": plan.file.path if plan.file else plan.data or "built-in regimes",
        "problems": list(dict.fromkeys(cell.problem for cell in cells)),
        "stages": list(dict.fromkeys(cell.stage for cell in cells)),
        "estimators": list(dict.fromkeys(name for cell in cells for name in cell.estimators)),
        "suites": {name: {"cells": count, "instances": measured[name]} for name, count in Counter(cell.suite for cell in cells).items()},
        "cells": len(cells),
        "skipped": len({(row.problem, row.estimator) for row in work.skips}),
        "structures": structures,
        "seconds": round(START + costs.left(cells, machine.jobs), 1),
        "bytes": round(max(machine.jobs, 1) * (WORKER_BYTES + launches)),
        "longest": {"cell": longest[1], "seconds": round(longest[0], 1)},
        "workers": max(machine.jobs, 1),
        "seed": plan.seed,
        "skips": [{name: getattr(row, name) for name in ("suite", "problem", "stage", "estimator", "reason")} for row in work.skips],
        "command": command,
    }


def lines(found: Outline, plan: Plan, machine: Machine, *, skips: bool) -> Iterator[str]:
    """An outline for people, with the skipped pairs if they are asked for."""
    trained = all(SUITES[name].measures in ("tasks", "references") for name in found["suites"])
    effort = plan.effort
    most = f" to {effort.most_replicates}" if effort.most_replicates > effort.replicates else ""
    replicates = f"{effort.replicates}{most} replicates within {text.significant(effort.seconds)} s, "
    parts = [split_loss(name) for name in found["problems"]]
    scores, losses = dict.fromkeys(name for name, _ in parts), dict.fromkeys(loss or OWN_LOSS for _, loss in parts)
    named = "" if list(losses) == [OWN_LOSS] else f"; losses: {', '.join(losses)}"
    workers = text.plural(machine.jobs, "worker") if machine.jobs else "this process alone"
    if plan.device_kind != "cpu" and machine.engine == "local":
        workers += " on one device"
    yield f"preset {found['preset']}" + (": a first look, not for conclusions" if found["preset"] == "quick" else "")
    source = "" if trained else f"; scores from {found['source']}"
    yield f"{text.plural(len(scores), 'problem')}: {', '.join(scores)}{named}; entropy levels: {', '.join(found['stages'])}{source}"
    yield f"{text.plural(len(found['estimators']), 'estimator')}: {', '.join(found['estimators'])}"
    count = plan.instances if plan.file is None else plan.file.instances or "all"
    yield f"{count} instances each, " + (f"seed {plan.seed}" if trained else f"{replicates}seed {plan.seed}, {plan.dtype} on {plan.device}")
    for name, counts in found["suites"].items():
        yield f"{name}: {text.plural(counts['cells'], 'cell')}, {text.plural(counts['instances'], 'instance')}"
    yield (
        f"{text.plural(found['cells'], 'cell')}, {text.plural(found['skipped'], 'pair')} skipped; "
        f"about {text.duration(found['seconds'])} with {workers}, about {gibibytes(found['bytes'])} of memory"
    )
    if found["cells"]:
        yield f"longest cell: about {text.duration(found['longest']['seconds'])}, {found['longest']['cell']}"
    if skips:
        yield f"structures to enumerate: about {text.number(found['structures'])}"
        pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for row in found["skips"]:
            place = " of ".join(filter(None, (row["suite"], row["problem"])))
            pairs[row["reason"].removeprefix(row["estimator"]).strip()].append((row["estimator"], place))
        for reason, some in list(pairs.items())[:SKIPS_SHOWN]:
            yield f"skipped: {' on '.join(text.listed(list(dict.fromkeys(names))) for names in zip(*some, strict=True))}: {reason}"
        if len(pairs) > SKIPS_SHOWN:
            yield f"skipped: pairs for {len(pairs) - SKIPS_SHOWN} more reasons, each a row of the report"


@contextmanager
def opened(place: str, *, fresh: bool = False) -> Iterator[tuple[Path, Mirror | None]]:
    """The locked folder of a run, and its mirror if the place is a URL; a fresh one holds no finished cells."""
    with writing(place) as (folder, mirror):
        results.check_not_newer(folder)
        if fresh:
            if mirror is not None:
                mirror.remote.discard()
            store.discard(folder)
        yield folder, mirror


@contextmanager
def _kept(work: Grid, folder: Path, mirror: Mirror | None, manifest: results.Manifest) -> Iterator[None]:
    """End an interrupted or broken run with one sentence, and with its status in ``run.json`` if that can still be written."""
    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # schedulers send it
    try:
        yield
        return
    except KeyboardInterrupt:
        event, status, code = "interrupted", "interrupted", INTERRUPTED
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        event, status, code = f"cannot write{where} ({error.strerror or error})", "broken", SOME_FAILED
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)
    with suppress(OSError):
        results.write_manifest(folder, {**manifest, "status": status, "finished": _now()})
        if mirror is not None and status != "broken":  # the store itself may be broken, and one wait for it is enough
            mirror.write()
    total = len(work.cells)
    kept = f"{total - _left(work, folder)} of {total} cells are in {folder}; finished cells are kept"
    fail(f"{event}; {kept}, continue with: {manifest['command']}", code)


def _left_behind(work: Grid, folder: Path, place: str) -> str:
    """A warning if the folder holds cells of another plan: they are kept, and this command restores their table."""
    with suppress(ValueError, OSError):
        with store.Store(folder) as found:
            planned = found.planned().cells if (folder / TABLE).is_file() else ()
        if count := len({cell.identity for cell in planned} - {cell.identity for cell in work.cells}):
            return (
                f"{place} holds a run with {text.plural(count, 'other cell')}. This run replaces its table and page, and keeps its cells. "
                "Choose another --out to keep both, or restore the earlier table with: "
                f"{results.manifest_of(folder).get('command', 'its command, which was not stored')}"
            )
    return ""


def _left(work: Grid, folder: Path) -> int:
    if not store.holds_run(folder):
        return len(work.cells)
    with store.Store(folder) as found:
        return len({cell.identity for cell in work.cells} - found.known().keys())


def _summarise(frame: Any, verbosity: Verbosity) -> list[str]:
    """Print answers, tables and errors; return the answers of training."""
    trained, measured = page.learning_of(frame), tables.by_loss(page.of_gradients(frame))
    sentences = trained.sentences if trained else []
    for position, sentence in enumerate(sentences):
        verbosity.say(sentence, important=position == 0, apart=position == 0)
    overviews = terminal.summary(measured)
    if overviews:
        verbosity.say(page.headline(measured), apart=True)
    for table in [*(trained.overviews if trained else []), *overviews]:
        verbosity.table(table)
    for line in terminal.compared(measured):
        verbosity.say(line, apart=True)
    for line in page.contradictions(tables.claims(frame)):
        verbosity.say(f"! {line}", "red")
    for row in tables.items_of(tables.errors(frame).head(ERRORS_SHOWN)):
        where = ", ".join(filter(None, (row.problem, row.stage, row.instance)))
        verbosity.say(f"{row.status}: {row.estimator} on {where}: {row.reason}", "red")
    return sentences


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
    instances: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in measured:
        if row.instance and not comes_from_task(row.problem):
            instances[row.problem][row.stage].add(row.instance)
    sizes: dict[str, str] = {}
    for name, stages in instances.items():
        # A problem of the user's may raise anything, and a label must not end the run.
        with suppress(Exception):
            problems = [(load_problem(plan, name, stage, len(names)), names) for stage, names in stages.items()]
            events = [tuple(item.scores.shape) for problem, names in problems for item in problem.instances if item.name in names]
            sizes[name] = sizes_of(problems[0][0].oracle, events)
    return {
        "values_only": list(filter(answers.needs_values_only, dict.fromkeys(row.estimator for row in measured))),
        "references": bibliography.cited(families, oracles),
        "sizes": {name: written for name, written in sizes.items() if written},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
