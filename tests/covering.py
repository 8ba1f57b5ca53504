"""A drawn part of each product of cases; the marker `sweep` runs the whole products.

A law over estimators, structures, scales and dtypes is a product of thousands of cases, most of them redundant. By default every value of
every parameter is tested, and every pair of values if two parameters have at most `PAIRS`. The cases are drawn, so that different runs
test different ones. The seed is shown, and ``--covering-seed`` draws the same cases again. ``-m sweep`` tests the whole product, and the
tests that are marked `sweep` themselves. A test that loops over a product of its own takes a part of it by `sampled`.

By default the sizes of one structure are one test, whose failure names the sizes and the commands that run each alone.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

T = TypeVar("T")

PAIRS = 120
"""Pairs of two parameters are covered where they have no more: structures with operations, say, but not estimators with scales."""

FEW = 24
"""A product of no more cases is tested as it is."""

RUN: dict[str, Any] = {"seed": 0, "whole": False, "case": ""}
"""The seed of this run; whether no case is left out: in a sweep, and where one is named; the case that a test of several is at."""


class Sizes(tuple[tuple[str, Any], ...]):
    """Cases of one structure that are one test, each with the name that it has alone."""


def sampled(options: Sequence[T], count: int) -> Sequence[T]:
    """Some of the options, drawn for each test of each run; all of them in a sweep."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "") + RUN["case"]
    return options if RUN["whole"] else random.Random(f"{RUN['seed']} {test}").sample(options, min(count, len(options)))


def thinned(cases: Sequence[Mapping[str, Any]], rank: Callable[[int], Any]) -> list[int]:
    """Few cases with all values of each parameter, and all pairs of values of two small ones; drawn in the order of their ranks."""
    factors = [dict(_factors(case)) for case in cases]
    pairs = [list(itertools.combinations(case.items(), 2)) for case in factors]
    sizes = Counter((one[0], other[0]) for one, other in {pair for each in pairs for pair in each})
    seen, chosen = set[Any](), []
    for index in sorted(range(len(cases)), key=rank):
        items = {*factors[index].items(), *(pair for pair in pairs[index] if sizes[pair[0][0], pair[1][0]] <= PAIRS)}
        if not items <= seen:
            chosen.append(index)
            seen |= items
    return sorted(chosen)


def _factors(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of a case, by their text or label; a case of an oracle is a structure of one size."""
    for name, value in parameters.items():
        yield name, getattr(value, "stands_for", str(value))
        if hasattr(value, "oracle"):
            yield name + ", its structure", getattr(value, "group", "") or value.oracle.name


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
        calls = [call for call in calls if id(call) in chosen]
    metafunc._calls = calls if RUN["whole"] else list(_bundled(calls))
    return result


def _bundled(calls: Sequence[Any]) -> Iterator[Any]:
    """Calls that differ by the size of a structure alone, as one."""
    several: dict[Any, list[Any]] = {}
    for call in calls:
        case = call.params.get("case")
        others = tuple((name, id(value)) for name, value in call.params.items() if name != "case")
        several.setdefault((repr(case.oracle), others) if hasattr(case, "oracle") else id(call), []).append(call)
    for group in several.values():
        if len(group) == 1:
            yield group[0]
            continue
        sizes, first = Sizes((call.id, call.params["case"]) for call in group), group[0]
        names = [repr(sizes[0][1].oracle) if name == str(sizes[0][1]) else name for name in first._idlist]
        yield replace(first, params={**first.params, "case": sizes}, _idlist=names)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of several cases with each of them."""
    sizes = pyfuncitem.funcargs.get("case")
    if not isinstance(sizes, Sizes):
        return None
    names, failed = pyfuncitem._fixtureinfo.argnames, list[Exception]()
    for name, case in sizes:
        RUN["case"] = name
        torch.default_generator.manual_seed(0)
        try:
            pyfuncitem.obj(**{each: pyfuncitem.funcargs[each] for each in names} | {"case": case})
        except Exception as error:
            error.add_note(f"Run this case alone: pytest '{pyfuncitem.nodeid.partition('[')[0]}[{name}]'")
            failed.append(error)
    RUN["case"] = ""
    if failed:
        raise failed[0] if len(failed) == 1 else ExceptionGroup(f"{len(failed)} of {len(sizes)} cases fail", failed)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if _sweeping(config) else []:
        item.add_marker("sweep")
