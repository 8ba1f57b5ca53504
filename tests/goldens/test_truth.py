"""Truths beyond enumeration, shipped problems, score files and refusals, compared with ``truth.json``; run this file to write it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ORACLES
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES, PROBLEMS, from_file, load, make_loss, sized_name, stages_of
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.truth.closed_form import analytic_truth, unknown_because
from tests.goldens.comparing import differences

GOLDEN = Path(__file__).with_suffix("").with_name("truth.json")

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


def large() -> dict[str, Any]:
    found = {}
    for name in LARGE:
        problem = load(name, "init", instances=1, data=None)
        for loss in ("linear", "quadratic", "hamming", "exact_match", "f1", "mlp"):
            scores = problem.instances[0].scores
            made = make_loss(loss, problem.oracle.argmax(scores), problem.oracle, seed=3)
            reason = unknown_because(made, problem.oracle, scores)
            truth = None if reason else analytic_truth(made, problem.oracle, scores)
            found[f"{name} {loss}"] = reason or None
            if truth is not None:
                assert not truth.error > 1e-6 * (1 + float(truth.gradient.norm())), truth.error
                scalars = [truth.value, truth.loss_variance, truth.log_partition, truth.entropy, truth.support, truth.kurtosis_along]
                found[f"{name} {loss}"] = [truth.method, *scalars, *_numbers(truth.gradient), *_numbers(truth.marginals)]
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
        "large": large(),
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
