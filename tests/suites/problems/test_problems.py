import math
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ORACLES, ShiftReduce
from structgrad.suites.base import Problem
from structgrad.suites.problems import (
    BUILT_IN_PROBLEMS,
    ENTROPY_STAGES,
    OWN_LOSS,
    REAL_PROBLEMS,
    STAGES,
    available,
    default_data,
    load,
    stages_of,
    with_loss,
)

ROOT = Path(__file__).resolve().parents[3]
DATA = next(
    (
        folder
        for folder in (Path(os.environ.get("STRUCTGRAD_DATA") or ROOT / "data/scores"), ROOT.parent / "shared/data/scores")
        if available(str(folder))[0] in REAL_PROBLEMS
    ),
    None,
)
needs_data = pytest.mark.skipif(
    DATA is None, reason="the real score files are in none of $STRUCTGRAD_DATA, data/scores and ../shared/data/scores"
)

built_in = pytest.mark.parametrize("name", BUILT_IN_PROBLEMS)

_STATISTICS = """
assignment_alibi_fr_en 200 4.8322 4.804 4.791 0.738 -4.691 -4.416 -0.557
binary_trees_listops 150 4.9209 4.919 1.732 0.001 -4.966 -1.057 -0.0
categorical_fsdd 60 2.3026 2.279 2.205 0.259 -2.311 -1.776 -0.169
dependency_en_ewt 200 4.6329 4.631 4.351 0.779 -4.602 -3.869 -1.526
dependency_en_ewt_projective 200 3.6189 3.616 3.285 0.543 -3.586 -2.867 -1.406
shift_reduce_listops 150 4.9209 4.548 4.639 0.128 -4.962 -4.071 -0.021
subset_fsdd_downstream 60 5.3936 5.367 5.018 1.869
tagging_coarse5 200 6.5424 6.516 5.884 0.973 -6.473 -4.852 -0.84
tagging_ner_bio3 200 5.1580 5.143 5.088 0.935 -5.226 -4.815 -1.581
tagging_upos17 150 8.4052 8.386 7.766 1.769 -8.41 -6.689 -1.578
"""
"""Items, mean log count; mean entropy in nats and mean log-probability of gold at init, early, final. Those of the projective trees were
computed here, the others came with the files."""

_ROWS = {name: [float(value) for value in values] for name, *values in (line.split() for line in _STATISTICS.strip().splitlines())}
ITEMS = {name: int(row[0]) for name, row in _ROWS.items()} | {"dtw_speech": 180}
MEAN_LOG_COUNTS = {name: row[1] for name, row in _ROWS.items()} | {"dtw_speech": 6.8979}
REAL_ENTROPIES = {name: dict(zip(STAGES, row[2:5], strict=True)) for name, row in _ROWS.items()}
REAL_ENTROPIES["dtw_speech"] = {"gamma=1": 5.934, "gamma=0.1": 1.058}
GOLD_LOG_PROBABILITIES = {name: dict(zip(STAGES, row[5:], strict=True)) for name, row in _ROWS.items() if len(row) > 5}

REAL_OF_ORACLE = {
    "linear_chain": "tagging_coarse5",
    "alignment": "dtw_speech",
    "subset": "subset_fsdd_downstream",
    "constituency": "binary_trees_listops",
    "projective_tree": "dependency_en_ewt_projective",
}


def real_like(name: str) -> str:
    """The real problem whose entropies a built-in one states to have; empty if it states none."""
    like = BUILT_IN_PROBLEMS[name].partition("as peaked as those of ")[2]
    return "shift_reduce_listops" if name == "policy_regimes" else REAL_OF_ORACLE.get(like, like)


@cache
def load_built_in(name: str, stage: str, instances: int = 4, loss: str = OWN_LOSS, **options: Any) -> Problem:
    return load(with_loss(name, loss), stage, instances=instances, data=None, **options)


@lru_cache(maxsize=12)
def listed(oracle: Any, event: tuple[int, ...]) -> Tensor:
    structures: Tensor = oracle.enumerate(event, dtype=torch.float64)
    return structures


def all_structures(problem: Problem, scores: Tensor) -> Tensor:
    return listed(problem.oracle, tuple(scores.shape))


def gibbs(problem: Problem, scores: Tensor) -> Tensor:
    """Probabilities by brute force over all structures."""
    return (all_structures(problem, scores).flatten(1) @ problem.oracle.natural_parameters(scores).flatten()).softmax(0)


