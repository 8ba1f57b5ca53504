"""The default tests cover the cases that they leave out, and their costs are checked."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest import hookspec

from tests import costs
from tests import covering as covering_plugin
from tests.covering import FEW, PAIRS, covering, traits
from tests.estimator_cases import CASES, VARIANTS
from tests.helpers import GENERIC_CASES, ORACLE_CASES, REGIMES

DTYPES = ("float32", "float64")


def drawn(parameters: list[dict[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    """The cases of a design."""
    return [parameters[index] for index in covering(traits(parameters), lambda index: hash((seed, index)))]


def product(**factors: Any) -> list[dict[str, Any]]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def values(cases: list[dict[str, Any]], *names: str) -> set[tuple[str, ...]]:
    return {tuple(str(case[name]) for name in names) for case in cases}


def test_every_value_and_every_pair_of_few_is_covered() -> None:
    whole = product(regime=REGIMES, dtype=DTYPES, batch=range(6), ties=(True, False))
    some = drawn(whole)
    for pair in itertools.combinations(whole[0], 2):
        assert values(some, *pair) == values(whole, *pair)
    assert len(some) == pytest.approx(len(REGIMES) * 6, abs=8)


def test_pairs_of_many_are_not() -> None:
    names = [f"estimator{n}" for n in range(PAIRS)]
    some = drawn(product(name=names, regime=REGIMES))
    assert values(some, "name") == {(name,) for name in names}
    assert values(some, "regime") == {(str(regime),) for regime in REGIMES}
    assert len(some) == len(names)


def test_every_structure_meets_every_operation_and_is_tested_at_every_size() -> None:
    operations = ("argmax", "marginals", "sample", "project")
    some = drawn(product(case=ORACLE_CASES, operation=operations))
    met = {(case["case"].oracle.name, case["operation"]) for case in some}
    assert met == {(case.oracle.name, operation) for case in GENERIC_CASES for operation in operations}
    assert values(some, "case") == {(str(case),) for case in ORACLE_CASES}
    assert len(some) < 2 * len(ORACLE_CASES)


def test_an_entry_is_tested_once_whatever_its_options() -> None:
    names = ["imle", *(name for name in VARIANTS if name.startswith("imle[")), "aimle"]
    assert len(drawn([{"name": name} for name in names])) == 2
    assert len(drawn([{"name": str(name)} for name in names])) == len(names)


def test_impossible_pairs_are_not_asked_for() -> None:
    cases = [{"first": first, "second": second} for first in range(9) for second in range(9) if first <= second]
    assert len(drawn(cases)) == len(cases)


def test_another_seed_draws_other_cases() -> None:
    whole = product(name=range(100), case=CASES)
    assert drawn(whole, seed=1) == drawn(whole, seed=1)
    assert len({str(drawn(whole, seed=seed)) for seed in range(5)}) == 5


THINNED = pytest.mark.parametrize(("first", "second", "third"), list(itertools.product(range(5), repeat=3)))


@THINNED
def test_a_product(first: int, second: int, third: int, request: pytest.FixtureRequest) -> None:
    """Pytest collects the design by default, and the whole product in a sweep or if a case is named."""
    config = request.config
    here = [item for item in request.session.items if item.name.startswith("test_a_product[")]
    whole = "not sweep" not in config.option.markexpr or any("[" in word for word in config.args)
    assert whole or FEW < len(here) < 60
    assert whole or all(not item.get_closest_marker("sweep") for item in here)


def spent(seconds: float, *, whole: bool = True, exit_status: int = 0) -> Any:
    """The exit status of a session whose tests took some CPU seconds at the pace of the reference."""
    source = pytest.Config.ArgsSource.TESTPATHS if whole else pytest.Config.ArgsSource.ARGS
    config: Any = SimpleNamespace(args_source=source, option=SimpleNamespace(keyword="", markexpr="not sweep", costs=False))
    bill, session = costs.Bill(config, None), SimpleNamespace(exitstatus=exit_status)
    output = {"costs": ({"tests/test_a.py": seconds / 2, costs.COMPILING: 1e6}, [costs.REFERENCE])}
    for _ in range(2):
        bill.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    bill.pytest_sessionfinish(session)  # type: ignore[arg-type]
    return session.exitstatus


def test_a_run_of_all_tests_fails_where_they_outgrow_their_budget() -> None:
    most = costs.SLACK * costs.BUDGET
    assert spent(0.99 * most) == pytest.ExitCode.OK
    assert spent(1.01 * most) == pytest.ExitCode.TESTS_FAILED
    assert spent(1.01 * most, whole=False) == pytest.ExitCode.OK
    assert spent(1.01 * most, exit_status=pytest.ExitCode.INTERRUPTED) == pytest.ExitCode.INTERRUPTED


def test_a_slow_machine_has_the_same_budget() -> None:
    bill = costs.Bill(SimpleNamespace(), None)  # type: ignore[arg-type]
    bill.seconds.update({"tests/test_a.py": 80.0, costs.COMPILING: 30.0})
    bill.paces = [4 * costs.REFERENCE]
    assert bill.spent() == pytest.approx(20)
    assert bill.table() == ["| file | CPU s |", "|---|---|", "| `tests/test_a.py` | 80.0 |", "| `compiling kernels` | 30.0 |"]


def test_hooks_of_other_plugins_are_not_missed_where_these_are_missing() -> None:
    """A machine with a GPU may have pytest and no other plugin."""
    hooks = [
        (owner, name) for owner in (covering_plugin, costs, costs.Costs, costs.Bill) for name in vars(owner) if name.startswith("pytest_")
    ]
    foreign = {name: getattr(owner, name) for owner, name in hooks if not hasattr(hookspec, name)}
    assert set(foreign) == {"pytest_configure_node", "pytest_testnodedown", "pytest_xdist_auto_num_workers"}
    assert all(hook.pytest_impl["optionalhook"] for hook in foreign.values())
