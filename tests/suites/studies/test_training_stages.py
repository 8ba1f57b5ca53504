"""The stages of training: the tables on a miniature set, and the definitions behind their columns."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from structgrad.oracles import SpanningTree
from structgrad.suites.base import Problem
from structgrad.suites.problems import load
from structgrad.suites.studies import training_stages
from structgrad.suites.studies.training_stages import NORMAL, Item, item_of, main, matched_deviation, peakedness, ranked, ranking, scores_of
from structgrad.suites.truth import exact_truth

ROOT = Path(__file__).resolve().parents[2]
NAME = "dependency_en_ewt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Twelve sentences of two to four words whose scores come to prefer gold."""
    random = np.random.default_rng(0)
    lengths = np.repeat([2, 3, 4], 4)
    heads = np.stack([np.resize([0, 1, 2, 3], 4) for _ in lengths])
    gold = np.zeros((12, 5, 5))
    for item, length in enumerate(lengths):
        gold[item, heads[item, :length], np.arange(1, length + 1)] = 1
    noise = random.standard_normal((3, 12, 5, 5))
    arrays = {f"small_arc_{stage}": (noise[i] * 0.1 + i * 3 * gold) for i, stage in enumerate(("init", "early", "final"))}
    path = tmp_path_factory.mktemp("scores")
    ids = np.array([f"item-{i}" for i in range(12)])
    np.savez(path / f"{NAME}.npz", small_length=lengths, small_gold_heads=heads, small_id=ids, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_a_miniature_set(folder: str) -> None:
    every, longer = ranked(folder, instances=12)
    assert [row["stage"] for row in every] == [NORMAL, "init", "early", "final"]
    assert [row["items"] for row in every] == [12] * 4
    assert [row["items"] for row in longer] == [8] * 4
    final, normal = every[-1], every[0]
    assert final["ste is 0"] == 1.0 > normal["ste is 0"]
    assert final["ste: cosine, median"] == final["of those not 0"] == 0.0
    assert normal["of those not 0"] > 0


def test_an_item_by_brute_force(folder: str) -> None:
    problem = load(NAME, "init", instances=12, data=folder)
    instance = problem.instances[-1]
    found, truth = item_of(problem, instance), exact_truth(instance.loss, SpanningTree(), instance.scores)
    z = SpanningTree().enumerate((5, 5), dtype=torch.float64)
    p = (z.flatten(1) @ instance.scores.flatten()).softmax(0)
    centred = z.flatten(1) - p @ z.flatten(1)
    mean = (p @ z.flatten(1)).reshape(5, 5).requires_grad_()
    (upstream,) = torch.autograd.grad(instance.loss(mean), mean)
    attention = (p * (centred @ upstream.flatten())) @ centred
    best = z[(z.flatten(1) @ instance.scores.flatten()).argmax()].requires_grad_()
    (straight,) = torch.autograd.grad(instance.loss(best), best)
    gradient = truth.gradient.flatten()
    losses = instance.loss(z)
    estimates = (losses - p @ losses).unsqueeze(-1) * centred
    variance = p @ (estimates - gradient).square().sum(-1) / gradient.square().sum()
    assert found.attention_bias == pytest.approx(float((attention - gradient).norm() / gradient.norm()))
    assert found.cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(straight.flatten(), gradient, 0)))
    assert found.log_variance == pytest.approx(math.log10(float(variance)))
    assert (found.size, found.zero) == (5, False)


def test_normal_scores_keep_gold_and_loss(folder: str) -> None:
    real, normal = (scores_of(NAME, stage, instances=12, data=folder) for stage in ("init", NORMAL))
    again, other = (scores_of(NAME, NORMAL, instances=6, data=folder, seed=seed) for seed in (0, 1))
    by_name = {item.name: item for item in normal.instances}
    for before, after in zip(real.instances, normal.instances, strict=True):
        assert (before.name, before.scores.shape) == (after.name, after.scores.shape)
        assert before.loss(after.scores) == after.loss(after.scores)
        assert not torch.equal(before.scores, after.scores)
    assert all(torch.equal(item.scores, by_name[item.name].scores) for item in again.instances)
    assert not any(torch.equal(item.scores, by_name[item.name].scores) for item in other.instances)


