import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from structgrad.oracles import Constituency, Subset, kernels, make_oracle, plugins
from structgrad.reports.verbs import doctor, init
from structgrad.reports.verbs.describe import facts
from structgrad.suites.measures.bias import measure
from structgrad.suites.problems import load
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.check import check_task
from tests.reports.calling import call, refused


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "my-project"\n')
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plugins.use(())


def test_a_first_project_is_written_and_never_overwritten(project: Path) -> None:
    written = [f"written: {name}" for name in ("structgrad.toml", "gate.toml", "my_estimator.py")]
    assert call("init").stdout.splitlines() == [*written, "next: structgrad run --config structgrad.toml"]
    (project / "gate.toml").write_text("mine")
    again = call("init", ".", "--asv", "--gha")
    assert "kept (already exists; --force replaces it): gate.toml" in again.stdout
    assert "written: .github/workflows/structgrad.yml" in again.stdout
    commands = 'git init -b main && git add . && git commit -m "measure estimators" && git push && asv machine --yes && asv run HEAD^!'
    assert again.stdout.splitlines()[-1] == f"next: {commands}"
    assert (project / "gate.toml").read_text() == "mine"
    assert call("init", "--force").exit_code == 0
    assert (project / "gate.toml").read_text() != "mine"


def test_its_estimator_is_right_and_its_options_plan_a_run_that_measures_it(project: Path) -> None:
    call("init")
    kind = plugins.file_module("my_estimator.py").MyEstimator
    problem = load("subset[n=5,k=2]", "h=0.5", instances=1, data=None)
    found = measure(kind(), Subset(2), problem.instances[0].loss, problem.instances[0].scores)
    assert found.verdict == "unbiased-exact"
    with pytest.raises(ValueError, match=r"`my_estimator` got num_samples=1; expected an integer >= 2"):
        kind(num_samples=1)
    planned = json.loads(call("run", "--config", "structgrad.toml", "--dry-run", "--json").stdout)
    assert planned["estimators"] == ["exact", "reinforce", "rloo", "my_estimator"]
    assert "--plugin my_estimator.py" in planned["command"]


def test_a_task_is_written_that_runs_as_written(project: Path) -> None:
    shown = call("init", "--task").stdout.splitlines()
    assert shown == ["written: my_task.py", "next: structgrad learn ./my_task.py:task --quick"]
    assert len((project / "my_task.py").read_text().splitlines()) <= 32
    assert check_task(make_task("./my_task.py:task"), trained=False) == []
    assert facts("./my_task.py:task")[0]["items"] == {"train": 1800, "validation": 600, "test": 600}
    assert "`init` got both --task and --gha; give one of them" in refused("init", "--task", "--gha")


