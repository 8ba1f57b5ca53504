"""Workflows are YAML with the steps of the project's own scripts; users copy the same text."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.base import SCHEMA_VERSION

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "reports/verbs/templates/workflow.yml"
WORKFLOWS = [*sorted((ROOT / ".github/workflows").glob("*.yml")), TEMPLATE]
WRITING = {"reports/verbs/templates/workflow.yml": {"comment": {"pull-requests": "write"}}}
"""Jobs whose token may write, and what."""

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(path: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads its key ``on`` as true."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> list[str]:
    return [line.strip() for step in steps(path) for line in step.get("run", "").splitlines()]


@workflows
def test_a_workflow_has_what_every_workflow_needs(path: Path) -> None:
    found = read(path)
    assert set(found) == {"name", "on", "permissions", "concurrency", "env", "jobs"}
    for name, job in found["jobs"].items():
        assert job["timeout-minutes"] > 0, name
        assert set(needed(job)) <= set(found["jobs"]), name
    for step in steps(path):
        assert len({"run", "uses"} & set(step)) == 1
        assert "uses" not in step or re.fullmatch(r"actions/[\w/-]+@v\d+", step["uses"])


def needed(job: dict[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


@workflows
def test_tokens_may_do_as_little_as_possible(path: Path) -> None:
    found, writing = read(path), WRITING.get(str(path.relative_to(ROOT)), {})
    assert found["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in found["jobs"].items() if "permissions" in job} == writing
    for name, job in found["jobs"].items():
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)
        assert not (checkouts and name in writing), "code of a pull request must not run with a token that may write"


@workflows
def test_what_strangers_write_is_in_no_command(path: Path) -> None:
    """Titles and names of branches can hold shell code; expressions belong into `env` or `if`."""
    assert not [line for line in commands(path) if "${{" in line]


@workflows
def test_commands_are_bash(path: Path) -> None:
    for step in steps(path):
        if "run" in step:
            checked = subprocess.run(["bash", "-n", "-c", step["run"]], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr


@workflows
def test_numbers_are_measured_on_one_thread(path: Path) -> None:
    variables = read(path)["env"]
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "1"


def test_continuous_integration_runs_the_checks_of_the_project() -> None:
    """Every step of `.ci/check` is in some job; tests and benchmarks are jobs of their own."""
    path = ROOT / ".github/workflows/ci.yml"
    (known,) = re.findall(r"^steps=\((.*)\)$", (ROOT / ".ci/check").read_text(), re.MULTILINE)
    named = {step for line in commands(path) if line.startswith(".ci/check ") for step in line.split()[1:]}
    assert set(known.split()) - {"tests", "asv"} <= named
    assert named - set(known.split()) <= {"gate"}
    assert {"asv check --python=same", "asv run --quick --python=same --show-stderr"} <= set(commands(path))
    setup = (ROOT / ".ci/run").read_text().split("python3 -m venv .venv && ", 1)[1].split(" && ")[0]
    installs = [line for line in commands(path) if ".[dev]" in line]
    assert installs
    assert all(line.endswith(setup) for line in installs)


def test_every_supported_python_is_tested() -> None:
    tested = read(ROOT / ".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tested == classifiers


def test_the_whole_product_and_the_ends_of_the_versions_are_tested_every_night() -> None:
    path = ROOT / ".github/workflows/nightly.yml"
    found, project = read(path), (ROOT / "pyproject.toml").read_text()
    assert "schedule" in found["on"]
    assert ".venv/bin/pytest -m sweep" in commands(path)
    assert found["jobs"]["sweep"]["timeout-minutes"] == 90
    (oldest,) = re.findall(r'"torch>=(.+)"', project)
    (pinned,) = re.findall(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    versions = found["jobs"]["versions"]["strategy"]["matrix"]["include"]
    assert [version["torch"] for version in versions] == [f"torch=={oldest}.*", "torch", pinned]
    assert [version["processor"] for version in versions] == ["any", "any", "avx2"]


def test_what_needs_a_gpu_runs_by_hand_or_where_it_was_asked_for() -> None:
    found = read(ROOT / ".github/workflows/gpu.yml")
    assert set(found["on"]) == {"workflow_dispatch", "schedule"}
    assert found["jobs"]["tests"]["if"] == "github.event_name == 'workflow_dispatch' || vars.STRUCTGRAD_NIGHTLY == 'true'"
    assert "tests" in needed(found["jobs"]["benchmarks"])
    assert ".venv/bin/pytest -m gpu" in commands(ROOT / ".github/workflows/gpu.yml")


def test_no_time_stops_a_merge_on_a_shared_machine() -> None:
    runs = [line for path in WORKFLOWS for line in commands(path) if "structgrad run" in line]
    assert len(runs) == 2
    assert all("--no-timing" in line for line in runs)


def test_the_page_shows_the_workflow_that_users_get() -> None:
    (quoted,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/how-to/ci.md").read_text(), re.MULTILINE | re.DOTALL)
    assert quoted == TEMPLATE.read_text().replace("STRUCTGRAD", "structgrad@git+https://HOST/OWNER/structgrad@COMMIT")


def test_the_key_of_a_baseline_can_be_computed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"<<'EOF'\n(.*?)\nEOF", next(step["run"] for step in steps(TEMPLATE) if step.get("id") == "key"), re.DOTALL)
    exec(script, {})
    assert re.fullmatch(rf"baseline=structgrad-{SCHEMA_VERSION}-torch-\d+\.\d+\S*\n", capsys.readouterr().out)
