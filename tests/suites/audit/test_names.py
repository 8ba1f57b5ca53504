"""Names on the command line of an audit."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from structgrad.estimators import ImplicitMLE, LeaveOneOut
from structgrad.suites.audit.subject import FunctionEstimator, numbers, subject_of

MODULE = """
from dataclasses import dataclass

from structgrad.estimators import LeaveOneOut


@dataclass(frozen=True)
class Mine(LeaveOneOut):
    decay: float = 0.9


def estimate(loss, oracle, scores, generator, factor=1.0):
    return factor * scores


def made(num_samples=3):
    return LeaveOneOut(num_samples)


READY = LeaveOneOut(5)
NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_estimators.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("elsewhere")
    return str(tmp_path / "some_estimators.py")


def test_registered_names_classes_functions_factories_and_objects(file: str) -> None:
    assert subject_of("imle[lambda=2.5]").estimator == ImplicitMLE(2.5)
    mine = subject_of(f"{file}:Mine[num_samples=4]")
    assert numbers(mine.estimator) == {"num_samples": 4.0, "decay": 0.9}
    assert mine.declared["evaluations"] == {"losses": 4, "marginals": 1, "samples": 4}
    assert numbers(subject_of("some_estimators:Mine").estimator)["decay"] == 0.9  # the working directory counts
    assert isinstance(subject_of(f"{file}:made").estimator, LeaveOneOut)
    assert numbers(subject_of(f"{file}:made[num_samples=7]").estimator) == {"num_samples": 7.0}
    assert numbers(subject_of(f"{file}:READY").estimator) == {"num_samples": 5.0}
    function = subject_of(f"{file}:estimate[factor=2]", objective="relaxed", unbiased=False, scale=3.0)
    assert isinstance(function.estimator, FunctionEstimator)
    assert isinstance(function.estimator.function, functools.partial)
    assert function.declared == {"objective": "relaxed", "unbiased": False, "scale": 3.0}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}:Min", "got the unknown name in {} 'Min'; did you mean Mine"),
        ("{}:Mine[num_sample=2]", "did you mean num_samples"),
        ("{}:NUMBER", "got a int; expected an estimator, or a function"),
        ("no_such_file.py:Mine", "could not import 'no_such_file.py': no_such_file.py: no such Python file"),
        ("no_such_module_at_all:Mine", "could not import 'no_such_module_at_all'"),
        ("broken.py:Mine", "could not import 'broken.py': broken.py cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_name_gets_one_sentence(file: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"got|found|could") as error:
        subject_of(name.format(file))
    assert message.format(file) in str(error.value)
