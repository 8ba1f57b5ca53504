from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.reports.upkeep import device as report
from structgrad.reports.upkeep.device import DeviceTests, outcome_of
from structgrad.suites.speed.device import DeviceTiming
from structgrad.suites.speed.targets import Target, Task, tasks
from tests.reports.calling import call, refused


def test_a_report_on_the_cpu(tmp_path: Path) -> None:
    """Where the CPU stands in for a GPU: what is written, and that the numbers are those of the run."""
    result = call("doctor", "--device", "cpu", "--only", "categorical 1000 argmax", "--out", tmp_path, "--minutes", "1")
    assert result.exit_code == 0, result.stdout
    assert f"report: {tmp_path / 'device.md'}" in result.stdout
    page = json.loads((tmp_path / "device.json").read_text())
    (row,) = page["timings"]
    assert (row["case"], row["operation"], row["batch"], row["difference"]) == ("categorical 1000", "argmax", 2, 0.0)
    assert row["seconds"]["torch"] > 0
    assert page["tests"]["verdict"].startswith("not run: only")
    text = (tmp_path / "device.md").read_text()
    assert f"- torch: {torch.__version__}" in text
    assert f"| categorical 1000 argmax | 2 | {1e3 * row['seconds']['structgrad']:.3g} |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "nonsense"), "device='nonsense'; expected cpu"),
        (("--device", "cpu", "--json"), "got --json with --device; leave it out"),
        (("--device", "cpu", "--only", "nonsense"), "only='nonsense', which no operation holds"),
    ],
)
def test_bad_input_gets_one_sentence(words: tuple[str, ...], said: str) -> None:
    assert said in refused("doctor", *words)


@pytest.mark.parametrize(
    ("said", "status", "stopped", "expected"),
    [
        ("...\n12 passed, 3 skipped in 1.5s", 0, False, DeviceTests("passed", "12 passed, 3 skipped in 1.5s")),
        ("FAILED a.py::b[c] - no\n= 1 failed in 3s =", 1, False, DeviceTests("failed", "1 failed in 3s", ("a.py::b[c]",))),
        ("..\n= 2 passed in 60.00s =", 2, True, DeviceTests("stopped", "2 passed in 60.00s")),
        ("FAILED a.py::b\n= 1 failed in 60.00s =", 2, True, DeviceTests("failed", "1 failed in 60.00s", ("a.py::b",))),
        ("INTERNALERROR", 3, False, DeviceTests("failed")),
        ("no tests ran in 1.0s", 5, False, DeviceTests("not run: no test has the marker", "no tests ran in 1.0s")),
    ],
)  # fmt: skip
def test_what_pytest_said(said: str, status: int, stopped: bool, expected: DeviceTests) -> None:
    assert outcome_of(said, status, stopped=stopped, seconds=0.0) == expected


def test_a_failed_test_is_named_and_gives_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "run_tests", lambda folder, seconds: DeviceTests("failed", "1 failed in 2s", ("tests/a.py::b",)))
    monkeypatch.setattr(report, "timings", lambda wanted, device, deadline: iter(()))
    result = call("doctor", "--device", "cpu", "--out", tmp_path)
    assert result.exit_code == 1
    text = (tmp_path / "device.md").read_text()
    assert "failed: 1 failed in 2s" in text
    assert "- tests/a.py::b" in text
    assert f"{len(tasks(most=2))} operations were not timed" in text


def test_tests_are_run_in_a_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.run_tests(tmp_path, 1.0).verdict == f"not run: no tests in {tmp_path}; call this in a checkout of structgrad"
    (tmp_path / "tests/oracles/gpu").mkdir(parents=True)
    (tmp_path / "tests/test_marked.py").write_text(
        "import pytest\n@pytest.mark.gpu\ndef test_it(): assert 1 == 2\ndef test_other(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = report.run_tests(tmp_path, 60.0)
    assert (found.verdict, found.failed) == ("failed", ("tests/test_marked.py::test_it",))
    assert found.summary.startswith("1 failed")


def test_tests_are_stopped_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests/oracles/gpu").mkdir(parents=True)
    body = "import time, pytest\npytestmark = pytest.mark.gpu\ndef test_it(): pass\ndef test_long(): time.sleep(100)\n"
    (tmp_path / "tests/test_marked.py").write_text(body)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(report, "_processes", list)
    found = report.run_tests(tmp_path, 3.0)
    assert found.verdict == "stopped"
    assert found.seconds < 60


def test_every_column_of_the_report() -> None:
    task: Any = Task(tasks("spanning_tree 40 argmax")[0].case, "argmax", 1024, Target("cpu", 50))
    seconds = {"structgrad": 2e-3, "torch": 2e-2, "cpu": 1e-2, "torch-struct": 3e-3}
    timing = DeviceTiming(task, seconds, True, 1e-3, 5e-4, 3 * 2**20, 1e-7, {"graph": "it waited"})
    text = "\n".join(report.markdown({"torch": "2.13"}, DeviceTests("passed"), [timing], left=0))
    assert "0 of 1 met" in text
    assert "| spanning_tree 40 argmax | 1024 | cpu | 50 | 5 | **no** |" in text
    assert "| spanning_tree 40 argmax | 1024 | 2 | 1 | 25% | 10 | 5 | torch-struct 1.5 | 3 | 1e-07 | yes |" in text
    assert "- spanning_tree 40 argmax, graph: it waited" in text
