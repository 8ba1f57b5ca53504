"""The page of results of learning, from a stored run and from a part of one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from structgrad.reports import results
from structgrad.reports.page import learning_page
from tests.suites.learning.planted import ESTIMATORS, planted, row, trained

FEW = ("exact", "reinforce", "rloo", "ste", "imle", "sparsemap", "spigot", "structured_attention")


def page(rows, folder):
    results.write(rows, folder / "run", {"command": "structgrad learn", "environment": {"commit": "abc", "packages": {"torch": "2"}}})
    return learning_page.write([folder / "run"], folder / "docs").read_text()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(learning_page, "draw_learning", lambda material: [])
    monkeypatch.setattr("structgrad.suites.learning.correlation.RESAMPLES", 20)


def test_a_part_of_a_study_says_what_is_missing(tmp_path):
    rows = [one for one in planted(("clusters", "fsdd"), FEW, 2) if one.problem.startswith("task:")]
    rows = [one for one in rows if (one.estimator, one.instance) != ("ste", "seed-1")]
    text = page(rows, tmp_path)
    assert "it has 2 of at least 9 tasks, 8 of at least 24 estimators, 2 of at least 5 seeds." in text
    assert "Without a result at every seed: `ste` on `clusters` (1 of 2); `ste` on `fsdd` (1 of 2)." in text
    assert "Gradients were not measured" in text
    assert "Beside the prototypes: not every task of theirs was learnt" in text
    assert "- commit: abc" in text


def test_a_whole_study_lacks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_page, "WANTED", (4, 24, 2))
    text = page(planted(learning_page.FOUR, ESTIMATORS, 2), tmp_path)
    assert "part of the study" not in text
    assert re.search(r"\| rloo \| 0\.\d+ .* \| 0\.970 ", text)
    assert "- **final accuracy**: cosine of the mean at " in text
    largest = text.partition("### The largest, over everything")[2]
    assert re.search(r"\n\| final accuracy \| all \| (cosine of the mean at \w+ \+[^;|]*(; )?){3} \| 3 of 21 \|\n", largest)
    for heading in ("### Beside the prototypes", "### Every predictor", "### By objective", "### Task by task", "## l2x_switch"):
        assert f"\n{heading}\n" in text
    assert ".931" in text.partition("## l2x_switch")[2].partition("\n## ")[0]


def test_the_four_ways_drift_from_the_pipeline(tmp_path):
    rows = [one for name, worth in (("exact", 0.9), ("ste", 0.7)) for seed in range(3) for one in trained("pipeline", name, seed, worth)]
    rows = [replace(one, estimator="frozen", family="frozen") if one.estimator == "exact" else one for one in rows]
    text = page(rows, tmp_path)
    assert re.search(r"\| straight-through \| 0\.780 \| −?-?0\.0800 \| 0\.690 \| -0\.140 \|", text)
    assert "| SPIGOT | not trained |" in text


def test_baselines_stand_in_their_order(tmp_path):
    worths = {"step_reinforce": 0.3, "step_greedy": 0.6, "step_ppo": 0.5, "reinforce": 0.2, "sparsemap": 0.9}
    rows = [one for name, worth in worths.items() for seed in range(3) for one in trained("listops_parser", name, seed, worth)]
    section = page(rows, tmp_path).partition("### The order of baselines")[2]
    assert [section.index(name) for name in ("step\\_greedy", "step\\_ppo", "step\\_reinforce")] == sorted(
        section.index(name) for name in ("step\\_greedy", "step\\_ppo", "step\\_reinforce")
    )
    [greedy] = [line for line in section.splitlines() if line.startswith("| step\\_greedy")]
    assert greedy.endswith("| 0.0400 | 0.160 |")
    assert "sparsemap" not in section.partition("\n## ")[0]


def test_losses_stand_beside_published_ones(tmp_path):
    worths = {"crf": 0.5, "differentiable_dp_loss": 0.75, "differentiable_dp_loss[omega=entropy]": 0.5}
    rows = [one for name, worth in worths.items() for seed in range(2) for one in trained("ner", name, seed, worth)]
    supervised = [replace(one, objective="supervised", family=one.estimator.partition("[")[0]) for one in rows]
    text = page([*supervised, *trained("clusters", "ste", 0, 0.5)], tmp_path)
    assert "| ½‖·‖² | 90.86 | 85.51 | 76.01 | 86.58 |" in text
    assert re.search(r"Here ½‖·‖² is 0\.\d+.* above the CRF, paired by seed\.", text)
    losses = [line for line in text.splitlines() if line.startswith("| differentiable")]
    assert [line.endswith("| .452 (span F1) |") for line in losses] == [True, False]
    assert "crf" not in text.partition("## All tasks")[2].partition("\n## ")[0]


def test_figures_are_written_beside_the_page(tmp_path, monkeypatch):
    monkeypatch.undo()
    rows = [one for one in planted(("clusters",), FEW, 2) if one.problem.startswith("task:")]
    text = page(rows, tmp_path)
    for name in re.findall(r"\]\((learning/[a-z-]+\.png)\)", text):
        assert (tmp_path / "docs" / name).stat().st_size > 1000
    assert "learning/learning-steps.png" in text


def test_several_runs_are_one_study(tmp_path):
    for number, task in enumerate(("clusters", "fsdd")):
        results.write(planted((task,), FEW, 2), tmp_path / str(number), {"command": f"structgrad learn {task} --out /here/{number}"})
    text = learning_page.write([tmp_path / "0", tmp_path / "1"], tmp_path).read_text()
    assert "- command: `structgrad learn clusters`\n" in text
    assert "- command: `structgrad learn fsdd`\n" in text
    assert "Latent clusters with a linear classifier each (`Categorical()`). `accuracy`: right labels; `structure`: V-measure." in text
    assert "\n## clusters\n" in text
    assert "\n## fsdd\n" in text
    with pytest.raises(ValueError, match=r"/1 has \w+ of \w+ on \w+:fsdd, which another run has too; expected runs of other cells$"):
        learning_page.write([tmp_path / "1", tmp_path / "1"], tmp_path)


def test_a_run_of_something_else_is_refused(tmp_path, monkeypatch, capsys):
    results.write([row("bias", "subset_regimes", "init", "ste", "0", "gain", 1.0)], tmp_path, {})
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path), "--to", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        learning_page.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("holds no result of training; expected the folder of a run of `structgrad learn`\n")
