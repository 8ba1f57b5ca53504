"""Every metric has one record, every record is measured, and a measurement shows them."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import structgrad
from structgrad.estimators import make_estimator
from structgrad.oracles import Subset
from structgrad.suites import measure
from structgrad.suites.base import COLUMNS
from structgrad.suites.measures.learning import METRIC
from structgrad.suites.measures.suite import FRAME_COLUMNS, Measurement
from structgrad.suites.metrics import METRICS, rule_of, unit_of
from structgrad.suites.statistics.metrics import SAMPLES

PACKAGE = Path(structgrad.suites.__file__).parents[1]
TABLE = PACKAGE / "suites" / "metrics.py"
MEASURING = ("suites/measures", "suites/statistics", "suites/running", "suites/tasks")


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


def test_every_record_is_measured() -> None:
    said = {word for _, tree in sources(*MEASURING) for word in words(tree)} | set(METRIC.values())
    assert set(METRICS) <= said, sorted(set(METRICS) - said)


def test_every_finding_has_a_record() -> None:
    found = {name for _, tree in sources(*MEASURING) for name in emitted(tree)}
    assert len(found) > 10
    assert found <= set(METRICS), sorted(found - set(METRICS))


@pytest.mark.parametrize("name", METRICS)
def test_a_record_is_whole(name: str) -> None:
    metric = METRICS[name]
    assert metric.meaning
    assert not metric.meaning.endswith(".")
    assert (rule_of(name), unit_of(name), str(metric)) == (metric.rule, metric.unit, metric.meaning)
    assert metric.unit == unit_of(f"my_{name}") or metric.unit in ("B", "count") or name.startswith("seconds_")
    assert metric.sign == (-1 if metric.rule.role == "lower" else 1)


@pytest.fixture(scope="module")
def found() -> Measurement:
    scores = torch.tensor([1.0, 0.5, -0.5, 0.0, 2.0], dtype=torch.float64)

    def product(z: torch.Tensor) -> torch.Tensor:
        return z[..., 0] * z[..., 1] * 2 + z[..., 2]

    return measure(make_estimator("rloo[num_samples=3]"), Subset(2), product, scores)


def test_a_measurement_names_what_was_measured(found: Measurement) -> None:
    text = found._repr_html_()
    for word in ("rloo[num_samples=3]", "subset[k=2]", "product", "n = 5", "10 structures", "unbiased-exact", "relative MSE"):
        assert word in text
    assert repr(found).startswith("<Measurement of rloo[num_samples=3] on subset[k=2]: relative bias 0, ")
    assert len(repr(found)) < 200


def test_the_frame_of_a_measurement(found: Measurement) -> None:
    frame = found.frame
    assert list(frame.columns) == list(FRAME_COLUMNS)
    assert dict(frame.dtypes.astype(str)) == {name: COLUMNS[name] for name in FRAME_COLUMNS}
    assert frame["metric"].tolist() == list(found.metrics)
    one = frame.set_index("metric").loc["gradient_nonzeros"]
    assert (one["unit"], one["estimator"], one["reference"]) == ("count", "rloo[num_samples=3]", "")
    assert one["value"] == found.metrics["gradient_nonzeros"].value
    assert one["log_count"] == pytest.approx(math.log(10))
    assert frame["low"].isna().all()
