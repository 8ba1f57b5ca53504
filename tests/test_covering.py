"""The drawn cases cover the cases that they leave out."""

import itertools
from typing import Any

import pytest
from _pytest import hookspec

from tests import costs, covering
from tests.estimator_cases import VARIANTS
from tests.helpers import ORACLE_CASES


def drawn(parameters: list[dict[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    return [parameters[index] for index in covering.thinned(parameters, lambda index: hash((seed, index)))]


def product(**factors: Any) -> list[dict[str, Any]]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def values(cases: list[dict[str, Any]], *names: str) -> set[tuple[str, ...]]:
    return {tuple(str(case[name]) for name in names) for case in cases}


def test_every_value_and_every_pair_of_few_is_drawn() -> None:
    small, names = product(regime=range(8), dtype=("float32", "float64"), batch=range(6)), [f"estimator{n}" for n in range(covering.PAIRS)]
    for pair in itertools.combinations(small[0], 2):
        assert values(drawn(small), *pair) == values(small, *pair)
    large = product(name=names, regime=range(8))
    assert values(drawn(large), "name") == values(large, "name")
    assert values(drawn(large), "regime") == values(large, "regime")
    assert len(drawn(large)) <= len(names) + 8
    assert len({str(drawn(large, seed=seed)) for seed in range(5)}) == 5


def test_options_and_sizes_take_turns() -> None:
    """A structure meets every operation, and two of its sizes are tested; an estimator is tested once, with any of its options."""
    operations, groups = ("argmax", "sample", "project"), {case.group for case in ORACLE_CASES}
    some = drawn(product(case=ORACLE_CASES, operation=operations))
    assert {(case["case"].group, case["operation"]) for case in some} == {*itertools.product(groups, operations)}
    names = ["imle", *(name for name in VARIANTS if name.startswith("imle[")), "aimle"]
    assert len(drawn([{"name": name} for name in names])) == 2
    assert len(drawn([{"name": str(name)} for name in names])) == len(names)


@pytest.mark.parametrize(("first", "second", "third"), list(itertools.product(range(3), repeat=3)))
def test_a_product(first: int, second: int, third: int, request: pytest.FixtureRequest) -> None:
    """Pytest collects a part by default, and the whole product in a sweep or if a case is named."""
    here = [item for item in request.session.items if item.name.startswith("test_a_product[")]
    assert covering.RUN["whole"] or len(here) < 27
    assert covering.RUN["whole"] or len(covering.sampled(range(100), 5)) == 5


def test_hooks_of_other_plugins_are_not_missed_where_these_are_missing() -> None:
    """A machine with a GPU may have pytest and no other plugin."""
    hooks = [(owner, name) for owner in (covering, costs, costs.Costs) for name in vars(owner) if name.startswith("pytest_")]
    foreign = {name: getattr(owner, name) for owner, name in hooks if not hasattr(hookspec, name)}
    assert set(foreign) == {"pytest_configure_node", "pytest_testnodedown", "pytest_xdist_auto_num_workers"}
    assert all(hook.pytest_impl["optionalhook"] for hook in foreign.values())
