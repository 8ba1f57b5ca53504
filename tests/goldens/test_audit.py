"""Golden: verdicts, causes and symptoms of audits do not change by accident.

``python -m tests.goldens.test_audit`` writes all of them. By default every fourth is recomputed, in the sweep all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from structgrad.reports.cli import app
from structgrad.suites.audit import audit
from structgrad.suites.audit.oracles import audit_oracle
from tests.suites.audit import broken_laws
from tests.suites.audit.outside_faults import FAULTS
from tests.suites.audit.test_audit import BROKEN
from tests.suites.audit.test_oracles import FAULTS as ORACLE_FAULTS
from tests.suites.audit.test_planted_faults import MISDECLARED, WRONG
from tests.suites.audit.test_published_mistakes import RIGHT
from tests.suites.audit.test_published_mistakes import WRONG as PUBLISHED

FILE = Path(__file__).with_name("audit.json")
ON = ("categorical", "subset")
REGISTERED = ("rloo", "reinforce", "exact", "simple", "imle", "gumbel_softmax", "st_gumbel", "sum_and_sample", "sparsemap", "muprop")
ORACLES = ("subset[n=4,k=2]", "categorical", "linear_chain", "spanning_tree", "alignment")
COMMANDS = (
    "rloo -o subset --quick",
    "simple -o categorical --quick",
    "tests.suites.audit.published_mistakes:BatchMean -o categorical --quick",
    "tests.suites.audit.planted_faults:SeveralCosts -o categorical --quick",
    "tests.suites.audit.broken_laws:RaisingAtMasks -o categorical --quick",
    "rloo -o categorical --quick --time 0 --strict",
    "-o subset[n=4,k=2] --quick",
    "rlo",
)


def of_estimator(found: Any) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "exit": found.exit_code(),
        "causes": list(found.causes),
        "possible": list(found.possible),
        "seen": list(found.seen),
        "violated": sorted({check.law for check in found.violations}),
    }


def of_oracle(found: Any) -> dict[str, Any]:
    return {"verdict": found.verdict, "violated": [[check.law, check.detail] for check in found.checks if check.status == "violated"]}


def of_command(words: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["audit", *words.split()])
    laws = [" ".join(line.split()[:2]) for line in found.stdout.splitlines()]
    return {"exit": found.exit_code, "lines": laws, "errors": found.stderr}


def cases() -> dict[str, Callable[[], dict[str, Any]]]:  # noqa: C901
    """All cases by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}

    def add(name: str, make: Callable[[], Any], **options: Any) -> None:
        found[name] = lambda: of_estimator(audit(make(), quick=True, **options))

    for name, (make, *_) in (WRONG | MISDECLARED).items():
        add(f"planted: {name}", make, structures=("categorical",) if name.startswith("tested") else ON)
    for name, (make, options, *_) in PUBLISHED.items():
        add(f"published: {name}", make, **options)
    for name, (make, options) in RIGHT.items():
        add(f"right: {name}", make, **options)
    for name, (estimate, _) in FAULTS.items():
        add(f"outside: {name}", lambda estimate=estimate: estimate, structures=("categorical",))
    for kind in (*BROKEN, broken_laws.RaisingAtMasks):
        add(f"broken: {kind.__name__}", lambda kind=kind: kind, structures=("categorical",))
    for name in REGISTERED:
        add(f"registered: {name}", lambda name=name: name)
    for fault in ORACLE_FAULTS:
        found[f"oracle fault: {fault.__name__}"] = lambda fault=fault: of_oracle(audit_oracle(fault(), events=[(6,)], quick=True))
    for name in ORACLES:
        found[f"oracle: {name}"] = lambda name=name: of_oracle(audit_oracle(name, quick=True, seconds=300))
    for words in COMMANDS:
        found[f"command: {words}"] = lambda words=words: of_command(words)
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if i % 4 == 0 else pytest.mark.sweep) for i, name in enumerate(cases())])
def test_an_audit_gives_what_it_gave(name: str) -> None:
    assert cases()[name]() == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: run() for name, run in cases().items()}, indent=1, ensure_ascii=False) + "\n")
