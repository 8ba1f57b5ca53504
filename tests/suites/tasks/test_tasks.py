"""Properties of every task: contract, names, random numbers, missing data, and floors below ceilings."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
import torch

from structgrad.suites.tasks import TASKS, Task, make_task
from structgrad.suites.tasks.check import check_task
from structgrad.suites.tasks.clusters import Clusters
from structgrad.suites.tasks.l2x_switch import L2XSwitch
from structgrad.suites.tasks.language.listops import ListOps, ListOpsGenerated, ListOpsParser
from structgrad.suites.tasks.language.matching import Matching
from structgrad.suites.tasks.language.ner import NamedEntities
from structgrad.suites.tasks.language.treebank import Parsing, Pipeline
from structgrad.suites.tasks.speech import AutoEncoder, SpokenDigits
from structgrad.suites.tasks.training import train
from structgrad.suites.trust import TASK_FOLDERS

LINES = {"shortest": 7, "longest": 8, "train": 300, "heldout": 60, "dimension": 12, "hidden": 16}

TINY: dict[str, Task] = {
    "clusters": Clusters(clusters=3, features=6, train=400, heldout=200, labelled=50, steps=60),
    "l2x_switch": L2XSwitch(hidden=16, train=1000, heldout=400, steps=150),
    "fsdd": SpokenDigits(segments=5, chosen=1, hidden=8, tested=2, validated=1, steps=60, batch_size=20),
    "matching": Matching(longest=5, hidden=8, steps=60, batch_size=20),
    "listops": ListOps(**LINES, generated=True, steps=100),
    "listops_generated": ListOpsGenerated(**LINES, pretraining=150, steps=40),
    "listops_parser": ListOpsParser(**LINES, generated=True, steps=60),
    "ner": NamedEntities(longest=6, hidden=8, steps=40, batch_size=10),
    "parsing": Parsing(shortest=4, longest=5, hidden=8, steps=40, batch_size=10),
    "pipeline": Pipeline(shortest=4, longest=5, parsed=14, parser_steps=20, hidden=8, steps=100, batch_size=10),
    "vae": AutoEncoder(categories=2, parts=3, hidden=16, generated=True, drawn=200, steps=150),
}
"""Every task in small; `ListOpsFrozen` differs from `ListOpsGenerated` by its lines alone."""

READING = ("fsdd", "matching", "ner", "parsing", "pipeline")

GAIN = {"clusters": 0.05, "l2x_switch": 0.1, "fsdd": 0.2, "matching": 0.3, "listops_generated": 0.2, "parsing": 0.2, "vae": 0.2}
"""Least distance from floor to ceiling."""

pytestmark = pytest.mark.usefixtures("written")
each_task = pytest.mark.parametrize("task", TINY.values(), ids=TINY)


@each_task
def test_small_tasks_keep_the_contract(task: Task) -> None:
    assert check_task(task, trained=False) == []


@each_task
def test_models_and_data_depend_on_the_seed_alone(task: Task) -> None:
    """They are the same without caches, and leave the global generator as it is."""
    before, items = torch.get_rng_state(), torch.arange(5)
    first = [*task.batch("train", items).inputs, *task.model(3).parameters()]
    for name in [name for name in sys.modules if name.startswith("structgrad.suites.tasks.")]:
        for cache in vars(sys.modules[name]).values():
            if isinstance(cache, functools._lru_cache_wrapper):
                cache.cache_clear()
    again = [*task.batch("train", items).inputs, *task.model(3).parameters()]
    assert all(map(torch.equal, first, again))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.dtype == torch.float32 for parameter in task.model(3).parameters())


@each_task
def test_the_ceiling_is_above_the_floor(task: Task) -> None:
    floor = task.floor(0)
    assert task.ceiling(0) > floor + GAIN.get(task.name, 0.0)
    assert floor == task.floor(0)


@pytest.mark.parametrize("name", TASKS)
def test_names_and_options(name: str) -> None:
    task = make_task(name)
    assert (task.name, task) == (name, type(task)())
    for option in ("steps", "batch_size"):
        with pytest.raises(ValueError, match=f"^`{name}` got {option}=0; expected an integer >= 1$"):
            make_task(f"{name}[{option}=0]")
    with pytest.raises(ValueError, match=rf"^`{name}` got rates=\(0,\); expected a tuple, each a finite number > 0$"):
        type(task)(rates=(0,))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=rf"^`{name}` got rates=\(\); expected at least one learning rate$"):
        make_task(f"{name}[rates=()]")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clusterz", "got the unknown task 'clusterz'; did you mean clusters"),
        ("clusters[start=warm]", "`clusters` got start=warm; expected 'fresh' or 'pretrained'"),
        ("clusters[clusters=0]", "`clusters` got clusters=0; expected an integer >= 1"),
        ("math:pi", "got 'math:pi', a float; expected a task"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make_task(name)


@pytest.mark.parametrize("name", [*READING, "vae", "listops", "listops_parser", "listops_frozen"])
def test_missing_data(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sentence has the first missing file, the searched folders, the variable, and generated data if the task has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRUCTGRAD_TASK_DATA")
    task = make_task(name)
    first = task.files[0]
    expected = (
        f"`{name}` needs the file {first}, which is in none of {', '.join(TASK_FOLDERS)}; "
        f"set STRUCTGRAD_TASK_DATA to the folder that holds {first.partition('/')[0]}/"
    )
    if hasattr(task, "generated"):
        expected += f", or generate data by {name}[generated=True]"
        assert make_task(f"{name}[generated=True]").unavailable() is None
    assert task.unavailable() == expected
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        task.size("train")


SIZES = {
    "fsdd": (100, 30, 50),
    "matching": (2064, 444, 612),
    "listops": (622, 150, 190),
    "ner": (1227, 137, 607),
    "parsing": (697, 78, 223),
    "pipeline": (497, 78, 223),
    "vae": (1263, 245, 774),
}
"""Items of real data for training, validation and test."""


@pytest.mark.parametrize("name", SIZES)
def test_real_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRUCTGRAD_TASK_DATA")
    task = make_task(name)
    if (reason := task.unavailable()) is not None:
        pytest.skip(reason)
    assert tuple(map(task.size, ("train", "validation", "test"))) == SIZES[name]
    assert train(task, "ste", rate=0.003, seed=0, steps=1).decoder is not None
