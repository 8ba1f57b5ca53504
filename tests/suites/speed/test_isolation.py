from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.speed import isolation
from structgrad.suites.speed.isolation import Call, IsolatedAnswer, in_turn, side_by_side

PLANTED = "tests.suites.planted_calls"
LONG = 100.0


@pytest.fixture(autouse=True)
def nothing_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of torch takes longer than all else here."""
    monkeypatch.setattr(isolation, "PREPARED", ())


def planted(name: str, number: int = 0, limit: float = LONG) -> Call:
    return Call(f"{PLANTED}:{name}", {"number": number}, limit)


def gone(process: int) -> bool:
    """Whether a process has ended, or is a zombie that nobody asked for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def test_what_goes_wrong_is_named_and_costs_itself_alone() -> None:
    calls = [
        planted("fine", 1),
        planted("fine", 2),
        planted("raising", 3),
        planted("leaving"),
        planted("killed"),
        planted("crashing"),
        planted("no_number"),
        Call("tests.suites.planted_at_import:anything", {}, LONG),
        planted("fine", 4),
        planted("sleeping", limit=0.4),
        planted("fine", 5),
    ]
    answers = [answer for _, answer in in_turn([calls])]
    values = {answer.value["number"]: answer.value["process"] for answer in answers if answer.value}
    assert list(values) == [1, 2, 4, 5]
    assert values[1] == values[2]
    assert len(set(values.values())) == 3
    reasons = [answer.failure for answer in answers if answer.failure]
    assert reasons[0] == "RuntimeError: no 3"
    assert reasons[1] == "ended with exit status 9: a last word"
    assert reasons[2].startswith("ended by SIGKILL")
    assert reasons[3].startswith("ended by SIGSEGV")
    assert reasons[4].startswith("ValueError: Out of range float values")
    assert reasons[5:] == ["ImportError: no such library, as it were", "took longer than 0 s and was ended"]


def test_jobs_get_processes_of_their_own_and_the_next_may_start_ahead() -> None:
    found = [answer.value["process"] for _, answer in in_turn([[planted("fine")], [planted("fine")]], ahead=True)]
    assert len(set(found)) == 2


def test_nothing_is_answered_after_the_deadline() -> None:
    assert list(in_turn([[planted("fine")]], time.monotonic() - 1)) == []
    start = time.monotonic()
    assert list(in_turn([[planted("sleeping")]], start + 0.5)) == []
    assert time.monotonic() - start < LONG


def test_jobs_side_by_side() -> None:
    jobs = [[planted("fine", 1), planted("raising")], [planted("fine", 2)]]
    found = list(side_by_side(jobs, 2))
    assert sorted(answer.value["number"] for _, answer in found if answer.value) == [1, 2]
    assert [answer.failure for _, answer in found if answer.failure] == ["RuntimeError: no 0"]


def test_who_looks_no_further_ends_what_is_at_work(tmp_path: Path) -> None:
    written = tmp_path / "processes"
    jobs = [[Call(f"{PLANTED}:with_a_child", {"path": str(written)}, LONG)], [planted("fine")]]
    answers = side_by_side(jobs, 2)
    assert next(answers)[1].value
    assert soon(lambda: written.exists() and len(written.read_text().split()) == 2)
    start = time.monotonic()
    answers.close()
    assert time.monotonic() - start < LONG, "waited for the call"
    assert all(soon(lambda process=process: gone(int(process))) for process in written.read_text().split())


def test_an_error_of_this_process_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(isolation, "IsolatedWorker", refused)
    with pytest.raises(OSError, match="no more processes"):
        list(side_by_side([[planted("fine")]], 1))


def test_a_process_ends_when_the_one_that_started_it_is_killed(tmp_path: Path) -> None:
    written = tmp_path / "processes"
    program = (
        "from structgrad.suites.speed import isolation\n"
        "isolation.PREPARED = ()\n"
        f"list(isolation.in_turn([[isolation.Call('{PLANTED}:with_a_child', {{'path': {str(written)!r}}}, 1000.0)]]))\n"
    )
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    parent = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths})
    try:
        assert soon(lambda: written.exists() and len(written.read_text().split()) == 2)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert all(soon(lambda process=process: gone(int(process))) for process in written.read_text().split())


def test_an_answer_is_a_value_or_a_reason() -> None:
    (found,) = islice(in_turn([[planted("fine", 7)]]), 1)
    assert isinstance(found[1], IsolatedAnswer)
    assert found[1].value["number"] == 7