@pytest.mark.parametrize("deviation", [0.05, 0.5, 6.0, 50.0])
def test_the_deviation_of_normal_scores_is_found(deviation: float, folder: str) -> None:
    normal = scores_of(NAME, NORMAL, instances=12, data=folder)
    assert matched_deviation(normal, peaked_at(normal, deviation)) == pytest.approx(deviation, rel=1e-5)


def peaked_at(problem: Problem, deviation: float) -> float:
    """Mean entropy of scaled scores, over all structures."""
    scaled = tuple(dataclasses.replace(item, scores=deviation * item.scores) for item in problem.instances)
    entropies = []
    for item in scaled:
        p = (SpanningTree().enumerate(tuple(item.scores.shape), dtype=torch.float64).flatten(1) @ item.scores.flatten()).softmax(0)
        entropies.append(-float(torch.special.xlogy(p, p).sum()))
    row = peakedness(dataclasses.replace(problem, instances=scaled))
    assert row["entropy"] == pytest.approx(np.mean(entropies))
    return float(np.mean(entropies))


def test_zero_gradients_count_apart_from_cosines() -> None:
    problem = load("spanning_tree_regimes", "init", instances=1, data=None)
    items = [Item(5, 0.1 * i, 0.0 if i < 3 else 0.8, i < 3, float(i)) for i in range(5)] + [Item(5, None, 0.0, True, None)]
    row = ranking(problem, items)
    assert (row["ste: cosine, median"], row["of those not 0"], row["ste is 0"]) == (0.0, 0.8, pytest.approx(4 / 6))
    assert row["attention: relative bias, median"] == pytest.approx(0.2)
    assert (row["reinforce: log₁₀ variance, median"], row["90 %"]) == (2.0, pytest.approx(3.6))
    assert row["items"] == 6


def test_the_command_needs_a_folder(monkeypatch, capsys) -> None:
    monkeypatch.setattr(training_stages, "default_data", lambda: None)
    with pytest.raises(SystemExit):
        main([])
    assert "no folder of real score files was found; give one with --data, or set STRUCTGRAD_DATA" in capsys.readouterr().err


def test_the_command_prints_three_tables(monkeypatch, capsys, folder: str) -> None:
    monkeypatch.setattr(training_stages, "PEAKED", {NAME: 12})
    main(["--data", folder, "--instances", "3"])
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.splitlines()[0].split("|")[2:4] for table in tables] == [[" stage ", " items "]] * 3
    assert [len(table.splitlines()) for table in tables] == [6, 6, 6]


REAL = next(
    (
        folder
        for folder in (Path(os.environ.get("STRUCTGRAD_DATA") or ROOT / "data/scores"), ROOT.parent / "shared/data/scores")
        if (folder / f"{NAME}.npz").is_file()
    ),
    None,
)


@pytest.mark.skipif(REAL is None, reason="the real score files are in none of $STRUCTGRAD_DATA, data/scores and ../shared/data/scores")
def test_real_scores_behave_as_the_whole_sets_do() -> None:
    """Twenty-four items; all 200 give 0.21 and 0.96, 0.26 and 0.71, 0.13 and 0.77."""
    _, longer = ranked(str(REAL), instances=24)
    by_stage = {row["stage"]: row for row in longer}
    assert by_stage["init"]["attention: relative bias, median"] < 0.35
    assert by_stage["final"]["attention: relative bias, median"] > 0.7
    assert by_stage["init"]["ste is 0"] < 0.3
    assert by_stage["final"]["ste is 0"] > 0.5
    assert by_stage["final"]["90 %"] > 2.5
    assert by_stage["init"]["90 %"] < 2