def test_a_structure_is_written_that_runs_as_written(project: Path) -> None:
    shown = call("init", "--oracle").stdout.splitlines()
    assert shown == ["written: my_structure.py", "next: structgrad audit --oracle ./my_structure.py:Spread"]
    oracle = make_oracle("./my_structure.py:Spread[k=2]")
    listed = {tuple(z.tolist()) for z in oracle.structures((6,))}
    assert {tuple(z.tolist()) for z in oracle.enumerate((6,))} == listed
    assert oracle.count((6,)) == len(listed) == 17
    scores = torch.tensor([[1.0, 1.5, 1.0, 9.0], [1.0, 1.5, 1.0, -1.0]])
    assert oracle.argmax(scores, lengths=torch.tensor([3, 4])).tolist() == [[1, 0, 1, 0], [1, 0, 1, 0]]
    problem = load("./my_structure.py:Spread[n=6,k=2]", "h=0.7", instances=1, data=None)
    assert problem.instances[0].scores.shape == (6,)
    found = facts("./my_structure.py:Spread[n=6,k=2]")[0]
    assert found["at"] == {"problem": "./my_structure.py:Spread[n=6,k=2]", "event_shape": [6], "structures": 17}
    text = Path("my_structure.py").read_text().replace('("length",)', '("items",)')
    Path("renamed.py").write_text(text)
    assert load("./renamed.py:Spread[items=5,k=1]", "h=0.7", instances=1, data=None).instances[0].scores.shape == (5,)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({"url": "https://host/owner/structgrad.git", "vcs_info": {"commit_id": "abc"}}, "@git+https://host/owner/structgrad.git@abc"),
        ({"url": "FOLDER", "dir_info": {"editable": True}}, "@git+https://host/owner/structgrad.git@COMMIT"),
        ({"url": "file:///nowhere", "dir_info": {}}, "==VERSION"),
        (None, "==VERSION"),
    ],
)
def test_other_machines_install_what_is_installed_here(
    origin: dict[str, object] | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    for words in (("init", "-q", str(clone)), ("-C", str(clone), "remote", "add", "origin", "git@host:owner/structgrad.git")):
        subprocess.run(["git", *words], check=True)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(["git", "-C", str(clone), *commit], check=True)
    head = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    text = None if origin is None else json.dumps(origin).replace("FOLDER", clone.as_uri())
    monkeypatch.setattr(
        init.metadata.PathDistribution, "read_text", lambda _self, name: text if name == "direct_url.json" else "Version: 0.1.0"
    )
    assert init.requirement() == "structgrad" + expected.replace("COMMIT", head).replace("VERSION", "0.1.0")


def test_files_that_install_the_project_make_one_of_a_bare_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "My project!"
    shown = call("init", str(folder), "--gha").stdout
    assert 'name = "My-project"' in (folder / "pyproject.toml").read_text()
    assert f'pip install "{init.requirement()}" .' in (folder / ".github/workflows/structgrad.yml").read_text()
    assert ("note: pip must find structgrad==" in shown) == ("==" in init.requirement())
    (folder / "pyproject.toml").write_text("mine")
    call("init", str(folder), "--gha", "--asv", "--force")
    assert (folder / "pyproject.toml").read_text() == "mine"


def test_asv_measures_the_project_by_its_name_with_numbers_that_it_can_compare(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("init", "--asv")
    text = (project / "asv.conf.json").read_text()
    settings = json.loads(re.sub(r"//.*", "", text))
    assert settings["project"] == "my-project"
    assert settings["pythons"] == [f"{sys.version_info.major}.{sys.version_info.minor}"]
    assert settings["benchmark_dir"] == "benchmarks"
    gradient = plugins.file_module("benchmarks/gradient.py")
    case = gradient.Gradient()
    case.setup("rloo", "subset[n=10,k=5]")
    values = [case.track_relative_bias("rloo", ""), case.track_relative_variance("rloo", "")]
    assert all(type(value) is float and value > 0 for value in values)


# Doctor.


def test_a_healthy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("doctor")
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "runs work here"
    found = json.loads(call("doctor", "--json").stdout)
    names = ["python", "structgrad", "torch", "cores", "load", "memory", "disk", "folder", "oracles"]
    assert {*names, "compiled kernels", "score files"} <= {check["name"] for check in found["checks"]}
    assert all(check["advice"] for check in found["checks"] if check["broken"])


def test_the_code_that_computes_an_operation() -> None:
    lines = call("doctor", "--served", "--only", "tree").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["argmax", "projective_tree", "spanning_tree", "labelled_projective_tree"]
    table = json.loads(call("doctor", "--served", "--json", "--only", "ctc").stdout)
    assert set(table["ctc"].values()) == {"executor"}
    with kernels.disabled():
        off = json.loads(call("doctor", "--served", "--json", "--only", "ctc").stdout)["ctc"]
    assert {operation for operation, code in off.items() if code != "torch"} == {"distinct", "kbest", "enumerate"}


def test_what_would_fail_a_run_gives_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_can_write", lambda folder: False)
    monkeypatch.setattr(doctor, "_available_memory", lambda: 2**20)
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda _: ["torch>=2", "no_such_package", "ray; extra == 'ray'"])
    monkeypatch.setenv("STRUCTGRAD_DATA", str(tmp_path / "nowhere"))
    result = call("doctor")
    assert result.exit_code == 3
    said = (f"X folder              {tmp_path}, not writable", "X no_such_package", "pip install --force-reinstall no_such_package")
    for text in (*said, "run with --jobs 1", "which is no folder", "set NUMBA_CACHE_DIR to a writable folder"):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1] == "4 broken: runs would fail"


def test_oracles_are_tested_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = call("doctor", "--device", "cpu", "--only", "subset")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "0 of 2 oracles are wrong on cpu"
    monkeypatch.setattr(Constituency, "argmax", lambda self, scores, **named: torch.ones_like(scores))
    wrong = call("doctor", "--device", "cpu", "--only", "constituency", "--json")
    assert wrong.exit_code == 1
    record = json.loads(wrong.stdout)[0]
    assert record["verdict"] == "wrong"
    assert any(failure.startswith("argmax") for failure in record["failures"])
    assert "expected part of the name of an oracle: categorical," in refused("doctor", "--device", "cpu", "--only", "parsnip")
