from __future__ import annotations

import math
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset
from structgrad.suites.base import Problem
from structgrad.suites.problems import named as problems
from structgrad.suites.problems.losses import Downstream, LowRankQuadratic
from structgrad.suites.problems.named import (
    BUILT_IN_PROBLEMS,
    PROBLEMS,
    REAL_PROBLEMS,
    STAGES,
    available,
    default_data,
    from_file,
    load,
)
from structgrad.suites.problems.score_files import ScoreFile

ROOT = Path(__file__).resolve().parents[2]
DATA = next(
    (folder for folder in (ROOT / "data/scores", ROOT.parent / "shared/data/scores") if available(str(folder))[0] in REAL_PROBLEMS), None
)
needs_data = pytest.mark.skipif(DATA is None, reason="the real score files are in neither data/scores nor ../shared/data/scores")

built_in = pytest.mark.parametrize("name", BUILT_IN_PROBLEMS)
stages = pytest.mark.parametrize("stage", STAGES)

ENTROPIES = {
    "categorical_regimes": {"init": 0.990, "early": 0.957, "final": 0.112},
    "subset_regimes": {"init": 0.995, "early": 0.931, "final": 0.347},
    "chain_regimes": {"init": 0.99597, "early": 0.89937, "final": 0.14872},
}


def load_built_in(name: str, stage: str, instances: int = 4, **options: Any) -> Problem:
    return load(name, stage, instances=instances, data=None, **options)


def load_real(name: str, stage: str, instances: int, **options: Any) -> Problem:
    return load(name, stage, instances=instances, data=str(DATA), **options)


def all_structures(problem: Problem, scores: Tensor) -> Tensor:
    return listed(problem.oracle, tuple(scores.shape))


@lru_cache(maxsize=12)
def listed(oracle: Any, event: tuple[int, ...]) -> Tensor:
    structures: Tensor = oracle.enumerate(event, dtype=torch.float64)
    return structures


def gibbs(problem: Problem, scores: Tensor) -> Tensor:
    """Probabilities by brute force over all structures."""
    return (all_structures(problem, scores).flatten(1) @ scores.flatten()).softmax(0)


def entropy(problem: Problem, scores: Tensor) -> float:
    probabilities = gibbs(problem, scores)
    return -float(torch.special.xlogy(probabilities, probabilities).sum())


def best_loss(problem: Problem, index: int) -> float:
    instance = problem.instances[index]
    return float(instance.loss(all_structures(problem, instance.scores)).min())


# Built-in regimes.


@built_in
@stages
def test_entropies_match_those_of_real_models(name: str, stage: str) -> None:
    problem = load_built_in(name, stage)
    for instance in problem.instances:
        log_count = math.log(problem.oracle.count(tuple(instance.scores.shape)))
        assert entropy(problem, instance.scores) / log_count == pytest.approx(
            ENTROPIES[name][stage], abs=1e-6 if name != "chain_regimes" else 1e-5
        )


@stages
def test_the_entropies_of_chains_come_from_nats_and_mean_length(stage: str) -> None:
    nats = {"init": 6.516, "early": 5.884, "final": 0.973}[stage]
    problem = load_built_in("chain_regimes", stage)
    for length, instance in zip((3, 4, 5, 6), problem.instances, strict=True):
        assert entropy(problem, instance.scores) == pytest.approx(nats * length / 4.065, abs=1e-6)


@built_in
def test_sizes_and_names(name: str) -> None:
    problem = load_built_in(name, "early", 5)
    events = {"categorical_regimes": [(10,)] * 5, "subset_regimes": [(12,)] * 5, "chain_regimes": [(n, 5, 5) for n in (3, 4, 5, 6, 3)]}
    assert [tuple(instance.scores.shape) for instance in problem.instances] == events[name]
    assert [instance.name for instance in problem.instances] == [f"{name}-{i}" for i in range(5)]
    assert (problem.name, problem.stage, problem.source) == (name, "early", "built-in")
    assert problem.oracle == {"categorical_regimes": Categorical(), "subset_regimes": Subset(3), "chain_regimes": LinearChain()}[name]


@pytest.mark.parametrize(
    ("name", "loss"),
    [("categorical_regimes", "mlp"), ("subset_regimes", "downstream"), ("chain_regimes", "quadratic")],
)
def test_default_losses(name: str, loss: str) -> None:
    assert {instance.loss.name for instance in load_built_in(name, "init").instances} == {loss}


