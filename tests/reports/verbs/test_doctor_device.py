from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.reports.verbs.doctor import device as examination
from structgrad.reports.verbs.doctor import device_page, device_tests
from structgrad.reports.verbs.doctor.device_page import KnownDevice
from structgrad.reports.verbs.doctor.device_tests import DeviceTests, command, outcome_of, run_tests
from structgrad.reports.verbs.doctor.journal import JOURNAL, Journal
from structgrad.suites.speed import device_rows, isolation
from structgrad.suites.speed.device_rows import DeviceRow
from structgrad.suites.speed.floor import MachineLimits
from structgrad.suites.speed.isolation import IsolatedAnswer
from structgrad.suites.speed.targets import DeviceTask, SpeedTarget, tasks
from structgrad.suites.text import milliseconds
from tests.reports.calling import call, refused

MACHINE = MachineLimits(1e9, 1e9)
ENVIRONMENT = {"device": "a card", "torch": "2.13"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process that looks at the device."""
    monkeypatch.setattr(examination, "looked", lambda device: (ENVIRONMENT, MACHINE))


def pages(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "device.json").read_text()), (folder / "device.md").read_text()


def test_a_report_on_the_cpu(tmp_path: Path) -> None:
    """Where the CPU stands in for a GPU: what is written, and that the numbers are those of the run."""
    result = call("doctor", "--device", "cpu", "--only", "categorical 1000 argmax", "--out", tmp_path, "--minutes", "5")
    assert result.exit_code == 0, result.stdout
    assert result.stdout.endswith(f"report: {tmp_path / 'device.md'}\n")
    page, text = pages(tmp_path)
    (row,) = page["operations"]
    assert (row["case"], row["operation"], row["batch"], row["verdict"]) == ("categorical 1000", "argmax", 2, "right")
    assert row["steps"]["torch"]["seconds"] > 0
    assert page["tests"]["verdict"].startswith("not run: only")
    assert f"- torch: {torch.__version__}" in text
    assert f"| categorical 1000 argmax | 2 | yes | kernel | {milliseconds(row['steps']['structgrad']['seconds'])} |" in text


def test_the_cpu_is_held_to_no_target(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "in_turn", lambda jobs, *given, **named: iter(()))
    monkeypatch.setattr(examination, "side_by_side", lambda *given: iter(()))
    result = call("doctor", "--device", "cpu", "--only", "spanning_tree 40 argmax", "--out", tmp_path)
    assert result.exit_code == 0
    assert "Targets: none: the CPU stands in for a GPU" in result.stdout
    page, text = pages(tmp_path)
    assert page["operations"][0]["target"] is None
    assert "## Targets" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "nonsense"), "device='nonsense'; expected cpu"),
        (("--device", "cpu", "--json"), "got --json with --device; leave it out"),
        (("--device", "cpu", "--only", "nonsense"), "only='nonsense', which matches no operation"),
        (("--again",), "got --again without --device"),
    ],
)
def test_bad_input_gets_one_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused("doctor", *words, "--out", tmp_path)


def test_a_device_that_gives_no_answer_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(jobs: Any, *given: Any) -> Any:
        yield jobs[0][0], IsolatedAnswer({}, "took longer than 60 s and was ended")

    monkeypatch.setattr(examination, "in_turn", silent)
    said = refused("doctor", "--device", "cuda", "--out", tmp_path, code=3)
    assert "got no answer from device='cuda' (took longer than 60 s and was ended)" in said


def test_what_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("structgrad.reports.verbs.doctor.device")
    monkeypatch.setitem(sys.modules, "structgrad.reports.verbs.doctor.device", None)
    assert "`doctor` cannot import a package" in refused("doctor", "--device", "cpu", "--out", tmp_path, code=3)


# What goes wrong.


def test_what_ends_badly_is_named_and_the_rest_is_there(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "MEASURE", "tests.suites.planted_calls:planted")
    monkeypatch.setattr(device_rows, "SHORT", 3.0)
    monkeypatch.setattr(isolation, "PREPARED", ())
    result = call("doctor", "--device", "cpu", "--only", "categorical 1000", "--out", tmp_path)
    assert result.exit_code == 1, result.output
    page, text = pages(tmp_path)
    found = {row["operation"]: row for row in page["operations"]}
    assert {name: row["verdict"] for name, row in found.items()} == {
        "argmax": "wrong",
        "log_partition": "wrong",
        "marginals": "right",
        "marginals_backward": "right",
        "sample": "wrong",
        "sample64": "wrong",
        "project": "wrong",
        "project_backward": "right",
    }
    for said in (
        "- categorical 1000 argmax, batch 2: float32: 2.5e-01 off",
        "compared: ended by SIGKILL; did not run where it was to be timed: ended with exit status 9",
        "- categorical 1000 sample, batch 2: the same input gave other bits",
        "- categorical 1000 sample64, batch 2: did not run where it was to be timed: ImportError: no such library, as it were",
        "timed: MemoryError: CUDA out of memory, as it were",
        "- categorical 1000 marginals, plain torch on this device: took longer than 3 s and was ended",
        "- **Right**: 3 of 8 operations; 5 wrong, 0 not checked.",
    ):
        assert said in text
    assert found["marginals"]["steps"]["structgrad"]["seconds"] > 0
    assert found["project_backward"]["steps"]["torch"]["seconds"] > 0
    assert set(found["log_partition"]["steps"]) == {"right", "structgrad", "structgrad@1", "torch"}
    assert "WRONG categorical 1000 argmax: float32: 2.5e-01 off" in result.stdout


def test_a_killed_command_keeps_its_rows_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "report"
    words = ["doctor", "--device", "cpu", "--only", "categorical 1000 marginals", "--out", str(out)]
    program = "from structgrad.reports.cli import main; main()"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen([sys.executable, "-c", program, *words], env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    journal = out / JOURNAL
    end = time.monotonic() + 300
    while not (journal.exists() and journal.read_text().count('"key"') >= 3) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [line for line in whole_lines(journal) if "key" in line]
    assert len(before) >= 3
    page, text = pages(out)
    assert page["unfinished"] > 0
    assert "repeat the command to continue" in text
    result = call(*words)
    assert result.exit_code == 0, result.output
    keys = [tuple(line["key"]) for line in whole_lines(journal) if "key" in line]
    assert len(set(keys)) == len(keys), "measured again"
    page, _ = pages(out)
    assert page["unfinished"] == 0
    for line in before:
        case, operation, _, step = line["key"]
        (row,) = [row for row in page["operations"] if (row["case"], row["operation"]) == (case, operation)]
        assert row["steps"][step] == line["value"]


def whole_lines(journal: Path) -> list[dict[str, Any]]:
    found = []
    for line in journal.read_text().splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


MISSING = ("pebble", "seaborn", "jinja2", "pyarrow", "rich", "xdist", "matplotlib", "pandas", "hypothesis", "triton", "torch_struct")

BARE = f"""
import importlib.metadata, sys
from importlib.machinery import PathFinder

class Bare:
    def __getattr__(self, name):
        return getattr(PathFinder, name)

    def find_spec(self, name, *place):
        return None if name.partition(".")[0] in {MISSING!r} else PathFinder.find_spec(name, *place)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare()
sys.path[:] = [path for path in sys.path if "__editable__" not in path]
known = importlib.metadata.version

def version(package):
    if package in ("structgrad", *{MISSING!r}):
        raise importlib.metadata.PackageNotFoundError(package)
    return known(package)

importlib.metadata.version = version
"""
"""What a machine with a GPU may be like: few packages, and structgrad not installed, but linked to its folders."""


def test_a_bare_machine_will_do(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    (tmp_path / "structgrad").mkdir()
    for room in ("oracles", "estimators", "suites", "reports"):
        (tmp_path / "structgrad" / room).symlink_to(root / room)
    for file in (root / "reports" / "package").glob("*.py"):
        (tmp_path / "structgrad" / file.name).symlink_to(file)
    (tmp_path / "sitecustomize.py").write_text(BARE)
    words = ["doctor", "--device", "cpu", "--only", "categorical 1000 argmax", "--out", str(tmp_path / "report")]
    program = "from structgrad.reports.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    page, _ = pages(tmp_path / "report")
    assert page["operations"][0]["verdict"] == "right"
    assert page["environment"]["triton"] == "not installed"


# The journal.

KEY = ("categorical 1000", "argmax", 2, "right")
OTHER = ("categorical 1000", "argmax", 2, "torch")


def test_answers_outlast_a_process_and_failures_are_tried_again(tmp_path: Path) -> None:
    first = Journal(tmp_path, ENVIRONMENT)
    first.add(KEY, {"off": {}})
    first.add(OTHER, {"failure": "it hung"})
    first.add_tests({"verdict": "passed"})
    first.close()
    second = Journal(tmp_path, ENVIRONMENT)
    assert second.answers == {KEY: {"off": {}}, OTHER: {"failure": "it hung"}}
    assert second.tests == {"verdict": "passed"}
    assert not second.lacks(KEY)
    assert second.lacks(OTHER)
    second.close()


def test_a_line_cut_short_costs_itself_alone(tmp_path: Path) -> None:
    first = Journal(tmp_path, ENVIRONMENT)
    first.add(KEY, {"off": {}})
    first.close()
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"key": ["categorical')
    second = Journal(tmp_path, ENVIRONMENT)
    second.add(OTHER, {"seconds": 1.0})
    second.close()
    third = Journal(tmp_path, ENVIRONMENT)
    assert set(third.answers) == {KEY, OTHER}
    third.close()


@pytest.mark.parametrize(("environment", "again"), [({"device": "another card"}, False), (ENVIRONMENT, True)])
def test_answers_of_another_device_and_those_that_nobody_wants_are_not_taken(
    environment: dict[str, str], again: bool, tmp_path: Path
) -> None:
    first = Journal(tmp_path, ENVIRONMENT)
    first.add(KEY, {"off": {}})
    first.close()
    second = Journal(tmp_path, environment, again=again)
    assert second.answers == {}
    assert second.lacks(KEY)
    second.close()
    assert '"off"' in (tmp_path / JOURNAL).read_text()


# Tests of a checkout.


@pytest.mark.parametrize(
    ("said", "status", "stopped", "expected"),
    [
        ("...\n12 passed, 3 skipped in 1.5s", 0, False, DeviceTests("passed", "12 passed, 3 skipped in 1.5s")),
        ("FAILED a.py::b[c] - no\n= 1 failed in 3s =", 1, False, DeviceTests("failed", "1 failed in 3s", ("a.py::b[c]",))),
        ("..\n= 2 passed in 60.00s =", 2, True, DeviceTests("stopped", "2 passed in 60.00s")),
        ("FAILED a.py::b\n= 1 failed in 60.00s =", 2, True, DeviceTests("failed", "1 failed in 60.00s", ("a.py::b",))),
        ("INTERNALERROR", 3, False, DeviceTests("failed", "pytest ended with exit status 3: INTERNALERROR")),
        ("no tests ran in 1.0s", 5, False, DeviceTests("not run: no test has the marker", "no tests ran in 1.0s")),
        (
            "ERROR tests/a.py - ModuleNotFoundError: No module named 'b'\n= 2 passed, 1 error in 3s =", 1, False,
            DeviceTests("passed", "2 passed, 1 error in 3s", (), ("tests/a.py - ModuleNotFoundError: No module named 'b'",)),
        ),
        (
            "ERROR tests/a.py - no\n= 1 error in 3s =", 1, False,
            DeviceTests("not run: no file of tests can be imported", "1 error in 3s", (), ("tests/a.py - no",)),
        ),
    ],
)  # fmt: skip
def test_what_pytest_said(said: str, status: int, stopped: bool, expected: DeviceTests) -> None:
    assert outcome_of(said, status, stopped=stopped, seconds=0.0) == expected


def planted_checkout(folder: Path, body: str) -> None:
    (folder / "tests/oracles/gpu").mkdir(parents=True)
    (folder / "tests/test_marked.py").write_text(body)
    (folder / "tests/test_unread.py").write_text("import no_such_module_of_this_name  # of the gpu\n")
    (folder / "tests/test_elsewhere.py").write_text("raise RuntimeError('nobody reads it')\n")
    # As in the project: options of plugins that may be missing.
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\naddopts = --numprocesses=logical\nfilterwarnings = error\n")


@pytest.mark.parametrize("parallel", [True, False])
def test_tests_are_run_in_a_checkout_only(parallel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tests(tmp_path, 1.0).verdict == f"not run: no tests in {tmp_path}; call this in a checkout of structgrad"
    body = (
        "import pytest\n@pytest.mark.gpu\ndef test_it(): assert 1 == 2\n@pytest.mark.gpu\ndef test_fine(): pass\ndef test_other(): pass\n"
    )
    planted_checkout(tmp_path, body)
    if not parallel:
        monkeypatch.setattr(device_tests.importlib.util, "find_spec", lambda name: None if name == "xdist" else "there")
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        assert "-n" not in " ".join(command())
    found = run_tests(tmp_path, 120.0)
    assert (found.verdict, found.failed) == ("failed", ("tests/test_marked.py::test_it",))
    assert found.summary.startswith("1 failed, 1 passed")
    assert [name.partition(" - ")[0] for name in found.unread] == ["tests/test_unread.py"]


def test_tests_are_stopped_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted_checkout(tmp_path, "import time, pytest\npytestmark = pytest.mark.gpu\ndef test_it(): pass\ndef test_long(): time.sleep(100)\n")
    monkeypatch.setattr(device_tests.importlib.util, "find_spec", lambda name: None if name == "xdist" else "there")
    found = run_tests(tmp_path, 3.0)
    assert found.verdict == "stopped"
    assert found.seconds < 60


def test_without_pytest_the_tests_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests/oracles/gpu").mkdir(parents=True)
    monkeypatch.setattr(device_tests.importlib.util, "find_spec", lambda name: None)
    assert run_tests(tmp_path, 1.0).verdict == "not run: pytest is not installed"


def test_a_failed_test_is_named_and_gives_exit_code_1(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "in_turn", lambda jobs, *given, **named: iter(()))
    monkeypatch.setattr(examination, "side_by_side", lambda *given: iter(()))
    ran: list[float] = []

    def failing(folder: Path, seconds: float) -> DeviceTests:
        ran.append(seconds)
        return DeviceTests("failed", "1 failed in 2s", ("tests/a.py::b",), ("tests/c.py - no",))

    monkeypatch.setattr(examination, "run_tests", failing)
    for _ in range(2):  # the second call takes it from the journal
        result = call("doctor", "--device", "cuda", "--out", tmp_path, "--minutes", "4")
        assert result.exit_code == 1, result.output
        text = pages(tmp_path)[1]
        assert "- **Tests**: failed (1 failed in 2s)." in text
        assert "- tests/a.py::b" in text
        assert "- tests/c.py - no" in text
        assert f"**Not finished**: {len(tasks())} of {len(tasks())} operations" in text
    assert ran == [pytest.approx(120.0)]


# The page.


def test_every_column_of_the_report() -> None:
    task = replace(tasks("spanning_tree 40 argmax")[0], target=SpeedTarget("cpu", 50))
    answers: dict[str, dict[str, Any]] = {
        "right": {"first": 3.2, "off": {"float32": 1e-7}},
        "structgrad": {"seconds": 2e-3, "repeats": True, "finite": True, "kernel": True, "memory": 3 * 2**20},
        "graph": {"seconds": 1e-3, "same": True},
        "torch": {"seconds": 2e-2, "ours": 2e-3},
        "compiled": {"seconds": 4e-3, "ours": 2e-3},
        "cpu": {"seconds": 1e-2, "ours": 2e-3},
        "torch-struct": {"seconds": 3e-3, "ours": 2e-3},
        "structgrad@1": {"seconds": 1e-4},
        "cpu@1": {"seconds": 5e-5},
        "popping": {"failure": "it waited"},
        "scipy": {"said": ["the kernel does not serve"]},
    }
    row = DeviceRow(task, answers, MachineLimits(1e12, 1e12))
    text = "\n".join(device_page.markdown(KnownDevice(ENVIRONMENT, DeviceTests("passed"), [row])))
    assert text.startswith("# structgrad on a card: results and speed")
    assert "- **Targets**: 0 of 1 met; missed: spanning_tree 40 argmax (5 x cpu, target 50)." in text
    assert "| spanning_tree 40 argmax | 1024 | the CPU with two threads | 50 | 5 | 10% | **no** |" in text
    timed = f"2 | 1 | {row.share:.0%} | 10 | 2 | 5 | torch-struct 1.50 | 0.100, CPU 0.500 | 3 | 1e-07 | 3.20 |"
    assert f"| spanning_tree 40 argmax | 1024 | yes | kernel | {timed}" in text
    assert "- spanning_tree 40 argmax, popping cycles: it waited" in text
    assert "## Warnings\n\n- the kernel does not serve" in text


def test_what_has_no_target_and_what_was_not_timed_is_said() -> None:
    def short(*found: DeviceRow) -> str:
        return "\n".join(device_page.in_short(KnownDevice({}, DeviceTests("passed"), list(found))))

    free = DeviceTask(tasks()[0].case, "argmax", 2)
    assert "none for these operations" in short(DeviceRow(free))
    assert f"0 of 1 met; not timed: {free.name}" in short(DeviceRow(replace(free, target=SpeedTarget("cpu", 50))))
    assert f"plain torch: {free.name}" in short(DeviceRow(free, {"structgrad": {"seconds": 1.0, "kernel": False}}))


def test_the_report_is_whole_after_every_answer(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def answered(jobs: Any, *given: Any, **named: Any) -> Any:
        for job in jobs:
            for asked in job:
                yield asked, IsolatedAnswer({"seconds": 1.0, "ours": 1.0})
                seen.append(len(pages(tmp_path)[0]["operations"][0]["steps"]))

    monkeypatch.setattr(examination, "in_turn", answered)
    monkeypatch.setattr(examination, "side_by_side", answered)
    result = call("doctor", "--device", "cuda", "--only", "spanning_tree 40 argmax", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert seen == list(range(1, len(seen) + 1))
    assert "spanning_tree 40 argmax: 1 x cpu, target 50: MISSED" in result.stdout
    steps = pages(tmp_path)[0]["operations"][0]["steps"]
    assert {"right", "warm", "structgrad", "cpu", "torch", "graph", "structgrad@1", "cpu@1", "compiled"} <= set(steps)
