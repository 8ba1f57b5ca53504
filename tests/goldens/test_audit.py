"""Golden: verdicts, causes and symptoms of audits do not change by accident.

``python -m tests.goldens.test_audit`` writes them again, after a change on purpose. Measured numbers in details and remedies are left out.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from structgrad.reports.cli import app
from structgrad.suites.audit.oracles import audit_oracle
from tests.suites.audit.outside_faults import FAULTS
from tests.suites.audit.planted_faults import MISDECLARED, ON_CLASSES, PLANTED, Fault, RaisingAtMasks
from tests.suites.audit.planted_oracle_faults import FAULTS as ORACLE_FAULTS
from tests.suites.audit.published_mistakes import PUBLISHED, RIGHT

FILE = Path(__file__).with_name("audit.json")
REGISTERED = ("rloo", "reinforce", "exact", "simple", "imle", "gumbel_softmax", "st_gumbel", "sum_and_sample", "sparsemap", "muprop")
NUMBER = r"\d+(\.\d+)?e[-+]\d+|\d+\.\d+"
COMMANDS = (
    "rloo -o subset --quick",
    "simple -o categorical --quick",
    "tests.suites.audit.published_mistakes:BatchMean -o categorical --quick",
    "tests.suites.audit.planted_faults:SeveralCosts -o categorical --quick",
    "tests.suites.audit.planted_faults:RaisingAtMasks -o categorical --quick",
    "rloo -o categorical --quick --time 0 --strict",
    "-o subset[n=4,k=2] --quick",
    "rlo",
)


def of_estimator(result: Any) -> dict[str, Any]:
    """Details are kept where no number near 0 decides what they say."""
    said = {re.sub(NUMBER, "#", text) for text in (*(check.detail for check in result.violations), *result.remedies)}
    return {
        "verdict": result.verdict,
        "exit": result.exit_code(),
        "causes": list(result.causes),
        "seen": list(result.seen),
        "violated": sorted({check.law for check in result.violations}),
        "said": sorted(text for text in said if not text.startswith("bias")),
    }


def of_oracle(found: Any) -> dict[str, Any]:
    violated = [[check.law, check.detail] for check in found.checks if check.status == "violated"]
    return {"verdict": found.verdict, "exit": found.exit_code(), "violated": violated}


def of_command(words: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["audit", *words.split()])
    laws = [" ".join(line.split()[:2]) for line in found.stdout.splitlines()]
    return {"exit": found.exit_code, "lines": laws, "errors": found.stderr}


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """All cases by name."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {}

    def add(name: str, fault: Fault) -> None:
        cases[name] = lambda: of_estimator(fault.audited())

    for prefix, faults in {"planted": PLANTED | MISDECLARED, "published": PUBLISHED}.items():
        for name, fault in faults.items():
            add(f"{prefix}: {name}", fault)
    for name, (make, options) in RIGHT.items():
        add(f"right: {name}", Fault(make, options=options))
    for name, estimate in FAULTS.items():
        add(f"outside: {name}", Fault(lambda estimate=estimate: estimate, options=ON_CLASSES))
    add("raises at masks", Fault(RaisingAtMasks, options=ON_CLASSES))
    for name in REGISTERED:
        add(f"registered: {name}", Fault(name, options={}))
    for fault in ORACLE_FAULTS:
        cases[f"oracle fault: {fault.__name__}"] = lambda fault=fault: of_oracle(audit_oracle(fault(), events=[(6,)], quick=True))
    for words in COMMANDS:
        cases[f"command: {words}"] = lambda words=words: of_command(words)
    return cases


ALIKE = (
    "published: weights of a coupling that are clipped", "published: normalised weights without replacement",
    "planted: gain of two", "planted: a half from nowhere, with two samples", "planted: tested, own sample of four",
    "published: batch mean called leave-one-out", "outside: own sample, by two calls", "outside: ratio doubled",
    *(f"registered: {name}" for name in REGISTERED[3:]),
)  # fmt: skip
"""The default set finds the causes of these in other estimators, and clears others."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.sweep] * (name in ALIKE)) for name in all_cases()])
def test_an_audit_gives_what_it_gave(name: str) -> None:
    assert all_cases()[name]() == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: run() for name, run in all_cases().items()}, indent=1, ensure_ascii=False) + "\n")
