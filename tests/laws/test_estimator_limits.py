"""What goes through all structures says no to a space that is too large, at once, and tells how large, how long, and what to do."""

import dataclasses
import re
from typing import Any

import pytest
import torch

from structgrad.estimators import ESTIMATORS, ExactMarginalisation, make_estimator
from structgrad.oracles import Assignment, Categorical, Oracle, PolicyOracle, ShiftReduce, Subset
from tests.helpers import seeded

ENUMERATING = [name for name in ESTIMATORS if (took := make_estimator(name).evaluations()).enumerations + took.listings]
"""Those that declare passes over all structures."""

BOUND = [name for name in ENUMERATING if name not in {"unordered_set", "importance_weighted_set", "sum_and_sample"}]
"""Those that can do no other: beyond their limit these draw without a list."""


def space(name: str, size: int) -> tuple[Oracle, tuple[int, ...]]:
    """Structures that an estimator serves, and their shape."""
    if PolicyOracle in ESTIMATORS[name].needs:
        return ShiftReduce("local"), (size, size, 2)
    return Subset(size // 2), (size,)


def refusal(estimator: Any, oracle: Oracle, event: tuple[int, ...]) -> str:
    with pytest.raises(ValueError, match=r"^") as caught:
        estimator.gradient(lambda z: z.flatten(-len(event)).sum(-1), oracle, torch.zeros(event), generator=seeded())
    return str(caught.value)


@pytest.mark.parametrize("name", BOUND)
def test_a_space_that_is_too_large_is_refused_before_anything_is_computed(name: str) -> None:
    oracle, event = space(name, 60)
    said = refusal(make_estimator(name), oracle, event)
    pattern = (
        rf"^{name} enumerates at most limit=\d+ structures, and the oracle {oracle.name} has \d\.\d\de\+\d+ of the shape .*, which take "
    )
    assert re.search(pattern + r"\S+ years at a typical 20,000 a second", said)
    assert make_estimator(name).incompatibility(oracle, event) == said.removesuffix("; choose another pair")
    assert ("raise limit=" in said) == (oracle.count(event) <= 2**62)


@pytest.mark.parametrize("name", BOUND)
def test_the_limit_is_an_option_that_the_message_names(name: str) -> None:
    oracle, event = space(name, 6)
    loss = lambda z: z.flatten(-len(event)).sum(-1)  # noqa: E731
    few = dataclasses.replace(make_estimator(name), limit=2)  # type: ignore[call-arg]
    raised = re.search(rf"{name}\[limit=\d+\]", refusal(few, oracle, event))
    assert raised
    expected = make_estimator(name).gradient(loss, oracle, torch.zeros(event), generator=seeded())
    assert torch.equal(make_estimator(raised[0]).gradient(loss, oracle, torch.zeros(event), generator=seeded()), expected)


@pytest.mark.parametrize("name", [name for name in ENUMERATING if name != "sparsemax_marginalisation"])
def test_a_limit_of_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^`{name}` got limit=0; expected an integer >= 1"):
        dataclasses.replace(make_estimator(name), limit=0)  # type: ignore[call-arg]


def test_swaps_beyond_memory_are_refused() -> None:
    said = make_estimator("arsm").incompatibility(Categorical(), (10**6,))
    assert said
    assert re.match(r"arsm takes the loss on 499,999,500,001 structures at a time, [\d,.]+ GiB of memory, and this machine has", said)


@pytest.mark.parametrize("name", ["reinforce", "structured_attention"])
def test_sums_that_are_out_of_reach_are_refused_by_the_pair(name: str) -> None:
    said = make_estimator(name).incompatibility(Assignment(), (30, 30))
    assert said
    assert said.startswith(f"`{name}` got permutations of n=30; expected n <= ")
    assert make_estimator(name).incompatibility(Assignment(), (5, 5)) is None
    assert make_estimator("sparsemap").incompatibility(Assignment(), (30, 30)) is None


def test_the_default_is_what_an_exact_gradient_enumerates() -> None:
    from structgrad.suites.truth import CAP

    assert ExactMarginalisation().limit == CAP
