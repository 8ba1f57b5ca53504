"""The page of results of learning, from a stored run and from a part of one."""

from __future__ import annotations

import pytest

from structgrad.reports import results
from structgrad.reports.page import learning_page
from tests.suites.learning.planted import planted, row

FEW = ("exact", "reinforce", "rloo", "ste", "imle", "sparsemap", "spigot", "structured_attention")


def page(rows, folder):
    results.write(rows, folder / "run", {"command": "structgrad learn", "environment": {"commit": "abc", "packages": {"torch": "2"}}})
    return learning_page.write([folder / "run"], folder / "docs").read_text()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("structgrad.suites.learning.finding.RESAMPLES", 20)


def test_a_part_of_a_study_says_what_is_missing(tmp_path):
    rows = [one for one in planted(("clusters", "fsdd"), FEW, 2) if one.problem.startswith("task:")]
    rows = [one for one in rows if (one.estimator, one.instance) != ("ste", "seed-1")]
    text = page(rows, tmp_path)
    assert "it has 2 of at least 9 tasks, 8 of at least 24 estimators, 2 of at least 5 seeds." in text
    assert "Without a result at every seed: `ste` on `clusters` (1 of 2); `ste` on `fsdd` (1 of 2)." in text
    assert "Gradients were not measured" in text
    assert "- commit: abc" in text


def test_several_runs_are_one_study(tmp_path):
    for number, task in enumerate(("clusters", "fsdd")):
        results.write(planted((task,), FEW, 2), tmp_path / str(number), {"command": f"structgrad learn {task} --out /here/{number}"})
    text = learning_page.write([tmp_path / "0", tmp_path / "1"], tmp_path).read_text()
    assert "- command: `structgrad learn clusters`\n" in text
    assert "- command: `structgrad learn fsdd`\n" in text
    assert "- [clusters](learning/clusters.md): latent clusters with a linear classifier each\n- [fsdd](learning/fsdd.md)" in text
    task = (tmp_path / "learning/clusters.md").read_text()
    assert "Latent clusters with a linear classifier each (`Categorical()`). `accuracy`: right labels; `structure`: V-measure." in task
    assert task.startswith("# clusters\n")
    with pytest.raises(ValueError, match=r"/1 has \w+ of \w+ on \w+:fsdd, which another run has too; expected runs of other cells$"):
        learning_page.write([tmp_path / "1", tmp_path / "1"], tmp_path)


def test_a_run_of_something_else_is_refused(tmp_path, monkeypatch, capsys):
    results.write([row("bias", "subset_regimes", "init", "ste", "0", "gain", 1.0)], tmp_path, {})
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path), "--to", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        learning_page.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("holds no result of training; expected the folder of a run of `structgrad learn`\n")
