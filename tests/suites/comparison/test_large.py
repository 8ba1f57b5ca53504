"""Large runs, compared by columns: what is found row by row, pair by pair."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from structgrad.suites import processors
from structgrad.suites.base import Row
from structgrad.suites.comparison import Comparison, LargeComparison, compare, compare_large, gate, gate_tables, read_settings
from structgrad.suites.comparison.groups import grouped
from structgrad.suites.frames import to_frame
from structgrad.suites.running.parts.columns import schema
from tests.suites.comparison.rows import batch_means, exact, sampled

METRICS = {"relative_variance": 4.0, "relative_bias_squared": 1e-3, "null_bias": 0.3, "rho": 0.4, "truth_norm": 2.0, "peak_memory": 1e6}


def estimate(scale: float, draw: int, **about: Any) -> list[Row]:
    """The numbers of an estimator on an instance, of which some shrink with it."""
    rows = [sampled(size * scale * batch_means(draw, error=0.02), metric=name, **about) for name, size in METRICS.items()]
    rows += [sampled(scale * batch_means(draw + 1), metric="gain", **about), exact(0.0, metric="orthogonal_bias", **about)]
    claim = {"metric": "relative_bias", "unbiased": True, "objective": "expected", "verdict": "biased"}
    return [*rows, sampled(0.1 * scale * batch_means(draw + 2), p_value=1e-9 if scale > 1.5 else 0.5, **claim, **about)]


def run(scales: dict[str, float], seed: int = 0) -> list[Row]:
    """An estimator for every scale, on three instances of two problems."""
    found = []
    for problem in ("toy", "play"):
        for name, scale in scales.items():
            for place in range(3):
                about = {"problem": problem, "estimator": name, "instance": f"{problem}-{place}"}
                found += estimate(scale * (1 + place / 50), 10 * place + seed, seed=seed, **about)
    return found


SAME = run({"rloo": 1.0, "imle": 1.0, "ste": 0.5})
FAILURE = replace(SAME[0], metric="", value=None, batches=(), status="error", reason="it broke", tier="")
ODD = [
    *(replace(row, estimator="gone") for row in SAME[:9]),
    replace(SAME[1], value=None, batches=()),
    replace(SAME[3], batches=(math.inf, *SAME[3].batches[1:])),
    replace(SAME[5], low=None, high=None, batches=()),
]
TASK = ("c", "learning", "task:toy", "training", "", "categorical", "cross_entropy", "ste", "ste")
LEARNT = [Row(*TASK, instance=f"seed={seed}", metric="accuracy", value=0.5 + seed / 10) for seed in range(3)]

PAIRS = {
    "the same": (SAME, SAME),
    "other scales": (SAME, run({"rloo": 1.0, "imle": 1.3, "ste": 0.7})),
    "other random numbers": (SAME, run({"rloo": 1.0, "imle": 2.0, "ste": 0.5}, seed=1)),
    "missing and new": (SAME, run({"rloo": 1.0, "sfe": 1.0})),
    "a failure": (SAME, [FAILURE, *SAME[20:]]),
    "a failure mended": ([FAILURE, *SAME[20:]], SAME),
    "odd rows": ([*SAME, *LEARNT], [*SAME[9:], *ODD, *(replace(row, value=0.1) for row in LEARNT)]),
    "odd rows before": ([*SAME[9:], *ODD], SAME),
    "another version": (SAME, [replace(row, estimator_version=2) if row.estimator == "imle" else row for row in SAME]),
    "another dtype": (SAME, [replace(row, dtype="float32") for row in SAME]),
    "other scores": (SAME, [replace(row, seed=5, entropy=2.0) for row in SAME]),
    "twice": ([*SAME, *SAME[:5]], [*SAME[3:], *SAME[:3], *SAME[5:9]]),
    "nothing before": ([], SAME),
}


@dataclass(frozen=True)
class Tables:
    """Of both sides, of one problem."""

    both: tuple[pa.Table, pa.Table]

    def __call__(self) -> tuple[pa.Table, pa.Table]:
        return self.both


def tables(base: list[Row], head: list[Row]) -> list[Tables]:
    """Problem by problem."""
    problems = dict.fromkeys(row.problem for row in (*base, *head))
    return [Tables(tuple(table([row for row in rows if row.problem == name]) for rows in (base, head))) for name in problems]  # type: ignore[arg-type]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pandas(to_frame(rows), schema=schema(), preserve_index=False)


def told(item: Comparison) -> tuple[object, ...]:
    """What is said of a pair, numbers to what both ways agree in."""
    numbers = (item.change.value, item.change.low, item.change.high, item.p_value, item.p_adjusted)
    shown = tuple(None if number is None else f"{number:.8g}" for number in numbers)
    return item.key, item.verdict, item.scale, item.method, item.reason, item.rule, item.change.method, *shown


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of some rows need no processes."""
    monkeypatch.setattr(processors, "processors", lambda: 1)


