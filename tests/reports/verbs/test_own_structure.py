"""Every verb serves a structure of one's own in a file, or refuses it in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.reports.calling import FEW, call, refused, without_page

SPREAD = "./my_structure.py:Spread"
SIZED = f"{SPREAD}[n=4,k=2]"
RUN = ["run", "bias", "-e", "rloo", "-j", "0", "--instances", "2", "--loss", "own", *FEW]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file that `init --oracle` writes."""
    monkeypatch.chdir(tmp_path)
    without_page(monkeypatch)
    assert call("init", "--oracle").exit_code == 0
    return tmp_path


def test_it_is_measured_looked_at_exported_and_gated() -> None:
    found = call(*RUN, "-p", SIZED, "--stage", "h=0.95", "-o", "out")
    assert found.exit_code == 0, found.output
    assert SIZED in found.stdout
    for words in (["status", "out"], ["report", "out"], ["export", "out"], ["compare", "out", "out"], ["baseline", "save", "own", "out"]):
        assert call(*words).exit_code == 0, words
    assert call("gate", "out", "--baseline", "own").exit_code == 0
    assert SIZED in Path("out/export.csv").read_text()


def test_structures_without_parts_are_no_gold() -> None:
    """The empty choice is likely at an entropy of a tenth; losses are tied to parts."""
    found = call(*RUN, "--instances", "12", "-p", SIZED, "--stage", "h=0.1", "--stage", "final", "-o", "out")
    assert found.exit_code == 0, found.output


def test_it_scores_the_arrays_of_a_file(folder: Path) -> None:
    np.savez(folder / "mine.npz", scores=np.random.default_rng(0).standard_normal((3, 6)), lengths=np.array([6, 4, 2]))
    words = [*RUN, "--file", "mine.npz", "-o", "out"]
    assert call(*words, "--oracle", f"{SPREAD}[k=2]", "--field", "lengths=lengths").exit_code == 0
    assert refused(*words, "--oracle", f"{SPREAD}[n=6,k=2]") == (
        f"error: mine.npz: got the oracle '{SPREAD}[n=6,k=2]' with the size n; expected none, for the scores have it\n"
    )


def test_estimators_are_audited_on_it() -> None:
    found = json.loads(call("audit", "rloo", "--oracle", SIZED, "--quick", "--json").stdout)
    assert found["verdict"] == "right"
    assert {"spread 4"} <= {check["where"] for check in found["checks"]}


def test_a_task_of_ones_own_may_have_it(folder: Path) -> None:
    assert call("init", "--task").exit_code == 0
    text = (folder / "my_task.py").read_text().replace("from structgrad.oracles import Subset", "from my_structure import Spread")
    text = text.replace("Subset(2)", "Spread(2)").replace("[1, 2]", "[1, 3]").replace("[3, 4]", "[2, 4]").replace("3000", "600")
    (folder / "my_task.py").write_text(text.replace("steps=400", "steps=20"))
    found = call("learn", "./my_task.py:task", "-e", "ste", "--seeds", "1", "--no-gradients", "-j", "0", "-o", "out")
    assert found.exit_code == 0, found.output
