"""Wrong input to a function raises one sentence: the value, and the expected ones or the remedy."""

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from structgrad import estimators, oracles
from structgrad.estimators import SUPERVISED_LOSSES, PerturbedFenchelYoung, StructuredLayer, make_estimator, train_step
from structgrad.oracles import AVAILABLE_ORACLES, SpanningTree, Subset
from structgrad.suites.audit import audit
from structgrad.suites.measures.bias import measure
from structgrad.suites.measures.cost.steps import measure_times, training_memory
from structgrad.suites.problems import load, make_loss
from structgrad.suites.problems.sized import size_names
from structgrad.suites.truth import exact_truth
from tests.reports.calling import call, refused

NAN, INF = math.nan, math.inf
SCORES, ROWS = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.zeros(2, 4)
TWO = Subset(2)


def loss(z: Any) -> Any:
    return z @ SCORES.to(z)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def gradient(name: str, loss: Any = loss, oracle: Any = TWO, scores: Any = SCORES, generator: Any = None, **more: Any) -> Any:
    return make_estimator(name).gradient(loss, oracle, scores, generator=seeded() if generator is None else generator, **more)


def without(generator: Any, name: str) -> Any:
    return make_estimator(name).gradient(loss, TWO, SCORES, generator=generator)


def loss_of_60(z: torch.Tensor) -> torch.Tensor:
    return z.sum(-1)


TREES, ARCS, GOLD = SpanningTree(), torch.zeros(2, 4, 4), SpanningTree.structure(torch.zeros(2, 3, dtype=torch.int64))

OF_SCORES: dict[str, Callable[..., Any]] = {
    **{name: getattr(TREES, name) for name in ("argmax", "marginals", "log_partition", "entropy", "feasible", "project")},
    "sample": lambda scores, **more: TREES.sample(scores, generator=seeded(), **more),
    "kbest": lambda scores, **more: TREES.kbest(scores, 2, **more),
    "log_prob": lambda scores, **more: TREES.log_prob(GOLD, scores, **more),
    "kl": lambda scores, **more: TREES.kl(scores, ARCS, **more),
    **{name: functools.partial(loss, TREES, target=GOLD) for name, loss in SUPERVISED_LOSSES.items() if "perturbed" not in name},
    "PerturbedFenchelYoung": lambda scores, **more: PerturbedFenchelYoung()(TREES, scores, GOLD, generator=seeded(), **more),
    "StructuredLayer": lambda scores, **more: StructuredLayer(TREES, "ste").eval()(scores, **more),
    "train_step": lambda scores, **more: train_step(
        StructuredLayer(TREES, "rloo"), torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), scores, lambda z: z.sum((-2, -1)), **more
    ),
    **{
        name: lambda scores, name=name, **more: StructuredLayer(TREES, name).surrogate(lambda z: z.sum((-2, -1)), scores, **more)
        for name in ("rloo", "imle", "simple", "sparsemap", "exact", "sum_and_sample", "reinforce_greedy", "perturb_and_map")
    },
}
"""Public calls that take scores of trees, by the name that their errors use."""

BAD_SCORES = {
    "nan": (ARCS * NAN, "got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part"),
    "event": (torch.zeros(2, 4, 3), "got event shape (4, 3); expected (n + 1, n + 1) for n >= 1 words"),
    "integers": (ARCS.long(), "scores"),
}


@pytest.mark.parametrize("kind", [*BAD_SCORES, "lengths"])
def test_an_error_names_what_the_user_called(kind: str) -> None:
    for called, call_with in OF_SCORES.items():
        with pytest.raises(ValueError, match=r"expected|must be") as caught:
            call_with(ARCS, lengths=torch.tensor([2, 4])) if kind == "lengths" else call_with(BAD_SCORES[kind][0])
        said = str(caught.value)
        if kind == "lengths":
            assert said == (
                "`lengths` must be between 0 and 3 for scores of shape (2, 4, 4), got 4. "
                "Dependency-tree scores have an extra row and column for the root: [*batch, n + 1, n + 1]"
            ), called
        else:
            names = {called, "rloo"} if called == "train_step" else {called}
            assert said.partition(" got ")[0].strip("`") in names, said
            assert BAD_SCORES[kind][1] in said


def test_an_error_in_your_own_loss_keeps_its_name() -> None:
    def wrong(z: Any) -> Any:
        return TREES.marginals(z * NAN).sum((-2, -1))

    for make in (lambda: gradient("rloo", wrong, TREES, ARCS), lambda: StructuredLayer(TREES, "rloo").surrogate(wrong, ARCS)):
        with pytest.raises(ValueError, match=r"^`marginals` got scores with NaN"):
            make()


FILE = Path(__file__).parent / "goldens" / "wrong_inputs.txt"
MASKS = {r"\b\d[\d.e-]* GiB": "MEMORY", r"expected one of (\w+), .* and \d+ more": r"expected one of \1, … more"}
CALLS = dict(re.findall(r"^>>> (.*)\n(.*)$", FILE.read_text(encoding="utf-8"), re.MULTILINE))
"""Calls with the message of each."""


MEASURING = (audit, exact_truth, load, make_loss, measure, measure_times, training_memory)
NAMES: dict[str, Any] = {**vars(oracles), **vars(estimators), **{function.__name__: function for function in MEASURING}, **globals()}


def message(call: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        eval(call, NAMES)
    return functools.reduce(lambda text, mask: re.sub(mask, MASKS[mask], text), MASKS, str(caught.value))


@pytest.mark.parametrize("call", CALLS)
def test_python(call: str) -> None:
    """``python -m tests.test_wrong_inputs`` writes the messages again, after a change on purpose."""
    said = message(call)
    assert said == CALLS[call]
    assert len(said) < 400, said
    assert re.search("expected|did you mean|choose|could not import|must (not )?be|declares it itself|takes? (ranges|no)", said), said


# The command line: `tests/goldens/test_verbs.py` has its messages.


@pytest.mark.parametrize("name", list(AVAILABLE_ORACLES))
def test_sizes_that_no_memory_holds(name: str) -> None:
    options = {"subset": "k=2,", "at_most": "k=2,"}.get(name, "")
    sizes = ",".join(f"{size}={10**11}" for size in size_names(AVAILABLE_ORACLES[name]))
    said = refused("run", "bias", "--dry-run", "-p", f"{name}[{options}{sizes}]", "-e", "rloo")
    assert re.search("expected at most 250,000, take smaller sizes|expected an integer", said), said


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_gold_of_integers_without_a_sign(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "gold.npz"
    np.savez(path, scores=np.zeros((2, 5)), gold=np.eye(5, dtype=dtype)[:2])
    words = ("run", "bias", "--dry-run", "--oracle", "categorical", "--file", path, "--field", "gold=gold", "-e", "rloo")
    assert call(*words).exit_code == 0


if __name__ == "__main__":
    FILE.write_text("\n".join(f">>> {call}\n{message(call)}\n" for call in CALLS), encoding="utf-8")
