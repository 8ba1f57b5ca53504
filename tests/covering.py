"""A drawn part of each product of cases; the marker `sweep` runs the whole products.

A law over estimators, structures, scales and dtypes is a product of thousands of cases, most of them redundant. By default every value of
every parameter is tested, and every pair of values if two parameters have at most `PAIRS`. The cases are drawn, so that different runs
test different ones. The seed is shown, and ``--covering-seed`` draws the same cases again. ``-m sweep`` tests the whole product, and the
tests that are marked `sweep` themselves. A test that loops over a product of its own takes a part of it by `sampled`.

Of the sizes of a structure a law tests the last one, and one of the others; the derived structures share one.
"""

import gc
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

PAIRS = 120
"""Pairs of two parameters are covered where they have no more: structures with operations, say, but not estimators with scales."""

FEW = 24
"""A product of no more cases is tested as it is."""

RUN: dict[str, Any] = {"seed": 0, "whole": False}
"""The seed of this run; whether no case is left out: in a sweep, and where one is named."""


def sampled(options: Sequence[T], count: int) -> Sequence[T]:
    """Some of the options, drawn for each test of each run; all of them in a sweep."""
    chance = random.Random(f"{RUN['seed']} {os.environ.get('PYTEST_CURRENT_TEST')}")
    return options if RUN["whole"] else chance.sample(options, min(count, len(options)))


def thinned(cases: Sequence[Mapping[str, Any]], rank: Callable[[int], Any]) -> list[int]:
    """Few cases with all values of each parameter, and all pairs of values of two small ones; drawn in the order of their ranks."""
    factors = [{name: getattr(value, "stands_for", str(value)) for name, value in case.items()} for case in cases]
    pairs = [list(itertools.combinations(case.items(), 2)) for case in factors]
    sizes = Counter((one[0], other[0]) for one, other in {pair for each in pairs for pair in each})
    seen, chosen = set[Any](), []
    for index in sorted(range(len(cases)), key=rank):
        items = {*factors[index].items(), *(pair for pair in pairs[index] if sizes[pair[0][0], pair[1][0]] <= PAIRS)}
        if not items <= seen:
            chosen.append(index)
            seen |= items
    return sorted(chosen)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covering-seed", type=int, help="Draw the cases of the run that showed this seed.")


def _sweeping(config: pytest.Config) -> bool:
    """Whether the marker is asked for."""
    return "" in re.findall(r"(not )?\bsweep\b", config.option.markexpr)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep: what is tested by `-m sweep` alone: whole products of cases, and large ones")
    if config.option.covering_seed is None:  # workers draw the same cases as the main process
        config.option.covering_seed = getattr(config, "workerinput", {}).get("covering_seed", random.SystemRandom().randrange(10**6))
    RUN.update(seed=config.option.covering_seed, whole=_sweeping(config) or any("[" in word for word in config.args))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["covering_seed"] = node.config.option.covering_seed


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """All processors for all tests; some files are sooner done than workers have started, and a device is not shared."""
    few = config.args_source is pytest.Config.ArgsSource.ARGS and all(Path(word.partition("::")[0]).is_file() for word in config.args)
    return 0 if few or "gpu" in config.option.markexpr else None


def pytest_report_header(config: pytest.Config) -> str:
    if RUN["whole"]:
        return "cases: all"
    return f"cases: a drawn part of each product; --covering-seed {RUN['seed']} draws the same again, -m sweep tests them all"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests that all stay: looking for garbage among them, now or while they run, takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Thin the cases before they become tests: to make a test costs more than to draw it."""
    result = yield
    # pytest offers no public way to take a combination of parameters back.
    calls: Any = metafunc._calls
    takes_turns = any(getattr(value, "group", "") for call in calls for value in call.params.values())
    if (len(calls) > FEW or takes_turns) and not RUN["whole"]:
        draw = random.Random(f"{RUN['seed']} {metafunc.definition.nodeid}").random
        # What needs a device stands for nothing where there is none.
        groups = [[call for call in calls if any(mark.name == "gpu" for mark in call.marks) is needs] for needs in (False, True)]
        chosen = {id(group[index]) for group in groups for index in thinned([call.params for call in group], lambda _: draw())}
        metafunc._calls = [call for call in calls if id(call) in chosen]
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if _sweeping(config) else []:
        item.add_marker("sweep")
