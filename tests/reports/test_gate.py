"""The verbs compare, gate and baseline on tables made by hand, and the gate of this repository on itself."""

import dataclasses
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import Categorical
from structgrad.reports import results
from structgrad.reports.analysis.loading import Loaded, load
from structgrad.suites.base import SCHEMA_VERSION, Row
from structgrad.suites.comparison import GateResult, gate
from structgrad.suites.comparison.settings import load_settings
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.reports import calling, examples
from tests.reports.calling import refused
from tests.suites.comparison.rows import Change, failing

MACHINE = {"cpu": "x", "cores": 2, "python": "3.11", "packages": {"torch": "2.8"}}


def rows(**changes: dict[str, Any]) -> list[Row]:
    """The example, all of it exact and without failures, with changes of single metrics of one estimator."""
    kept = [row for row in examples.rows() if row.status == "ok" and row.suite != "wall_clock" and row.estimator != "rloo[num_samples=2]"]
    exact = [replace(row, tier="exact", low=None, high=None, replicates=None, p_value=None) for row in kept]
    exact = [replace(row, verdict="unbiased-exact", value=0.0) if row.metric == "relative_bias" and row.unbiased else row for row in exact]
    return [replace(row, **changes.get(row.metric, {})) if row.estimator == "imle[lambda=2.5]" else row for row in exact]


def written(folder: Path, found: list[Row], **manifest: Any) -> str:
    results.write(found, folder, {"seed": 7, "environment": MACHINE, "command": "structgrad run", **manifest})
    return str(folder)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return written(tmp_path / "base", rows())


def call(*words: str, code: int = 0) -> Result:
    result = calling.call(*words)
    assert result.exit_code == code, result.output
    return result


WORSE = {"relative_variance": {"value": 0.5}}


def test_a_baseline_of_another_schema_is_5_and_a_run_of_one_is_bad_input(base: str, tmp_path: Path) -> None:
    file = Path(base) / results.TABLE
    table = pq.read_table(file)
    old = tmp_path / "old.parquet"
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"structgrad_schema_version": b"1"}), old)
    message = f"has the schema version 1, this structgrad reads {SCHEMA_VERSION}; measure it again"
    assert message in refused("gate", base, "--baseline", str(old), code=5)
    assert message in refused("gate", str(old), "--baseline", base)


# Baselines.


def save(name: str, folder: str, tmp_path: Path, *more: str, code: int = 0) -> Result:
    return call("baseline", "save", name, folder, "--dir", str(tmp_path / "store"), *more, code=code)


def test_a_baseline_is_one_file_of_gated_metrics_that_commands_take_by_its_name(base: str, tmp_path: Path) -> None:
    save("main", base, tmp_path)
    store = str(tmp_path / "store")
    (file,) = (tmp_path / "store").iterdir()
    assert file.name == "main.parquet"
    call("gate", base, "--baseline", "main", "--dir", store)
    call("gate", written(tmp_path / "head", rows(**WORSE)), "--baseline", "main", "--dir", store, code=1)
    assert "nothing changed" in call("compare", "main", base, "--dir", store).stdout
    assert "did you mean main?" in refused("gate", base, "--baseline", "mian", "--dir", store)
    frame, manifest = results.read(file)
    assert "rho" not in set(frame["metric"])
    assert {"relative_bias", "relative_variance", "support"} <= set(frame["metric"])
    assert (manifest["seed"], manifest["environment"], manifest["baseline"]["name"]) == (7, MACHINE, "main")
    shown = json.loads(call("baseline", "show", "main", "--dir", store, "--json").stdout)
    assert (shown["seed"], shown["cpu"], shown["rows"]) == (7, "x", len(frame))
    assert "seed: 7" in call("baseline", "show", "main", "--dir", store).stdout


