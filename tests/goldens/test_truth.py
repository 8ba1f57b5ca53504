"""Exact truths, replayed moments, names and refusals, compared with ``truth.json``; run this file to write it again."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import CONTENDERS, Gumbel, LeaveOneOut, Reinforce, VarGrad, make_estimator
from structgrad.oracles import ORACLES
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES, PROBLEMS, from_file, load, make_loss, sized_name, stages_of
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.closed_form import analytic_truth, unknown_because
from structgrad.suites.truth.enumeration import geometry
from structgrad.suites.truth.references import own_reference, perturbed_reference, relaxed_gradient
from structgrad.suites.truth.replay import draws_of, replay, replay_outside, replay_samples
from tests.goldens.comparing import differences

GOLDEN = Path(__file__).with_suffix("").with_name("truth.json")

SIZED = (
    "categorical[n=4]", "categories[n=3,t=3]", "subset[n=6,k=2]", "linear_chain[n=3,t=3]", "tied_chain[n=3,t=2]", "alignment[n=4,m=3]",
    "constituency[n=5]", "projective_tree[n=4]", "spanning_tree[n=4]", "assignment[n=4]", "shift_reduce[n=5]",
    "shift_reduce[n=5,normalization=local]", "spanning_tree[n=4,single_root=True]",
)  # fmt: skip
DERIVED = ("ctc_regimes", "edit_alignment_regimes", "labelled_constituency_regimes", "second_order_chain_regimes", "semi_markov_regimes")
LARGE = (
    "subset[n=100,k=50]",
    "linear_chain[n=40,t=5]",
    "spanning_tree[n=20]",
    "assignment[n=14]",
    "shift_reduce[n=30]",
    "alignment[n=30,m=30]",
)


def _numbers(tensor: Tensor) -> list[float]:
    """The norm, and two inner products that depend on the order of the entries."""
    flat = tensor.detach().double().flatten()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    return [float(flat.norm()), float(flat @ places.sin()), float(flat @ places.cos())]


def _truth(truth: Any, error: float = 1e-9) -> list[Any]:
    assert not truth.error > error * (1 + float(truth.gradient.norm())), truth.error
    scalars = [truth.value, truth.loss_variance, truth.log_partition, truth.entropy, truth.support, truth.kurtosis_along]
    kurtosis = torch.where(truth.kurtosis.isfinite(), truth.kurtosis, 0)
    return [truth.method, *scalars, *_numbers(truth.gradient), *_numbers(truth.marginals), _numbers(kurtosis)[0]]


def truths() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*SIZED, *DERIVED):
        for stage in ("final", "h=0.02"):
            problem = load(name, stage, instances=1, data=None)
            scores, gold = problem.instances[0].scores, problem.oracle.argmax(problem.instances[0].scores)
            for loss in LOSSES:
                if loss != "downstream":
                    made = make_loss(loss, gold, problem.oracle, seed=3)
                    key = f"{name} {stage} {loss}"
                    if stage == "final" or loss in ("linear", "f1", "mlp"):
                        found[key] = _truth(exact_truth(made, problem.oracle, scores))
                    closed = analytic_truth(made, problem.oracle, scores)
                    found[f"{key} closed"] = None if closed is None else _truth(closed)
    problem = load("spanning_tree[n=4]", "final", instances=1, data=None)
    scores = problem.instances[0].scores.clone()
    scores[1, 2] = scores[3, 1] = -math.inf
    for loss in ("mlp", "hamming", "quadratic", "f1"):
        made = make_loss(loss, problem.oracle.argmax(scores), problem.oracle, seed=1)
        found[f"forbidden {loss}"] = (
            _truth(exact_truth(made, problem.oracle, scores)),
            _truth(analytic_truth(made, problem.oracle, scores)) if loss != "mlp" else None,
        )
    return found


def large() -> dict[str, Any]:
    found = {}
    for name in LARGE:
        problem = load(name, "init", instances=1, data=None)
        for loss in ("linear", "quadratic", "hamming", "exact_match", "f1", "mlp"):
            scores = problem.instances[0].scores
            made = make_loss(loss, problem.oracle.argmax(scores), problem.oracle, seed=3)
            reason = unknown_because(made, problem.oracle, scores)
            truth = None if reason else analytic_truth(made, problem.oracle, scores)
            found[f"{name} {loss}"] = reason or (None if truth is None else _truth(truth, 1e-6)[:-1])
    return found


def _summary(summary: Any) -> list[float] | None:
    if summary is None:
        return None
    return [*_numbers(summary.error), *_numbers(summary.trace), *_numbers(summary.informed)]


def replays() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("categorical[n=4]", "subset[n=5,k=2]", "linear_chain[n=2,t=3]", "shift_reduce[n=3,normalization=local]"):
        problem = load(f"{name}@quadratic", "final", instances=1, data=None)
        (instance,), oracle = problem.instances, problem.oracle
        target = Target(oracle, instance.loss, instance.scores, exact_truth(instance.loss, oracle, instance.scores))
        metric = geometry(oracle, instance.scores, target.truth)
        information = None if metric is None else metric.information
        event = tuple(instance.scores.shape)
        for called in CONTENDERS:
            estimator = make_estimator(called)
            key = f"{name} {called}"
            if estimator.deterministic or estimator.objective == "supervised" or estimator.incompatibility(oracle, event) is not None:
                continue
            found[f"{key} draws"] = drawn = draws_of(estimator, oracle, instance.loss, instance.scores)
            if drawn is not None and drawn[1] == 0 and target.truth.count ** drawn[0] < 5_000:
                found[key] = _summary(replay(estimator, target, drawn[0], information))
            elif drawn is not None and drawn[1] > 0 and drawn[0] == 0:
                found[key] = _summary(replay_outside(estimator, target, drawn[1], 10_000, information))
        for estimator in (LeaveOneOut(num_samples=16), VarGrad(num_samples=5), Reinforce(num_samples=4), make_estimator("ste_sample")):
            found[f"{name} {estimator} samples"] = _summary(
                replay_samples(estimator, target, getattr(estimator, "num_samples", 3), 10_000, information)
            )
    return found


def references() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("categorical[n=4]", "subset[n=5,k=2]", "categories[n=2,t=3]"):
        problem = load(f"{name}@quadratic", "final", instances=1, data=None)
        (instance,), oracle = problem.instances, problem.oracle
        relaxed = relaxed_gradient(oracle, instance.loss, instance.scores)
        perturbed = perturbed_reference(oracle, instance.loss, instance.scores, Gumbel(), replicates=1024, key=("golden",))
        for kind, one in (("relaxed", relaxed), ("perturbed", perturbed)):
            found[f"{name} {kind}"] = [one.method, one.replicates, one.value, one.noise, *_numbers(one.gradient)]
    for name in ("reinforce", "structured_attention", "ste", "imle", "sparsemap", "gumbel_softmax"):
        with contextlib.suppress(ValueError):
            found[name] = own_reference(make_estimator(name))
    return found


def names() -> dict[str, Any]:
    found: dict[str, Any] = {"problems": PROBLEMS, "losses": list(LOSSES), "oracles": list(ORACLES)}
    for name in BUILT_IN_PROBLEMS:
        found[name] = stages_of(name)
        for stage in ("init", "early", "final", "h=0.4"):
            problem = load(name, stage, instances=1, data=None)
            (instance,) = problem.instances
            best = problem.oracle.argmax(instance.scores)
            found[f"{name} {stage}"] = [repr(problem.oracle), problem.source, instance.name, instance.loss.name]
            found[f"{name} {stage}"] += [*_numbers(instance.scores), float(instance.loss(best.double()))]
    for name in (
        "subset[k=5, length=10]", "subset[n=10]", "subset", "nothing[n=3]", "subset[n=10,k=x]", "subset[n=10,k=10]", "subset[n=-1,k=2]",
        "linear_chain[n=4]", "alignment[m=4,n=3]", "categorical[n=1000000]", "spanning_tree[n=3,single_root=True]", "chain_regimes@f2",
        "chain_regime", "task:nothing", "tagging_coarse5",
    ):  # fmt: skip
        found[f"load {name}"] = _refusal(lambda name=name: load(name, "final", instances=1, data=None).instances[0].name)  # type: ignore[misc]
        found[f"sized {name}"] = _refusal(lambda name=name: sized_name(name))  # type: ignore[misc]
    for stage in ("h=2", "middle", "gamma=1"):
        found[f"stage {stage}"] = _refusal(lambda stage=stage: load("subset_regimes", stage, instances=1, data=None))  # type: ignore[misc]
    return found


def _refusal(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except ValueError as error:
        return f"refused: {error}"


def files(folder: Path) -> dict[str, Any]:
    """Good and bad score files: the problem, or the error message."""
    random = np.random.default_rng(0)
    chain = {
        "unary": random.normal(size=(3, 4, 3)),
        "pairs": random.normal(size=(3, 3)),
        "tags": random.integers(0, 3, (3, 4)),
        "words": np.array([4, 2, 3]),
    }
    tree = {"arcs": random.normal(size=(2, 4, 4)), "heads": np.eye(4)[None].repeat(2, 0), "words": np.array([3, 4])}
    spans = {"scores": random.normal(size=(2, 5, 5)), "words": np.array([4, 2])}
    logits = {"scores": random.normal(size=(3, 6)), "gold": np.array([1, 2, 5])}
    tables: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "chain": (chain, {"scores": "unary", "transition": "pairs", "gold": "tags", "lengths": "words"}),
        "chain alone": (chain, {"scores": "unary"}),
        "spans": (spans, {"oracle": "constituency", "lengths": "words"}),
        "costs": (logits, {"oracle": "categorical", "gold": "gold", "meaning": "cost", "temperature": 2.0}),
        "subset": (logits, {"oracle": "subset[k=2]", "loss": "f1", "instances": 2}),
        "bad key": (chain, {"scores": "unaries"}),
        "bad transition": (chain, {"scores": "unary", "transition": "tags"}),
        "no unary": (logits, {"oracle": "categorical", "transition": "gold"}),
        "bad gold": (chain, {"scores": "unary", "gold": "pairs"}),
        "gold no structure": (tree, {"oracle": "spanning_tree", "scores": "arcs", "gold": "heads"}),
        "gold index": ({**logits, "gold": np.array([1, 2, 6])}, {"oracle": "categorical", "gold": "gold"}),
        "bad lengths": ({**chain, "words": np.array([4, 9, 3])}, {"scores": "unary", "lengths": "words"}),
        "float lengths": ({**chain, "words": np.array([4.0, 2, 3])}, {"scores": "unary", "lengths": "words"}),
        "nan": ({"scores": np.array([[1.0, np.nan]])}, {"oracle": "categorical"}),
        "infinite": ({"scores": np.array([[1.0, np.inf]])}, {"oracle": "categorical"}),
        "text": ({"scores": np.array([["a", "b"]])}, {"oracle": "categorical"}),
        "forbidden": ({"scores": np.full((1, 3), -np.inf)}, {"oracle": "categorical"}),
        "empty": ({"scores": np.zeros((0, 3))}, {"oracle": "categorical"}),
        "one dimension": ({"scores": np.zeros(3)}, {"oracle": "categorical"}),
        "not square": ({"scores": np.zeros((1, 3, 4))}, {"oracle": "spanning_tree"}),
        "object": ({"scores": np.array([{}], dtype=object)}, {"oracle": "categorical"}),
        "unknown oracle": (logits, {"oracle": "categorial"}),
        "oracle with size": (logits, {"oracle": "categorical[n=6]"}),
        "tied": (chain, {"oracle": "tied_chain", "scores": "unary"}),
        "unknown loss": (logits, {"oracle": "categorical", "loss": "f2"}),
        "downstream": (logits, {"oracle": "categorical", "loss": "downstream"}),
        "instances": (logits, {"oracle": "categorical", "instances": 9}),
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, (arrays, options) in tables.items():
        path = folder / "own.npz"
        np.savez(path, **arrays)
        try:
            problem = from_file(ScoreFile(str(path), **options))
            best = [problem.oracle.argmax(one.scores).double() for one in problem.instances]
            values = [float(one.loss(z)) for one, z in zip(problem.instances, best, strict=True)]
            found[name] = [problem.name, problem.stage, repr(problem.oracle), [_numbers(one.scores) for one in problem.instances], values]
        except ValueError as error:
            found[name] = str(error).replace(str(folder), "")
    for name, content in (("cut.npz", b"PK"), ("a.pt", b""), ("none.npz", None)):
        if content is not None:
            (folder / name).write_bytes(content)
        found[name] = _refusal(lambda name=name: from_file(ScoreFile(str(folder / name)))).replace(str(folder), "")  # type: ignore[misc]
    for options in ({"meaning": "costs"}, {"temperature": 0.0}):
        found[str(options)] = _refusal(lambda options=options: ScoreFile("a.npz", **options))  # type: ignore[misc]
    return found


def measured(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {
        "truths": truths(),
        "large": large(),
        "replays": replays(),
        "references": references(),
        "names": names(),
        "files": files(folder),
    }
    return dict(json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.12g}")))


@pytest.mark.filterwarnings("ignore")
def test_truths_are_as_they_were(tmp_path: Path) -> None:
    found = list(differences(json.loads(GOLDEN.read_text()), measured(tmp_path), absolute=0.0, of_list=1e-10))
    assert not found, "\n".join(found[:40])


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        GOLDEN.write_text(json.dumps(measured(Path(scratch)), separators=(",", ":")).replace('],"', '],\n"'))
