"""The page on a device, ``device.md``, and ``device.json``: is it right here, how fast, what misses its target and by how much?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ....suites.running.store import write_atomically
from ....suites.speed.device_rows import DeviceRow
from ....suites.text import MISSING, milliseconds, number, percent, setting, significant, whole
from .device_tests import DeviceTests

MOST = 50
"""Names of failed tests on the page."""

CONTENDERS = {
    "torch": "plain torch on this device",
    "compiled": "torch.compile of plain torch",
    "cpu": "the CPU with two threads",
    "lu64": "a float64 factorisation, which is not exact",
    "scipy": "scipy, item by item",
    "popping": "popping cycles",
    "torch-struct": "torch-struct",
}
"""What others are called on the page."""

STAND_IN = "none: the CPU stands in for a GPU, with small batches, and its times mean nothing"

COLUMNS = ("torch", "compiled", "cpu")
"""Contenders with a column of their own."""


@dataclass(frozen=True)
class KnownDevice:
    """What the report is made of.

    Attributes:
        environment: what figures depend on.
        tests: what the tests said.
        rows: of all operations that are wanted.
        unfinished: how many of them lack something.
        cuda: whether they are on a GPU, and not on the CPU in its place.
    """

    environment: dict[str, str]
    tests: DeviceTests
    rows: list[DeviceRow]
    unfinished: int = 0
    cuda: bool = True


def write(folder: Path, known: KnownDevice) -> Path:
    """Write ``device.md`` and ``device.json``, each whole at any moment; gives the path of the former."""
    write_atomically(folder / "device.json", json.dumps(as_json(known), indent=2, ensure_ascii=False, allow_nan=False))
    write_atomically(folder / "device.md", "\n".join(markdown(known)) + "\n")
    return folder / "device.md"


def as_json(known: KnownDevice) -> dict[str, Any]:
    """Everything, for programs: a row for each operation, with what each step found."""
    rows = [
        {"case": row.task.case.name, "operation": row.task.operation, "batch": row.task.batch}
        | {"verdict": row.verdict, "wrong": row.wrong, "target": None if row.task.target is None else asdict(row.task.target)}
        | {"met": row.met, "share of the floor": row.share, "steps": row.answers}
        for row in known.rows
    ]
    return {"environment": known.environment, "tests": asdict(known.tests), "unfinished": known.unfinished, "operations": rows}


def markdown(known: KnownDevice) -> Iterator[str]:
    """The page, line by line."""
    yield f"# structgrad on {known.environment.get('device', 'this device')}: results and speed\n"
    yield from in_short(known)
    yield from _wrong(known.rows)
    yield from _tests(known.tests)
    if known.cuda:
        yield from _targets(known.rows)
    yield from _table(known.rows)
    yield from _said(known.rows)
    yield from _not_run(known.rows)
    yield "\n## Environment\n"
    yield from (f"- {name}: {value}" for name, value in known.environment.items())


def in_short(known: KnownDevice) -> Iterator[str]:
    """What a reader wants to know first, in a few lines."""
    rows, tests = known.rows, known.tests
    count = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("right", "wrong", "not checked")}
    yield f"- **Right**: {count['right']} of {len(rows)} operations; {count['wrong']} wrong, {count['not checked']} not checked."
    if known.cuda:
        timed = [row for row in rows if row.seconds("structgrad") is not None]
        plain = [row.task.name for row in timed if not row.value("structgrad", "kernel")]
        yield f"- **With kernels**: {len(timed) - len(plain)} of {len(timed)} timed operations{_list('; plain torch: ', plain)}."
    yield f"- **Tests**: {tests.verdict}{f' ({tests.summary})' if tests.summary else ''}."
    if known.unfinished:
        yield f"- **Not finished**: {known.unfinished} of {len(rows)} operations; repeat the command to continue."
    yield f"- **Targets**: {_targets_in_short(rows) if known.cuda else STAND_IN}."


def _targets_in_short(found: Sequence[DeviceRow]) -> str:
    held = [row for row in found if row.task.target is not None]
    met, missed, open_ = ([row for row in held if row.met is verdict] for verdict in (True, False, None))
    if not held:
        return "none for these operations"
    return (
        f"{len(met)} of {len(held)} met"
        + _list("; missed: ", [f"{row.task.name} ({_against(row)})" for row in missed])
        + _list("; not timed: ", [row.task.name for row in open_])
    )


def _against(row: DeviceRow) -> str:
    """How a target stands, in words."""
    target = row.task.target
    assert target is not None
    ratio = row.ratio(target.contender)
    return f"{number(ratio)} x {target.contender}, target {setting(target.factor)}"


def _list(before: str, names: Sequence[str]) -> str:
    return before + ", ".join(names) if names else ""


def _wrong(found: Sequence[DeviceRow]) -> Iterator[str]:
    wrong = [row for row in found if row.wrong]
    if wrong:
        yield "\n## Wrong results\n"
        yield from (f"- {row.task.name}, batch {row.task.batch}: {'; '.join(row.wrong)}" for row in wrong)


def _tests(tests: DeviceTests) -> Iterator[str]:
    if tests.failed:
        yield "\n## Failed tests\n"
        yield from (f"- {name}" for name in tests.failed[:MOST])
        if len(tests.failed) > MOST:
            yield f"- and {len(tests.failed) - MOST} more"
    if tests.unread:
        yield "\n## Test files that could not be imported\n"
        yield from (f"- {name}" for name in tests.unread[:MOST])


def _targets(found: Sequence[DeviceRow]) -> Iterator[str]:
    held = [row for row in found if row.task.target is not None]
    if not held:
        return
    yield "\n## Targets\n\nTime of the others / time of structgrad, measured in turns; higher is better.\n"
    yield "| operation | batch | compared with | target | measured | share of target | met |\n|---|--:|---|--:|--:|--:|---|"
    for row in held:
        target = row.task.target
        assert target is not None
        ratio, name = row.ratio(target.contender), CONTENDERS[target.contender]
        said = {True: "yes", False: "**no**", None: "not timed"}[row.met]
        share = percent(None if ratio is None else ratio / target.factor)
        yield f"| {row.task.name} | {row.task.batch} | {name} | {setting(target.factor)} | {number(ratio)} | {share} | {said} |"


HEADINGS = {
    "operation": "",
    "batch": "",
    "right": "",
    "served by": "",
    "ms": "median time of one call, without the first",
    "replay": "the same, replayed as a CUDA graph",
    "of floor": "lower bound of the time (memory traffic or arithmetic) / time of a call",
    "torch": "time of plain torch on this device / time of structgrad",
    "compile": "the same for plain torch under torch.compile",
    "CPU": "the same for the CPU with two threads",
    "others": "the same for other libraries",
    "one row": "ms of a batch of 1, and the ratio for the CPU: below 1 the CPU is faster",
    "MiB": "memory of the operation without its inputs",
    "off": "largest difference from plain torch in float32, relative to the scale of the result",
    "first, s": "first call in a new process, with compilation; not part of other numbers",
}
"""Columns of the large table, and what they mean where it does not go without saying."""

TEXTS = ("operation", "right", "served by", "others")
"""Columns that hold no numbers."""


def _table(found: Sequence[DeviceRow]) -> Iterator[str]:
    yield "\n## All operations\n"
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{'|'.join('---' if name in TEXTS else '--:' for name in HEADINGS)}|"
    yield from (f"| {' | '.join(_cells(row))} |" for row in found)
    yield ""
    yield from (f"- `{name}`: {meaning}" for name, meaning in HEADINGS.items() if meaning)


def _cells(row: DeviceRow) -> Iterator[str]:
    verdict = {"right": "yes", "wrong": "**no**", "not checked": MISSING}[row.verdict]
    served = {True: "kernel", False: "plain torch", None: MISSING}[row.value("structgrad", "kernel")]
    alone, there, memory = row.seconds("structgrad@1"), row.seconds("cpu@1"), row.value("structgrad", "memory")
    others = [f"{name} {number(row.ratio(name))}" for name in CONTENDERS if name not in COLUMNS and row.ratio(name) is not None]
    yield from (row.task.name, str(row.task.batch), verdict, served)
    yield from (milliseconds(row.seconds(step)) for step in ("structgrad", "graph"))
    yield percent(row.share)
    yield from (number(row.ratio(name)) for name in COLUMNS)
    yield ", ".join(others) or MISSING
    yield milliseconds(alone) + ("" if alone is None or there is None else f", CPU {number(there / alone)}")
    yield MISSING if memory is None else whole(memory / 2**20)
    yield MISSING if row.off is None else significant(row.off, 1)
    yield number(row.value("right", "first"))


def _said(found: Sequence[DeviceRow]) -> Iterator[str]:
    sentences = dict.fromkeys(sentence for row in found for sentence in row.said)
    if sentences:
        yield "\n## Warnings\n"
        yield from (f"- {sentence}" for sentence in sentences)


def _not_run(found: Sequence[DeviceRow]) -> Iterator[str]:
    failures = [(row, step, reason) for row in found for step, reason in row.failures.items()]
    if failures:
        yield "\n## Operations without a time\n"
        yield from (f"- {row.task.name}, {CONTENDERS.get(step, step)}: {reason}" for row, step, reason in failures)


def sentence(row: DeviceRow, step: str) -> str:
    """A line on the way: what is wrong, a time of ours, how a target stands; empty for what only the page tells."""
    if step in ("right", "structgrad", "graph") and row.wrong:
        return f"WRONG {row.task.name}: {'; '.join(row.wrong)}"
    if step == "structgrad":
        served = "kernel" if row.value(step, "kernel") else "plain torch"
        return f"{row.task.name}: {milliseconds(row.seconds(step))} ms for {row.task.batch}, {served}"
    if row.task.target is not None and step == row.task.target.contender:
        said = {True: "met", False: "MISSED", None: "not timed: " + str(row.value(step, "failure"))}[row.met]
        return f"{row.task.name}: {_against(row)}: {said}"
    return ""
