"""Rows of the report on a device: what is asked of an operation, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Literal

from .device import TOLERANCES
from .floor import MachineLimits, floor
from .isolation import Call
from .peers import PEERS
from .targets import DeviceTask

MEASURE = f"{__package__}.device:measure"
"""What a process is asked to call."""

LONG, SHORT = 120.0, 20.0
"""Seconds for a step: one that the report stands on, which may compile; another one."""

COMPILING = 90.0
"""Seconds for torch.compile and what it compiled."""

COMPILED = ("argmax", "log_partition", "marginals", "marginals_backward")
"""Operations that torch.compile may be asked for; the others ask the device in between, or draw."""

Key = tuple[str, str, int, str]
"""Case, operation, batch, step."""

Answers = Mapping[Key, Mapping[str, Any]]
"""Values by key; one with ``failure`` has no others."""


def key(task: DeviceTask, step: str) -> Key:
    """What an answer is found by."""
    return task.case.name, task.operation, task.batch, step


def call(task: DeviceTask, step: str, device: str) -> Call:
    """What a process is asked."""
    held = step in ("right", "warm", "structgrad") or (task.target is not None and step == task.target.contender)
    limit = COMPILING if step == "compiled" else LONG if held else SHORT
    given = {"step": step, "case": task.case.name, "operation": task.operation, "batch": task.batch, "device": device}
    return Call(MEASURE, given, limit)


def key_of(asked: Call) -> Key:
    """What the answer of a call is found by."""
    given = asked.arguments
    return given["case"], given["operation"], given["batch"], given["step"]


def steps(task: DeviceTask, *, cuda: bool) -> list[str]:
    """What is timed, the most telling first."""
    tree, best = task.case.structure == "spanning_tree", (task.case.structure, task.operation) == ("assignment", "argmax")
    found = ["structgrad", *([] if task.target is None else [task.target.contender])]
    found += ["structgrad@1", *(["graph"] if cuda else []), *(["cpu", "cpu@1"] if cuda and compiles_for_the_cpu() else [])]
    found += ["lu64"] if tree and task.operation in ("log_partition", "marginals") else []
    found += ["scipy"] if best else []
    found += ["popping"] if tree and task.draws and cuda else []
    found += ["torch-struct"] if any(peer.name == "torch-struct" and peer.installed for peer in PEERS) else []
    return list(dict.fromkeys([*found, "torch"]))


def compiles_for_the_cpu() -> bool:
    """Whether our kernels run on the CPU."""
    return find_spec("numba") is not None


def by_case(tasks: Iterable[DeviceTask]) -> Iterator[list[DeviceTask]]:
    """Those of a case together, in their order."""
    for _, found in groupby(tasks, key=lambda task: task.case.name):
        yield list(found)


@dataclass(frozen=True)
class DeviceRow:
    """One operation at one size.

    Attributes:
        task: what was measured.
        answers: values by step; see `structgrad.suites.speed.device`.
        machine: what the device does at best.
    """

    task: DeviceTask
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: MachineLimits | None = None

    def value(self, step: str, name: str) -> Any:
        """What a step found; None where there is nothing."""
        return self.answers.get(step, {}).get(name)

    def seconds(self, step: str) -> float | None:
        """Of one call; None where it was not timed."""
        found: float | None = self.value(step, "seconds")
        return found

    def ratio(self, contender: str) -> float | None:
        """How many times longer a contender takes than we do, timed in turns with it; None where it was not timed."""
        theirs, ours = self.seconds(contender), self.value(contender, "ours")
        return None if theirs is None or not ours else theirs / ours

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or where its contender was not timed."""
        ratio = None if self.task.target is None else self.ratio(self.task.target.contender)
        return None if ratio is None or self.task.target is None else ratio >= self.task.target.factor

    @property
    def share(self) -> float | None:
        """How much of a call the bytes or the arithmetic take at least."""
        ours = self.seconds("structgrad")
        if ours is None or self.machine is None:
            return None
        return floor(self.task.case, self.task.operation, self.task.batch, self.machine) / ours

    @property
    def off(self) -> float | None:
        """The largest difference from plain torch in float32, at the size of the case."""
        found: float | None = (self.value("right", "off") or {}).get("float32")
        return found

    @property
    def verdict(self) -> Literal["right", "wrong", "not checked"]:
        """Whether the results are right, as far as was looked."""
        if self.wrong:
            return "wrong"
        return "right" if "right" in self.answers else "not checked"

    @property
    def wrong(self) -> list[str]:
        """What is wrong with it, in words."""
        return [*self._failed(), *self._differs(), *self._at_the_batch()]

    @property
    def failures(self) -> dict[str, str]:
        """Why there is no time of a contender, by its name; what makes ours wrong is not among them."""
        named = {step: answer["failure"] for step, answer in self.answers.items() if "failure" in answer}
        return {step: reason for step, reason in named.items() if step not in ("right", "structgrad")}

    @property
    def said(self) -> list[str]:
        """What the package warned of."""
        return [sentence for answer in self.answers.values() for sentence in answer.get("said", ())]

    def _failed(self) -> Iterator[str]:
        for step, what in (("right", "was to be compared"), ("structgrad", "was to be timed")):
            if reason := self.value(step, "failure"):
                yield f"did not run where it {what}: {reason}"

    def _differs(self) -> Iterator[str]:
        for where, off in (self.value("right", "off") or {}).items():
            if off is None:
                yield f"{where}: not a number"
            elif off > TOLERANCES[where.removeprefix("small ")]:
                yield f"{where}: {off:.1e} off"

    def _at_the_batch(self) -> Iterator[str]:
        if self.value("structgrad", "repeats") is False:
            yield "the same input gave other bits"
        if self.value("structgrad", "finite") is False:
            yield f"not finite in a batch of {self.task.batch}"
        if "alone" in self.answers.get("structgrad", {}):
            alone = self.value("structgrad", "alone")
            if alone is None or alone > TOLERANCES["float32"]:
                yield f"rows in a batch of {self.task.batch} are not what they are alone"
        if self.value("graph", "same") is False:
            yield "its CUDA graph gives other numbers"


def rows(tasks: Sequence[DeviceTask], answers: Answers, machine: MachineLimits | None) -> list[DeviceRow]:
    """A row for every task, of what is there."""
    found: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    for (case, operation, batch, step), value in answers.items():
        found.setdefault((case, operation, batch), {})[step] = value
    return [DeviceRow(task, found.get(key(task, "")[:3], {}), machine) for task in tasks]