@built_in
@pytest.mark.parametrize("loss", ["linear", "squared_distance", "quadratic", "hamming", "f1", "mlp", "black_box"])
def test_every_other_loss_can_be_asked_for(name: str, loss: str) -> None:
    (instance,) = load_built_in(name, "final", 1, loss=loss).instances
    assert instance.loss.name == loss
    assert instance.loss(instance.scores.expand(3, *instance.scores.shape)).shape == (3,)


@built_in
def test_scores_are_float64_on_the_cpu_and_ignored_entries_are_zero(name: str) -> None:
    problem = load_built_in(name, "final")
    for instance in problem.instances:
        assert (instance.scores.dtype, instance.scores.device.type) == (torch.float64, "cpu")
        assert bool((instance.scores[~problem.oracle.read_mask(tuple(instance.scores.shape))] == 0).all())


@built_in
@stages
def test_an_instance_does_not_depend_on_how_many_are_loaded(name: str, stage: str) -> None:
    four, eight = load_built_in(name, stage, 4), load_built_in(name, stage, 8)
    for few, many in zip(four.instances, eight.instances, strict=False):
        assert few.name == many.name
        assert torch.equal(few.scores, many.scores)
        z = all_structures(four, few.scores)[:50]
        assert torch.equal(few.loss(z), many.loss(z))


@built_in
def test_a_stage_changes_scores_alone(name: str) -> None:
    by_stage = [load_built_in(name, stage) for stage in STAGES]
    for init, early, final in zip(*(problem.instances for problem in by_stage), strict=True):
        z = all_structures(by_stage[0], init.scores)[:50]
        assert torch.equal(init.loss(z), early.loss(z))
        assert torch.equal(init.loss(z), final.loss(z))
        assert not torch.equal(init.scores, early.scores)
        assert not torch.equal(early.scores, final.scores)


@built_in
def test_early_scores_lie_between_init_and_final(name: str) -> None:
    for init, early, final in zip(*(load_built_in(name, stage).instances for stage in STAGES), strict=True):
        directions = torch.stack([init.scores.flatten(), final.scores.flatten()], 1)
        weights = torch.linalg.pinv(directions) @ early.scores.flatten()
        torch.testing.assert_close(directions @ weights, early.scores.flatten())
        assert bool((weights > 0).all())


@built_in
def test_seeds_and_instances_give_different_scores_and_losses(name: str) -> None:
    first, second = load_built_in(name, "final", 5), load_built_in(name, "final", 5, seed=1)
    z = all_structures(first, first.instances[0].scores)
    for one, other in ((first.instances[0], second.instances[0]), (first.instances[0], first.instances[4])):
        assert not torch.allclose(one.scores, other.scores)
        assert not torch.allclose(one.loss(z), other.loss(z))


def test_items_of_one_shape_have_random_losses_of_their_own() -> None:
    first, *_, last = (instance.loss for instance in load_built_in("chain_regimes", "init", 5).instances)
    assert isinstance(first, LowRankQuadratic)
    assert isinstance(last, LowRankQuadratic)
    assert not torch.equal(first.matrix, last.matrix)


@built_in
def test_the_best_structure_is_gold_about_as_often_as_it_is_probable(name: str) -> None:
    problem = load_built_in(name, "final", 40, loss="hamming")
    hits = [float(instance.loss(problem.oracle.argmax(instance.scores))) == 0 for instance in problem.instances]
    probable = [float(gibbs(problem, instance.scores).max()) for instance in problem.instances]
    deviation = math.sqrt(sum(p * (1 - p) for p in probable))
    assert abs(sum(hits) - sum(probable)) < 4 * deviation
    assert 0.3 < sum(probable) / 40 < 0.97


@built_in
def test_gold_is_a_structure(name: str) -> None:
    problem = load_built_in(name, "init", loss="hamming")
    assert [best_loss(problem, i) for i in range(4)] == [0] * 4


def test_the_built_in_classifier_is_shared_and_labels_gold() -> None:
    problem, golds = load_built_in("subset_regimes", "final", 8), load_built_in("subset_regimes", "final", 8, loss="hamming")
    losses = [instance.loss for instance in problem.instances]
    for index, loss in enumerate(losses):
        assert isinstance(loss, Downstream)
        assert torch.equal(loss.weight, losses[0].weight)  # type: ignore[attr-defined]
        z = all_structures(golds, golds.instances[index].scores)
        gold = z[golds.instances[index].loss(z).argmin()]
        assert int(loss.logits(gold).argmax()) == loss.label
    assert len({loss.label for loss in losses}) > 2  # type: ignore[attr-defined]