@pytest.mark.parametrize("what", PAIRS)
@pytest.mark.parametrize("configuration", [{}, {"override": [{"estimator": "im*", "minimum_change": 0.5}]}])
def test_columns_say_what_rows_say(what: str, configuration: dict[str, Any]) -> None:
    base, head = PAIRS[what]
    machines, settings = ({"packages": {"torch": "1"}}, {"packages": {"torch": "2"}}), read_settings({"gate": configuration})
    small, large = compare(base, head, machines, settings), compare_large(tables(base, head), machines, settings)
    assert sorted(map(told, small)) == sorted(map(told, large))
    assert {told(large[place]) for place in range(len(large))} == set(map(told, small))
    assert large.counts() == {item.verdict: [one.verdict for one in small].count(item.verdict) for item in small}


@pytest.mark.parametrize("what", PAIRS)
def test_gates_agree(what: str) -> None:
    base, head = PAIRS[what]
    small, large = gate(base, head), gate_tables(tables(base, head))
    assert sorted(map(told, small.comparisons)) == sorted(map(told, large.comparisons))
    assert (small.outcome, small.number("fail"), small.number("warn"), small.checked) == (
        large.outcome,
        large.number("fail"),
        large.number("warn"),
        large.checked,
    )
    broken = [{claim.key: f"{claim.p_adjusted:.6g}" for claim in found.claims if claim.broken} for found in (small, large)]
    assert broken[0] == broken[1]
    assert (len(small.failures), len(small.warnings)) == (small.number("fail"), small.number("warn"))


def test_processes_side_by_side_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = {"gate": {"override": [{"estimator": "im*", "minimum_change": 0.5}, {"estimator": "none", "floor": 1.0}]}}
    base, head = SAME, [*run({"rloo": 1.0, "imle": 2.0, "ste": 0.7}), *LEARNT]
    found = []
    for count in (1, 2):
        monkeypatch.setattr(processors, "processors", lambda count=count: count)
        found.append(gate_tables(tables(base, head), settings=read_settings(configuration)))
    alone, both = found
    assert list(map(told, both.comparisons)) == list(map(told, alone.comparisons))
    assert (both.claims, both.checked, both.idle) == (alone.claims, alone.checked, alone.idle)
    assert len(both.idle) == 1
    assert alone.claims


def test_groups_are_those_of_rows_the_gravest_first() -> None:
    base, head = PAIRS["other scales"]
    large = compare_large(tables(base, head))
    found, count = large.groups(lambda verdict: verdict != "identical")
    small = {group.key: group for group in grouped(compare(base, head), lambda verdict: verdict != "identical")}
    assert count == len(found) == len(small)
    for group in found:
        other = small[group.key]
        assert (group.verdict, group.sharing, group.instances, group.scale) == (other.verdict, other.sharing, other.instances, other.scale)
        assert group.change.value == pytest.approx(other.change.value)
    few, same_count = large.groups(lambda verdict: verdict != "identical", 4)
    assert ([group.key for group in few], same_count) == ([group.key for group in found[:4]], count)


def test_what_is_selected_is_compared_no_more() -> None:
    large = compare_large(tables(*PAIRS["missing and new"]))
    chosen = large.selected(lambda key, verdict: key.estimator in ("rloo", "sfe") and verdict not in ("identical", "incomparable"))
    assert isinstance(chosen, LargeComparison)
    assert {item.key.estimator for item in chosen} == {"sfe"}
    assert len(chosen) == sum(chosen.counts().values()) == len(list(chosen)) == 54