def test_a_baseline_is_replaced_on_purpose_and_a_worse_one_with_a_reason(base: str, tmp_path: Path) -> None:
    save("main", base, tmp_path)
    file = tmp_path / "store" / "main.parquet"
    before = file.read_bytes()
    assert "baseline 'main' already exists" in save("main", base, tmp_path, code=2).stderr
    worse = written(tmp_path / "head", rows(**WORSE))
    said = save("main", worse, tmp_path, "--replace", code=1).stderr
    assert "fails: ✗ imle[lambda=2.5]" in said
    assert "baseline main is not saved, because the gate fails" in said
    assert "empty reason" in save("main", worse, tmp_path, "--replace", "--force", " ", code=2).stderr
    assert file.read_bytes() == before
    save("main", base, tmp_path, "--replace")
    save("main", worse, tmp_path, "--replace", "--force", "the old loss was wrong")
    assert "reason: the old loss was wrong" in call("baseline", "show", "main", "--dir", str(file.parent)).stdout
    call("gate", worse, "--baseline", "main", "--dir", str(file.parent))


def test_a_broken_claim_refuses_the_first_baseline_too(tmp_path: Path) -> None:
    broken = {"value": 0.02, "verdict": "biased"}
    found = [replace(row, **broken) if (row.estimator, row.metric) == ("reinforce", "relative_bias") else row for row in rows()]
    assert "claims to be unbiased, and is biased" in save("main", written(tmp_path / "head", found), tmp_path, code=1).stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["../evil", ""])
def test_the_name_of_a_baseline_is_a_plain_word(name: str, base: str, tmp_path: Path) -> None:
    assert "expected letters, digits" in save(name, base, tmp_path, code=2).stderr
    assert "expected letters, digits" in call("baseline", "show", name, "--dir", str(tmp_path), code=2).stderr


FOLDER = Path(__file__).parents[2] / ".ci"
RENEW = "python .ci/measure.py /tmp/own && structgrad baseline save baseline /tmp/own --dir .ci --replace"
NAMES = ("rloo", "ste", "arsm", "sparsemap_marginalisation")


@pytest.fixture(scope="module")
def own_baseline() -> Loaded:
    return load(str(FOLDER / "baseline.parquet"))


def test_every_estimator_has_bias_variance_and_sparsity_in_the_baseline(own_baseline: Loaded) -> None:
    for metric in ("relative_bias", "gain", "relative_variance", "support", "gradient_nonzeros"):
        found = set(own_baseline.frame.loc[own_baseline.frame["metric"].eq(metric) & own_baseline.frame["status"].eq("ok"), "family"])
        assert found == set(ESTIMATORS), f"{metric}: renew the baseline with {RENEW}"


def test_the_baseline_is_small_and_free_of_broken_claims(own_baseline: Loaded) -> None:
    assert (FOLDER / "baseline.parquet").stat().st_size < 1_000_000
    assert gate(own_baseline.frame, own_baseline.frame, settings=load_settings(FOLDER / "gate.toml")).outcome == "passed"


def measured(folder: Path) -> list[Row]:
    """A few estimators on the first problem, exactly as `.ci/measure.py` does it."""
    spec = importlib.util.spec_from_file_location("measure", FOLDER / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plan = dataclasses.replace(module.SMALL, problems=("categorical_regimes",), estimators=NAMES)
    return run(plan, folder, machine=Machine(jobs=0))


def judged(own_baseline: Loaded, rows: list[Row]) -> GateResult:
    frame = own_baseline.frame
    part = frame[frame["estimator"].isin(NAMES) & frame["problem"].eq("categorical_regimes")]
    return gate(part, rows, (own_baseline.machine, own_baseline.machine), load_settings(FOLDER / "gate.toml"))


def test_the_code_still_gives_the_numbers_of_the_baseline(own_baseline: Loaded, tmp_path: Path) -> None:
    result = judged(own_baseline, measured(tmp_path))
    assert failing(result) == set(), f"if the numbers were meant to change: {RENEW}"
    assert result.outcome == "passed"


def test_an_injected_change_fails(own_baseline: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"rloo": Change(scale=0.98), "ste": Change(scale=0.98), "arsm": Change(spread=1.2)}
    for name, change in changes.items():
        monkeypatch.setitem(ESTIMATORS, name, lambda kind=ESTIMATORS[name], change=change: change.planted(kind(), Categorical()))
    result = judged(own_baseline, measured(tmp_path))
    assert result.outcome == "failed"
    assert {estimator for estimator, _ in failing(result)} == changes.keys()