PRINT = """
import torch
from structgrad.suites.problems import load
for name in ("categorical_regimes", "subset_regimes", "chain_regimes"):
    for instance in load(name, "early", instances=3, data=None).instances:
        z = torch.ones_like(instance.scores)
        print(instance.name, float(instance.scores.sum()).hex(), float(instance.loss(z)).hex())
"""


def test_another_process_gives_the_same_numbers() -> None:
    other = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=False)
    assert other.returncode == 0, other.stderr
    lines = []
    for name in BUILT_IN_PROBLEMS:
        for instance in load_built_in(name, "early", 3).instances:
            z = torch.ones_like(instance.scores)
            lines.append(f"{instance.name} {float(instance.scores.sum()).hex()} {float(instance.loss(z)).hex()}")
    assert other.stdout.splitlines() == lines


def test_the_scale_is_found_to_machine_precision() -> None:
    direction = torch.tensor([1.0, 0.0], dtype=torch.float64)
    probability = 0.9
    target = -probability * math.log(probability) - 0.1 * math.log(0.1)
    assert problems.entropy_scale(Categorical(), direction, target) == pytest.approx(math.log(9), rel=1e-12)


def test_an_entropy_that_no_scale_reaches_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`entropy_scale` got entropy=0\.5, which no scale of the direction reaches; expected a higher one"
    ):
        problems.entropy_scale(Categorical(), torch.zeros(3, dtype=torch.float64), 0.5)


# Names, folders and their messages.


def test_every_problem_has_one_line() -> None:
    assert list(PROBLEMS) == [*REAL_PROBLEMS, *BUILT_IN_PROBLEMS]
    assert all(line and "\n" not in line for line in PROBLEMS.values())


def test_misspelt_names_get_a_suggestion() -> None:
    with pytest.raises(ValueError, match="got the unknown problem 'chain_regime'; did you mean chain_regimes"):
        load_built_in("chain_regime", "init")
    with pytest.raises(ValueError, match="got the unknown stage 'finale'; did you mean final"):
        load_built_in("chain_regimes", "finale")
    with pytest.raises(ValueError, match="got the unknown loss 'hammin'; did you mean hamming"):
        load_built_in("chain_regimes", "init", loss="hammin")


def test_downstream_is_refused_where_there_is_none() -> None:
    with pytest.raises(ValueError, match="`make_loss` got 'downstream', which needs frames and a classifier"):
        load_built_in("chain_regimes", "init", loss="downstream")


def test_a_built_in_problem_has_at_least_one_instance() -> None:
    with pytest.raises(ValueError, match="got instances=0 of chain_regimes; expected at least 1"):
        load_built_in("chain_regimes", "init", 0)


def test_a_real_problem_without_a_folder_names_the_way_out() -> None:
    message = r"`load` got the problem 'tagging_coarse5' without a folder of score files; set STRUCTGRAD_DATA, or take one of "
    with pytest.raises(ValueError, match=message):
        load("tagging_coarse5", "init", instances=1, data=None)


def test_a_real_problem_in_the_wrong_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tagging_coarse5\.npz: no such file"):
        load("tagging_coarse5", "init", instances=1, data=str(tmp_path))


def test_a_real_file_with_other_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "categorical_fsdd.npz", scores=np.zeros(3))
    message = r"categorical_fsdd\.npz: holds no array 'id'; expected the score file of categorical_fsdd, not another one of that name"
    with pytest.raises(ValueError, match=message):
        load("categorical_fsdd", "init", instances=1, data=str(tmp_path))


def test_the_suite_is_what_the_folder_holds(tmp_path: Path) -> None:
    assert available(None) == available(str(tmp_path)) == tuple(BUILT_IN_PROBLEMS)
    for number, name in enumerate(REAL_PROBLEMS, start=1):
        (tmp_path / f"{name}.npz").touch()
        assert available(str(tmp_path)) == tuple(REAL_PROBLEMS)[:number]


