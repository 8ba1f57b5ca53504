"""The whole grid of comparisons: each case in a process of its own under a limit of memory, kept row by row, taken up where it ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .cases import Case, operations
from .comparison import SpeedComparison, compare_named
from .floor import MachineLimits, floor
from .isolation import Call, IsolatedAnswer, IsolatedWorker
from .peers import PEERS
from .ways import WAYS

Ask = Callable[[list[str]], IsolatedAnswer]
"""Times ours beside the peers of these names."""


@dataclass(frozen=True)
class SpeedGrid:
    """What is timed: every operation of every case at every batch size, in every way.

    Attributes:
        cases: structures at their sizes.
        batches: sizes of batches.
        ways: some of `structgrad.suites.speed.ways.WAYS`.
        operations: some of `structgrad.suites.speed.cases.OPERATIONS`, all for None.
        memory: bytes that the process of a case may have for itself.
        limit: seconds that one operation at one batch size may take with all its peers.
    """

    cases: Sequence[Case]
    batches: Sequence[int]
    ways: Sequence[str] = WAYS
    operations: Sequence[str] | None = None
    memory: float = 8 * 2.0**30
    limit: float = 600.0

    def compare(self, machine: MachineLimits, known: Sequence[SpeedComparison] = ()) -> Iterator[SpeedComparison]:
        """The results, one after the other; those that are known from a run before are given back and not found again."""
        before = {(result.case, result.operation, result.batch, result.way): result for result in known}
        for batch in self.batches:
            for case in self.cases:
                with closing(CaseProcess(case, self.memory, self.limit)) as process:
                    for operation in operations(case):
                        if self.operations is None or operation in self.operations:
                            places = {way: (case.name, operation, batch, way) for way in self.ways}
                            left = [way for way, place in places.items() if place not in before]
                            found = process.compare(operation, batch, left, machine) if left else {}
                            yield from (found[way] if way in found else before[place] for way, place in places.items())


class CaseProcess:
    """A process that times one case, and a new one after every failure."""

    def __init__(self, case: Case, memory: float, limit: float) -> None:
        self.case, self.memory, self.limit = case, memory, limit
        self._worker: IsolatedWorker | None = None

    def compare(self, operation: str, batch: int, ways: Sequence[str], machine: MachineLimits) -> dict[str, SpeedComparison]:
        """One operation at one batch size beside every peer that is installed, by way."""
        row = {"case": self.case.name, "operation": operation, "batch": batch, "ways": list(ways)}
        values, failures = beside_survivors(lambda peers: self._ask(row, peers), [peer.name for peer in PEERS if peer.installed])
        least, results = floor(self.case, operation, batch, machine), {}
        for way in ways:
            one: dict[str, Any] = values.get(way) or {"seconds": {}, "disagreements": {}, "failures": {}}
            missing = one["failures"] | failures
            results[way] = SpeedComparison(self.case.name, operation, batch, way, one["seconds"], least, one["disagreements"], missing)
        return results

    def _ask(self, row: dict[str, Any], peers: list[str]) -> IsolatedAnswer:
        self._worker = self._worker or IsolatedWorker()
        arguments = {"row": row, "peers": peers, "memory": self.memory}
        found = self._worker.ask(Call(f"{compare_named.__module__}:{compare_named.__name__}", arguments, self.limit))
        assert found is not None  # without a deadline there is always an answer
        if found.failure:
            self.close()
        return found

    def close(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def beside_survivors(ask: Ask, peers: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Ours beside all peers; where the process ends, ours beside each peer, then beside those that live, if they are not too much together.

    Returns:
        What was timed, empty where ours fails alone; and why contenders are missing.
    """
    found, failures = ask(list(peers)), {}
    if found.failure:
        alone = {peer: ask([peer]) for peer in peers}
        failures = {peer: answer.failure for peer, answer in alone.items() if answer.failure}
        living = [peer for peer in peers if peer not in failures]
        found = ask(living)
        if found.failure and living:
            found = IsolatedAnswer(_side_by_side([alone[peer].value for peer in living]))
    if found.failure:
        return {}, {"structgrad": found.failure}
    return found.value, failures


def _side_by_side(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer of several, by way: all contenders, and the median of ours, which is in each."""
    merged = {}
    for way in answers[0]:
        ours = [answer[way]["seconds"]["structgrad"] for answer in answers]
        told = {key: {name: value for answer in answers for name, value in answer[way][key].items()} for key in answers[0][way]}
        merged[way] = told | {"seconds": told["seconds"] | {"structgrad": statistics.median(ours)}}
    return merged


def to_frame(results: Sequence[SpeedComparison]) -> pd.DataFrame:
    """A row per contender: its seconds, NaN with the reason where it failed."""
    return pd.DataFrame(
        {
            "case": result.case,
            "operation": result.operation,
            "batch": result.batch,
            "way": result.way,
            "contender": name,
            "seconds": result.seconds.get(name, math.nan),
            "floor": result.floor,
            "difference": result.disagreements.get(name, 0.0),
            "failure": result.failures.get(name, ""),
        }
        for result in results
        for name in (*result.seconds, *result.failures)
    )


def read_results(path: Path) -> list[SpeedComparison]:
    """What `to_frame` says, from a CSV file; nothing where there is none."""
    if not path.exists():
        return []
    frame = pd.read_csv(path, keep_default_na=False)
    results = []
    for (case, operation, batch, way), rows in frame.groupby(["case", "operation", "batch", "way"], sort=False):
        timed, failed = rows[rows.failure == ""], rows[rows.failure != ""]
        differing = timed[timed.difference > 0]
        results.append(
            SpeedComparison(
                str(case),
                str(operation),
                int(str(batch)),
                str(way),
                {name: float(value) for name, value in zip(timed.contender, timed.seconds, strict=True)},
                float(rows.floor.iloc[0]),
                dict(zip(differing.contender, differing.difference.astype(float), strict=True)),
                dict(zip(failed.contender, failed.failure, strict=True)),
            )
        )
    return results
