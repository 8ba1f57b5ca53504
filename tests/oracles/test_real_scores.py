"""Scores of trained models: the best structure is at least as good as the gold one, whose probability is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Constituency, ProjectiveTree, ShiftReduce, SpanningTree, kernels

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "data/scores", ROOT / "shared/data/scores", ROOT.parent / "shared/data/scores")

Data = dict[str, Tensor]
Case = tuple[Any, str, tuple[str, ...], Callable[[Data, str], tuple[Tensor, Tensor]]]
"""An oracle, a file, the kinds of its scores, and what gives scores and gold structures (0 in padding)."""


def heads(data: Data, kind: str) -> tuple[Tensor, Tensor]:
    gold = data["gold_heads"].long()
    inside = torch.nn.functional.pad(torch.arange(gold.shape[1]) < data["length"].unsqueeze(1), (1, 0))
    return data[f"arc_{kind}"], SpanningTree.structure(gold.clamp(min=0), torch.float64) * inside.unsqueeze(1)


def spans(data: Data, kind: str) -> tuple[Tensor, Tensor]:
    gold, length = data["gold_binary"].double(), data["length"].unsqueeze(1)
    tokens = (torch.arange(gold.shape[1]) < length).double() - gold.diagonal(dim1=1, dim2=2)
    return data[f"span_{kind}"], gold + torch.diag_embed(tokens)


def actions(data: Data, kind: str) -> tuple[Tensor, Tensor]:
    scores = data[f"action_{kind}"]
    gold = torch.zeros(scores.shape, dtype=torch.float64)
    for row, (taken, length) in enumerate(zip(data["gold_actions"].tolist(), data["length"].tolist(), strict=True)):
        gold[row, : length + 1, : length + 1] = ShiftReduce.structure(torch.tensor(taken[: 2 * length - 1]), torch.float64)
    return scores, gold


def matches(data: Data, kind: str) -> tuple[Tensor, Tensor]:
    gold, scores = data["gold_permutation"].long(), data[f"score_{kind}"]
    return scores, torch.nn.functional.one_hot(gold.clamp(min=0), scores.shape[-1]).double() * (gold >= 0).unsqueeze(-1)


def paths(data: Data, kind: str) -> tuple[Tensor, Tensor]:
    """The best known path where there is no gold one."""
    gold = torch.where(data["has_gold"].bool().reshape(-1, 1, 1), data["gold_path"].double(), data["best_path"].double())
    return Alignment.from_costs(data["cost"].double(), float(kind)), gold


STAGES = ("small early", "small final", "large early", "large final")
CASES: dict[str, Case] = {
    "spanning tree": (SpanningTree(), "dependency_en_ewt", ("small init", *STAGES), heads),
    "projective tree": (ProjectiveTree(), "dependency_en_ewt", STAGES, heads),
    "constituency": (Constituency(), "binary_trees_listops", ("small init", *STAGES), spans),
    "shift-reduce": (ShiftReduce(), "shift_reduce_listops", ("small init", *STAGES), actions),
    "assignment": (Assignment(), "assignment_alibi_fr_en", ("small init", "small early", "small final"), matches),
    "alignment": (Alignment(), "dtw_speech", ("small 1.0", "small 0.1", "large 1.0", "large 0.1"), paths),
}


@cache
def data_of(file: str, size: str) -> Data:
    path = next((folder / f"{file}.npz" for folder in FOLDERS if (folder / f"{file}.npz").exists()), None)
    if path is None:
        pytest.skip("the score files are not here")
    with np.load(path, allow_pickle=False) as arrays:
        found = {name.removeprefix(f"{size}_"): arrays[name] for name in arrays.files if name.startswith(f"{size}_")}
    return {name: torch.from_numpy(array) for name, array in found.items() if array.dtype.kind in "biuf"}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (_, _, kinds, _) in CASES.items() for kind in kinds])
def test_nothing_is_better_than_the_best_and_the_sum_of_all_is_more(name: str, kind: str) -> None:
    oracle, file, _, read = CASES[name]
    size, stage = kind.split()
    data = data_of(file, size)
    scores, gold = read(data, stage)
    rows = data["gold_projective"].bool() if name == "projective tree" else torch.ones(len(scores), dtype=torch.bool)
    scores, gold, lengths = scores[rows].double(), gold[rows], data["length"][rows].long()
    best = oracle.argmax(scores, lengths=lengths)
    totals = [torch.where(z != 0, scores, 0).flatten(1).sum(1) for z in (best, gold)]
    assert bool((totals[0] >= totals[1] - 1e-9).all())
    log_prob = oracle.log_prob(gold, scores, lengths=lengths)
    assert bool(((log_prob > -math.inf) & (log_prob <= 1e-9)).all())
    log_partition = oracle.log_partition(scores, lengths=lengths)
    assert bool((log_partition >= totals[0] - 1e-9).all())
    with kernels.disabled():
        torch.testing.assert_close(log_partition, oracle.log_partition(scores, lengths=lengths), rtol=1e-12, atol=1e-10)
    if name == "alignment":  # whose best paths are known
        known = torch.where(data["best_path"] != 0, scores, 0).flatten(1).sum(1)
        torch.testing.assert_close(totals[0], known, rtol=1e-6, atol=1e-6)
    if kind == "small final" and name == "assignment":  # the published share of items whose best permutation is the gold one
        assert (best == gold).flatten(1).all(1).double().mean().item() == pytest.approx(0.84, abs=0.005)
    if name == "shift-reduce":  # whose scores are the logarithms of a policy
        torch.testing.assert_close(log_partition, torch.zeros_like(log_partition), rtol=0, atol=2e-5)
        local = ShiftReduce("local").marginals(scores, lengths=lengths)
        torch.testing.assert_close(oracle.marginals(scores, lengths=lengths), local, rtol=0, atol=2e-5)