def test_default_folders_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("STRUCTGRAD_DATA", raising=False)
    assert default_data() is None
    for folder, expected in (
        (tmp_path / "shared/data/scores", "../shared/data/scores"),
        (work / "data/scores", "./data/scores"),
        (tmp_path / "own", str(tmp_path / "own")),
    ):
        folder.mkdir(parents=True)
        if folder.name == "own":
            monkeypatch.setenv("STRUCTGRAD_DATA", str(folder))
        assert default_data() == expected
    monkeypatch.setenv("STRUCTGRAD_DATA", "")
    assert default_data() == "./data/scores"


def test_a_folder_that_was_asked_for_and_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTGRAD_DATA", str(tmp_path / "none"))
    with pytest.raises(
        ValueError, match=r"STRUCTGRAD_DATA is '.*none', which is no folder; set it to the folder of the score files, or unset it"
    ):
        default_data()


# Real sets.


REAL_ENTROPIES = {
    "tagging_coarse5": (6.516, 5.884, 0.973),
    "subset_fsdd_downstream": (5.367, 5.018, 1.869),
    "categorical_fsdd": (2.279, 2.205, 0.259),
}
GOLD_LOG_PROBABILITIES = {"tagging_coarse5": (-6.473, -4.852, -0.840), "categorical_fsdd": (-2.311, -1.776, -0.169)}
ITEMS = {"tagging_coarse5": 200, "subset_fsdd_downstream": 60, "categorical_fsdd": 60}


@needs_data
@pytest.mark.parametrize("name", REAL_PROBLEMS)
@stages
def test_exact_statistics_of_the_whole_sets(name: str, stage: str) -> None:
    problem = load_real(name, stage, ITEMS[name], loss="hamming")
    assert len({instance.name for instance in problem.instances}) == ITEMS[name]
    entropies, log_probabilities = [], []
    for instance in problem.instances:
        probabilities = gibbs(problem, instance.scores)
        entropies.append(-float(torch.special.xlogy(probabilities, probabilities).sum()))
        gold = instance.loss(all_structures(problem, instance.scores)).argmin()
        log_probabilities.append(float(probabilities[gold].log()))
    position = STAGES.index(stage)
    assert np.mean(entropies) == pytest.approx(REAL_ENTROPIES[name][position], abs=1e-3)
    if name in GOLD_LOG_PROBABILITIES:
        assert np.mean(log_probabilities) == pytest.approx(GOLD_LOG_PROBABILITIES[name][position], abs=1e-3)


@needs_data
@pytest.mark.parametrize("name", REAL_PROBLEMS)
def test_a_selection_of_a_real_set_is_spread_over_the_lengths(name: str) -> None:
    problem = load_real(name, "final", 10)
    lengths = [len(instance.scores) for instance in problem.instances]
    assert lengths == sorted(lengths)
    assert lengths == {"tagging_coarse5": [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]}.get(name, [lengths[0]] * 10)
    assert len({instance.name for instance in problem.instances}) == 10
    assert [instance.name for instance in load_real(name, "init", 10).instances] == [instance.name for instance in problem.instances]


@needs_data
def test_a_real_selection_of_one_is_an_item_of_middle_length() -> None:
    (instance,) = load_real("tagging_coarse5", "final", 1).instances
    assert len(instance.scores) == 4


@needs_data
@pytest.mark.parametrize("instances", [0, 61])
def test_more_instances_than_items_are_refused(instances: int) -> None:
    with pytest.raises(ValueError, match=rf"got instances={instances}; expected 1 to 60, the number of items in categorical_fsdd\.npz"):
        load_real("categorical_fsdd", "final", instances)


@needs_data
def test_the_downstream_loss_of_the_real_subsets_is_that_of_the_file() -> None:
    with np.load(DATA / "subset_fsdd_downstream.npz") as arrays:  # type: ignore[operator]
        table = {key: arrays[key] for key in arrays.files}
    position = {str(name): i for i, name in enumerate(table["small_id"])}
    for stage in STAGES:
        for instance in load_real("subset_fsdd_downstream", stage, 5).instances:
            item = position[instance.name]
            z = np.zeros(12)
            z[[1, 4, 7]] = 1
            frames = table["small_frames"][item].astype(float)
            logits = table[f"small_clf_weight_{stage}"].astype(float) @ (z @ frames / 3) + table[f"small_clf_bias_{stage}"]
            expected = math.log(sum(math.exp(logit) for logit in logits)) - logits[table["small_label"][item]]
            assert float(instance.loss(torch.from_numpy(z))) == pytest.approx(expected)


