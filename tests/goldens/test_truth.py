"""Truths beyond enumeration, shipped problems and refusals, compared with ``truth.json``; run this file to write it again."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ORACLES
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES, PROBLEMS, load, make_loss, sized_name, stages_of
from structgrad.suites.truth.closed_form import analytic_truth, unknown_because

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


def differences(old: Any, new: Any, place: str = "", error: float = 0.0) -> Iterator[str]:
    """Places in which two trees of JSON differ; numbers of a list up to 1e-10 of its largest."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        error = 1e-10 * max((abs(one) for one in old if isinstance(one, float) and math.isfinite(one)), default=0.0)
        for position, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}/{position}", error)
    elif not (isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-9, abs_tol=error)) and repr(
        old
    ) != repr(new):
        yield f"{place}: {old!r} -> {new!r}"


def measured() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {
        "large": large(),
        "names": names(),
    }
    return dict(json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.12g}")))


@pytest.mark.filterwarnings("ignore")
def test_truths_are_as_they_were() -> None:
    found = list(differences(json.loads(GOLDEN.read_text()), measured()))
    assert not found, "\n".join(found[:40])


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(measured(), separators=(",", ":")).replace('],"', '],\n"'))
