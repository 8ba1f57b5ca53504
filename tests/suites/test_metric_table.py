"""Every metric has one record, every record is measured, and nothing else holds a table of metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import structgrad
from structgrad.suites.metrics import METRICS, Rule, rule_of, unit_of
from structgrad.suites.statistics.adaptive import WIDTHS
from structgrad.suites.statistics.metrics import COMPARED, LINEAR, SAMPLES, UNDIRECTED

PACKAGE = Path(structgrad.__file__).parent
TABLE = PACKAGE / "suites" / "metrics.py"
MEASURING = ("suites/measures", "suites/statistics", "suites/running", "suites/tasks", "suites/learning")
PUBLISHED = {("reports/page/learning_page.py", "FORETOLD")}
"""Results that are quoted, which are no facts about metrics."""


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            if file != TABLE and "simulations" not in file.parts:
                yield str(file.relative_to(PACKAGE)), ast.parse(file.read_text())


def words(tree: ast.Module) -> Iterator[str]:
    """Texts in code, with the number of averaged estimates filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else str(SAMPLES) for part in node.values)


def emitted(tree: ast.Module) -> Iterator[str]:
    """The metrics that are written out where a finding is made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            given = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "metric")]
            yield from (argument.value for argument in given if isinstance(argument, ast.Constant))


def tables(tree: ast.Module) -> Iterator[tuple[str, ast.Dict]]:
    """The dictionaries of constants at the top of a file."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield ast.unparse(target), node.value


def test_every_record_is_measured() -> None:
    said = {word for _, tree in sources(*MEASURING) for word in words(tree)}
    assert set(METRICS) <= said, sorted(set(METRICS) - said)


def test_every_finding_has_a_record() -> None:
    found = {name for _, tree in sources(*MEASURING) for name in emitted(tree)}
    assert len(found) > 10
    assert found <= set(METRICS), sorted(found - set(METRICS))


def test_nothing_else_is_a_table_of_metrics() -> None:
    kept = []
    for file, tree in sources("suites", "reports"):
        for name, table in tables(tree):
            about = [key.value for key in table.keys if isinstance(key, ast.Constant) and key.value in METRICS]
            # From metrics to functions of them, or to other metrics, is no table of facts.
            free = (ast.Lambda, ast.Name, ast.Attribute)
            names = all(isinstance(value, ast.Constant) and value.value in METRICS for value in table.values)
            if len(about) > 1 and not names and not any(isinstance(value, free) for value in table.values):
                kept.append((file, name))
    assert set(kept) == PUBLISHED


@pytest.mark.parametrize("name", METRICS)
def test_a_record_is_whole(name: str) -> None:
    metric = METRICS[name]
    assert metric.meaning
    assert not metric.meaning.endswith(".")
    assert (rule_of(name), unit_of(name), str(metric)) == (metric.rule, metric.unit, metric.meaning)
    assert metric.unit == unit_of(f"my_{name}") or metric.unit in ("B", "count") or name.startswith("seconds_")
    assert metric.sign == (-1 if metric.rule.role == "lower" else 1)


def test_what_is_no_built_in_metric_is_shown_as_less_is_better() -> None:
    assert (rule_of("my_error"), unit_of("my_error"), unit_of("my_time")) == (Rule("lower"), "1", "s")


def test_kinds() -> None:
    assert set(UNDIRECTED) == {"snr", "kurtosis", "zero_gradient_rate", "gradient_nonzeros"}
    assert set(LINEAR) == {"gain", "mean_cosine", "gradient_nonzeros"}
    assert set(COMPARED) == {"gain", "relative_bias_squared", "relative_variance", "relative_mse"}
    assert set(WIDTHS) == {"relative_bias", "relative_variance", "gain", "cosine", "snr", "rho"}
    assert (WIDTHS["rho"].relative, WIDTHS["rho"].absolute) == (0.025, 0.005)