@needs_data
@pytest.mark.parametrize(
    ("name", "loss"), [("tagging_coarse5", "quadratic"), ("categorical_fsdd", "mlp"), ("subset_fsdd_downstream", "mlp")]
)
def test_real_losses_do_not_depend_on_stage_or_selection(name: str, loss: str) -> None:
    init, final = load_real(name, "init", 4, loss=loss), load_real(name, "final", ITEMS[name], loss=loss)
    by_name = {instance.name: instance for instance in final.instances}
    for instance in init.instances:
        z = all_structures(init, instance.scores)[:50]
        assert torch.equal(instance.loss(z), by_name[instance.name].loss(z))


@needs_data
def test_real_default_losses() -> None:
    found = {name: load_real(name, "init", 2).instances[0].loss.name for name in REAL_PROBLEMS}
    assert found == {"tagging_coarse5": "quadratic", "subset_fsdd_downstream": "downstream", "categorical_fsdd": "mlp"}


# A user's own file.


UNARY = np.random.default_rng(0).standard_normal((5, 6, 3))


def saved(folder: Path, **arrays: np.ndarray) -> str:
    np.savez(folder / "mine.npz", **arrays)  # type: ignore[arg-type]
    return str(folder / "mine.npz")


def test_a_file_becomes_a_problem(tmp_path: Path) -> None:
    tags = np.random.default_rng(1).integers(0, 3, (5, 6))
    path = saved(tmp_path, unary=UNARY, transition=np.eye(3), tags=tags, lengths=np.array([6, 3, 4, 2, 5]))
    problem = from_file(ScoreFile(path, scores="unary", transition="transition", gold="tags", lengths="lengths"))
    assert (problem.name, problem.stage, problem.source, problem.oracle) == ("mine", "file", "mine.npz", LinearChain())
    assert [instance.name for instance in problem.instances] == ["3", "1", "2", "4", "0"]
    assert [len(instance.scores) for instance in problem.instances] == [2, 3, 4, 5, 6]
    for instance in problem.instances:
        assert instance.scores.dtype == torch.float64
        assert isinstance(instance.loss, LowRankQuadratic)
        gold = LinearChain.structure(torch.from_numpy(tags[int(instance.name), : len(instance.scores)]), 3, torch.float64)
        assert float(instance.loss(gold)) == pytest.approx(0, abs=1e-20)


def test_without_gold_a_sample_stands_in_that_is_always_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path, scores=UNARY[0])
    first, second = (from_file(ScoreFile(path, "subset[k=2]", loss="hamming", instances=size)) for size in (6, 2))
    z = Subset(2).enumerate((3,), dtype=torch.float64)
    losses = {instance.name: instance.loss(z) for instance in first.instances}
    for instance in second.instances:
        assert torch.equal(instance.loss(z), losses[instance.name])
    assert all(sorted(values.tolist()) == [0, 1, 1] for values in losses.values())
    assert len({tuple(values.tolist()) for values in losses.values()}) > 1


def test_a_part_of_a_file_can_be_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, scores=UNARY)
    assert [instance.name for instance in from_file(ScoreFile(path, instances=2)).instances] == ["1", "3"]
    for instances in (0, 6):
        with pytest.raises(ValueError, match=rf"mine\.npz: got instances={instances}; expected 1 to 5, the number of items in mine\.npz"):
            from_file(ScoreFile(path, instances=instances))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": "scors"}, r"^\S*mine\.npz: got the unknown key 'scors'; did you mean scores"),
        ({"loss": "quadratik"}, r"^\S*mine\.npz: got the unknown loss 'quadratik'; did you mean quadratic"),
        ({"loss": "downstream"}, r"^\S*mine\.npz: `make_loss` got 'downstream', which needs frames and a classifier"),
        ({"oracle": "subset[k=9]", "scores": "flat"}, r"^\S*mine\.npz: key 'flat\[0\]' has shape \(3,\): .*expected n >= k"),
        ({"scores": "hole"}, r"^\S*mine\.npz: key 'hole\[2\]' holds nan at index \(1, 1\)"),
    ],
)
def test_every_complaint_names_the_file(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    hole = UNARY.copy()
    hole[2, 1, 1] = np.nan
    with pytest.raises(ValueError, match=message):
        from_file(ScoreFile(saved(tmp_path, scores=UNARY, flat=UNARY[0], hole=hole), **options))


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^\S*none\.npz: no such file; expected the path of an \.npz or \.safetensors file$"):
        from_file(ScoreFile(f"{tmp_path}/./none.npz"))
