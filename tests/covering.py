"""A covering design in place of products of cases; the marker `sweep` runs the whole products.

A law over estimators, structures, scales and dtypes is a product of thousands of cases, most of them redundant. By default every value of
every parameter is tested, and every pair of values if two parameters have at most `PAIRS`. The cases are drawn, so that different runs
test different ones. The seed is shown, and ``--covering-seed`` draws the same cases again. ``-m sweep`` tests the whole product, and the
tests that are marked `sweep` themselves.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PAIRS = 120
"""Pairs of two parameters are covered where they have no more: structures with operations, say, but not estimators with scales."""

FEW = 24
"""A product of no more cases is tested as it is."""


def covering(cases: Sequence[frozenset[Hashable]], rank: Callable[[int], int]) -> list[int]:
    """Few cases that cover the items of all cases, in the given order; ties go to the lowest rank."""
    missing = set().union(*cases)
    queue = [(-len(case), rank(index), index) for index, case in enumerate(cases)]
    heapq.heapify(queue)
    chosen = []
    while missing:
        _, ranked, index = heapq.heappop(queue)
        gain = len(cases[index] & missing)
        # A gain only falls, so that what is still at the top with its gain of now is the best.
        if gain and queue and (-gain, ranked, index) > queue[0]:
            heapq.heappush(queue, (-gain, ranked, index))
        elif gain:
            chosen.append(index)
            missing -= cases[index]
    return sorted(chosen)


def traits(parameters: Sequence[Mapping[str, Any]]) -> list[frozenset[Hashable]]:
    """Items to cover of each case: its values, and pairs of values of parameters with few pairs."""
    factors = [dict(_factors(case)) for case in parameters]
    names = sorted(set().union(*factors))
    every = [[(name, case[name]) for name in names if name in case] for case in factors]
    # Of an oracle's case it is the structure that is paired, not its size.
    paired = [[factor for factor in case if factor[0] + _STRUCTURE not in names] for case in every]
    few = Counter((first[0], second[0]) for first, second in {pair for case in paired for pair in itertools.combinations(case, 2)})
    return [
        frozenset(case) | {pair for pair in itertools.combinations(pairs, 2) if few[pair[0][0], pair[1][0]] <= PAIRS}
        for case, pairs in zip(every, paired, strict=True)
    ]


_STRUCTURE = ", its structure"


def _factors(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of a case, by their text or label; a case of an oracle is a structure of one size."""
    for name, value in parameters.items():
        yield name, getattr(value, "stands_for", str(value))
        if hasattr(value, "oracle"):
            yield name + _STRUCTURE, getattr(value, "group", "") or value.oracle.name


def _sweeping(config: pytest.Config) -> bool:
    """Whether the marker is asked for."""
    return "" in re.findall(r"(not )?\bsweep\b", config.option.markexpr)


def _whole(config: pytest.Config) -> bool:
    """Whether no case is left out: in a sweep, and where one is named."""
    return _sweeping(config) or any("[" in word for word in config.args)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covering-seed", type=int, help="Draw the cases of the covering design as the run did that showed this seed.")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep: what is tested by `-m sweep` alone: whole products of cases, and large ones")
    drawn_already = getattr(config, "workerinput", {}).get("covering_seed")
    if config.option.covering_seed is None:
        config.option.covering_seed = random.SystemRandom().randrange(10**6) if drawn_already is None else drawn_already


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Workers draw the same cases as the main process."""
    node.workerinput["covering_seed"] = node.config.option.covering_seed


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """All processors for all tests; some files are sooner done than workers have started, and a device is not shared."""
    few = config.args_source is pytest.Config.ArgsSource.ARGS and all(Path(word.partition("::")[0]).is_file() for word in config.args)
    return 0 if few or "gpu" in config.option.markexpr else None


def pytest_report_header(config: pytest.Config) -> str:
    if _whole(config):
        return "cases: all"
    return f"cases: a covering design; --covering-seed {config.option.covering_seed} draws the same again, -m sweep tests them all"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Twenty thousand tests that all stay: looking for garbage among them, now or while they run, takes a third of the time."""
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
    if (len(calls) > FEW or any(_takes_turns(call) for call in calls)) and not _whole(metafunc.config):
        seed, place = metafunc.config.option.covering_seed, metafunc.definition.nodeid
        rank = lambda call: zlib.crc32(f"{seed} {place} {call.id}".encode())  # noqa: E731
        # What needs a device stands for nothing where there is none.
        groups = [[call for call in calls if _needs_a_device(call) is needs] for needs in (False, True)]
        chosen = {id(group[index]) for group in groups if group for index in _drawn(group, rank)}
        metafunc._calls = [call for call in calls if id(call) in chosen]
    return result


def _drawn(calls: Sequence[Any], rank: Callable[[Any], int]) -> list[int]:
    return covering(traits([call.params for call in calls]), lambda index: rank(calls[index]))


def _takes_turns(call: Any) -> bool:
    return any(getattr(value, "group", "") for value in call.params.values())


def _needs_a_device(call: Any) -> bool:
    return any(mark.name == "gpu" for mark in call.marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if _sweeping(config) else []:
        item.add_marker("sweep")