def entropy(problem: Problem, scores: Tensor) -> float:
    probabilities = gibbs(problem, scores)
    return -float(torch.special.xlogy(probabilities, probabilities).sum())


# Built-in regimes.


def test_every_structure_has_a_built_in_problem() -> None:
    problems = {name: load_built_in(name, "init", 1) for name in BUILT_IN_PROBLEMS}
    # A tied chain has the laws of `chain_regimes` under other parameters: its problems are named by their size.
    assert {problem.oracle.name for problem in problems.values()} == set(ORACLES) - {"tied_chain"}
    assert load_built_in("tied_chain[n=4,t=3]", "init", 1).oracle.name == "tied_chain"
    assert problems["policy_regimes"].oracle == ShiftReduce("local")


@built_in
@pytest.mark.parametrize("stage", [*STAGES, *ENTROPY_STAGES, "h=0.55"])
def test_entropies_are_those_of_the_stage_or_of_real_models(name: str, stage: str) -> None:
    """Those of real models agree to the three digits of the exact statistics of the real sets."""
    share, precision = float(stage.partition("=")[2] or 0), 1e-6
    if stage in STAGES:
        nats, precision = {**REAL_ENTROPIES[real_like(name)]}, 1e-3
        if real_like(name) == "dtw_speech":
            nats |= {"init": nats["gamma=1"], "final": nats["gamma=0.1"], "early": (nats["gamma=1"] + nats["gamma=0.1"]) / 2}
        share = nats[stage] / MEAN_LOG_COUNTS[real_like(name)]
    problem = load_built_in(name, stage)
    for instance in problem.instances:
        log_count = math.log(problem.oracle.count(tuple(instance.scores.shape)))
        assert entropy(problem, instance.scores) / log_count == pytest.approx(share, abs=precision)


@built_in
def test_instances_depend_neither_on_their_number_nor_losses_on_the_stage(name: str) -> None:
    first: list[Any] = []
    for stage in (*STAGES, "h=0.4"):
        four, eight = load_built_in(name, stage, 4), load_built_in(name, stage, 8)
        for i, (few, many) in enumerate(zip(four.instances, eight.instances, strict=False)):
            z = all_structures(four, few.scores)[:50]
            assert few.name == many.name
            assert torch.equal(few.scores, many.scores)
            assert torch.equal(few.loss(z), many.loss(z))
            if stage != STAGES[0]:
                assert torch.equal(few.loss(z), first[i].loss(z))
                assert not torch.equal(few.scores, first[i].scores)
        first = first or list(four.instances)


# Names, folders and their messages.


def test_default_folders_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("STRUCTGRAD_DATA", raising=False)
    assert default_data() is None
    for folder, expected in ((tmp_path / "shared/data/scores", "../shared/data/scores"), (work / "data/scores", "./data/scores")):
        folder.mkdir(parents=True)
        assert default_data() == expected
    for chosen, expected in (("", "./data/scores"), (str(tmp_path), str(tmp_path))):
        monkeypatch.setenv("STRUCTGRAD_DATA", chosen)
        assert default_data() == expected
    monkeypatch.setenv("STRUCTGRAD_DATA", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"STRUCTGRAD_DATA is '.*none', which is no folder; set it to the folder of the score files, or"):
        default_data()


# Real sets.


@needs_data
@pytest.mark.parametrize("name", REAL_PROBLEMS)
def test_exact_statistics_of_the_whole_sets(name: str) -> None:
    """Mean entropy and mean log-probability of gold, against the statistics that came with the files."""
    for stage in stages_of(name):
        problem = load(with_loss(name, "hamming"), stage, instances=ITEMS[name], data=str(DATA))
        oracle: Any = problem.oracle
        assert len({instance.name for instance in problem.instances}) == ITEMS[name]
        assert np.mean([float(oracle.entropy(item.scores)) for item in problem.instances]) == pytest.approx(
            REAL_ENTROPIES[name][stage], abs=6e-4
        )
        golds: Any = [(item.loss.gold, item.scores) for item in problem.instances]  # type: ignore[attr-defined]
        assert all(torch.equal(oracle.argmax(2 * gold - 1), gold) for gold, _ in golds)
        if name in GOLD_LOG_PROBABILITIES:
            found = [float(oracle.log_prob(gold, scores)) for gold, scores in golds]
            assert np.mean(found) == pytest.approx(GOLD_LOG_PROBABILITIES[name][stage], abs=6e-4)


# A user's own file.


# Structures named by their sizes.
