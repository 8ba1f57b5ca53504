"""Every task keeps the contract and has floors below ceilings; runs of training are paired, resumed and batched."""

import functools
import itertools
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import TASKS, Task, make_task
from structgrad.suites.tasks.check import check_task
from structgrad.suites.tasks.generated.base import GeneratedTask
from structgrad.suites.tasks.synthetic import Clusters
from structgrad.suites.tasks.training import BatchOrder, Job, Training, train, train_all
from structgrad.suites.trust import TASK_FOLDERS

LINES = {"shortest": 7, "longest": 8, "train": 300, "heldout": 60, "dimension": 12, "hidden": 16}
SMALLER = {"train": 300, "heldout": 100, "steps": 60}


def tiny(name: str, **options: Any) -> Task:
    return replace(make_task(name), **options)  # type: ignore[type-var]


TINY: dict[str, Task] = {
    task.name: task
    for task in (
        tiny("clusters", clusters=3, features=6, train=400, heldout=200, labelled=50, steps=60),
        tiny("l2x_switch", hidden=16, train=1000, heldout=400, steps=150),
        tiny("fsdd", segments=5, chosen=1, hidden=8, tested=2, validated=1, steps=60, batch_size=20),
        tiny("matching", longest=5, hidden=8, steps=60, batch_size=20),
        tiny("listops", **LINES, generated=True, steps=100),
        tiny("listops_generated", **LINES, pretraining=150, steps=40),
        tiny("listops_parser", **LINES, generated=True, steps=60),
        tiny("ner", longest=6, hidden=8, steps=40, batch_size=10),
        tiny("parsing", shortest=4, longest=5, hidden=8, steps=40, batch_size=10),
        tiny("pipeline", shortest=4, longest=5, parsed=14, parser_steps=20, hidden=8, steps=100, batch_size=10),
        tiny("vae", categories=2, parts=3, hidden=16, generated=True, drawn=200, steps=150),
        tiny("paths", side=3, **SMALLER),
        tiny("paths_squared", side=3, **SMALLER),
        tiny("ranking", ranked=3, **SMALLER),
        tiny("ranking_gain", ranked=3, **SMALLER),
        tiny("ranking_pairs", ranked=3, **SMALLER),
        tiny("budget", offered=6, **SMALLER),
        tiny("budget_sum", offered=6, **SMALLER),
        tiny("budget_coverage", offered=6, **SMALLER),
        tiny("tags", points=3, **SMALLER),
        tiny("tags_frozen", points=3, **SMALLER),
        tiny("tags_elbo", points=3, **SMALLER),
        tiny("segments", points=5, longest=3, **SMALLER),
        tiny("segments_pretrained", points=5, longest=3, **SMALLER),
        tiny("transcripts", frames=5, **SMALLER),
        tiny("heads", words=3, **SMALLER),
        tiny("influence", members=3, **SMALLER),
        tiny("influence_squared", members=3, **SMALLER),
        tiny("algebra", leaves=4, **SMALLER),
        tiny("algebra_soft", leaves=4, **SMALLER),
        tiny("gates", gates=3, **{**SMALLER, "steps": 200}),
        tiny("gates_frozen", gates=3, **SMALLER),
        tiny("vae_bits", categories=3, hidden=16, drawn=200, steps=150),
        tiny("clusters_pretrained", clusters=3, features=6, train=400, heldout=200, steps=60),
        tiny("warping", train=500, heldout=200, steps=200),
    )
}
"""Every task in small; `listops_frozen` differs from `listops_generated` by its lines alone."""

READING = ("fsdd", "matching", "ner", "parsing", "pipeline")

GAIN = {
    "clusters": 0.05,
    "l2x_switch": 0.1,
    "fsdd": 0.2,
    "matching": 0.3,
    "listops_generated": 0.2,
    "parsing": 0.2,
    "vae": 0.2,
    "ranking": 0.2,
}
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
        found = vars(sys.modules[name]).values()
        for cache in [*found, *(part for kind in found if isinstance(kind, type) for part in vars(kind).values())]:
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


def test_only_tasks_of_one_family_share_generated_data() -> None:
    tasks = {name: task for name, task in TINY.items() if isinstance(task, GeneratedTask)}
    first = {name: task.data("train").inputs[0].flatten()[:8] for name, task in tasks.items()}
    shared = [(a, b) for a, b in itertools.combinations(tasks, 2) if torch.equal(first[a], first[b])]
    assert all((TINY[a].family or a) == (TINY[b].family or b) for a, b in shared)
    assert ("algebra", "algebra_soft") in shared


@pytest.mark.parametrize("name", ["algebra", "algebra_soft"])
def test_the_floor_of_the_algebra_is_its_best_constant_tree(name: str) -> None:
    """It is above the most frequent value."""
    task = TINY[name]
    values = task.data("train").labels.bincount()
    assert task.floor(0) > float((task.data("test").labels == values.argmax()).float().mean()) + 0.05


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


SMALL_SIZES = {"clusters": 3, "features": 4, "train": 200, "heldout": 100, "steps": 20}
SMALL = Clusters(**SMALL_SIZES)

KILLED = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from structgrad.estimators import make_estimator
from structgrad.suites.tasks import training
from structgrad.suites.tasks.synthetic import Clusters
from structgrad.suites.tasks.training import Job, train_all

batch, calls = Clusters.batch, []

def deadly(self, split, items):
    calls.extend([split] if split == "train" else [])
    if len(calls) == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch(self, split, items)

Clusters.batch, training.CHECKPOINT_SECONDS = deadly, 0.0
small = Clusters(clusters=3, features=4, train=200, heldout=100, steps=20)
train_all(small, make_estimator({name!r}), [Job(0, 0.05), Job(1, 0.05)], scratch=Path({folder!r}))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process")
def test_a_killed_run_continues_to_the_same_bits(tmp_path):
    jobs = [Job(0, 0.05), Job(1, 0.05)]
    whole = train_all(SMALL, "rloo", jobs)
    program = KILLED.format(name="rloo", folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=300).returncode == -signal.SIGKILL
    training_of = Training(SMALL, make_estimator("rloo"), jobs)
    training_of.run(until=0, scratch=tmp_path)
    assert training_of.step == 6  # two batches a step
    resumed = train_all(SMALL, "rloo", jobs, scratch=tmp_path)
    assert [found.curve for found in resumed] == [found.curve for found in whole]
    assert [found.metrics for found in resumed] == [found.metrics for found in whole]
    for one, other in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


@dataclass(frozen=True)
class Folded(Clusters):
    """Clusters whose items are numbered from the other end for every second seed."""

    fold: int = 0

    def at(self, seed):
        return replace(self, fold=seed)

    def batch(self, split, items):
        return super().batch(split, self.size(split) - 1 - items if self.fold % 2 else items)


def parameters_agree(one, other):
    for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("task", "name"), [(SMALL, "structured_attention"), (SMALL, "ste"), (SMALL, "exact"), (Folded(**SMALL_SIZES), "structured_attention")]
)
def test_seeds_in_one_batch_learn_as_alone(task, name):
    """Each by its own data, rate and weights."""
    jobs = [Job(0, 0.02), Job(1, 0.02), Job(1, 0.05)]
    for job, found in zip(jobs, train_all(task, name, jobs), strict=True):
        [alone] = train_all(task, name, [job])
        assert found.job == job
        parameters_agree(found, alone)


@dataclass(frozen=True)
class Clipped(Clusters):
    """Clusters that clip between the lengths of the two first gradients."""

    clip: float = 0.225


def test_clipping_is_of_each_seed_alone():
    """Side by side, the long gradient of one seed shortens no other."""
    task = Clipped(**SMALL_SIZES)
    jobs = [Job(0, 0.02), Job(1, 0.02)]
    side = Training(task, make_estimator("structured_attention"), jobs)
    side.run(until=1)
    expected, found = [], [torch.stack([part.grad.norm() for part in run.model.parameters()]).norm() for run in side.runs]
    for job in jobs:
        alone = Training(task, make_estimator("structured_attention"), [job])
        alone.run(until=1)
        expected.append(torch.stack([part.grad.norm() for part in alone.runs[0].model.parameters()]).norm())
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))
    assert max(found) == pytest.approx(task.clip, rel=1e-4)
    assert min(found) < 0.99 * task.clip


def test_every_item_comes_at_most_once_in_an_epoch():
    draw = BatchOrder(replace(SMALL, train=400), 0)
    epoch = torch.cat([draw() for _ in range(3)])
    assert len(epoch.unique()) == 3 * 128


def test_a_run_that_diverges_ends_and_leaves_others_alone():
    found = train_all(SMALL, "structured_attention", [Job(0, 0.05), Job(1, 1e30)])
    [alone] = train_all(SMALL, "structured_attention", [Job(1, 1e30)])
    [sane] = train_all(SMALL, "structured_attention", [Job(0, 0.05)])
    assert (found[0].diverged, found[1].diverged, alone.diverged) == (None, 1, 1)
    assert len(found[1].curve) == len(alone.curve) == 21
    assert len({accuracy for step, accuracy in alone.curve if step > 1}) == 1
    assert found[0].curve[-1][1] == pytest.approx(sane.curve[-1][1], abs=0.05)


FIRST = SMALL.model(0).encoder.weight[0, 0].detach()


@dataclass(frozen=True)
class Overflowing(Clusters):
    """Clusters whose loss has no finite gradient in the first seed."""

    def loss(self, model, batch):
        plain = super().loss(model, batch)
        first = model.encoder.weight.detach()[0, 0] == FIRST
        return replace(plain, call=lambda z: plain(z) * torch.where(first, torch.inf, 1.0))


def test_a_gradient_that_is_not_finite_ends_its_run_alone():
    task = Overflowing(**SMALL_SIZES)
    lost, sane = train_all(task, "structured_attention", [Job(0, 0.05), Job(1, 0.05)])
    assert (lost.diverged, sane.diverged) == (0, None)
    [alone] = train_all(task, "structured_attention", [Job(1, 0.05)])
    parameters_agree(sane, alone)


def test_estimators_with_state_share_none_across_seeds():
    jobs = [Job(0, 0.05), Job(1, 0.05)]
    for name in ("reinforce_running_mean", "reinforce_normalised", "aimle"):
        first, second = train_all(SMALL, name, jobs, steps=3), [train_all(SMALL, name, [job], steps=3)[0] for job in jobs]
        assert all(torch.equal(one.model.encoder.weight, other.model.encoder.weight) for one, other in zip(first, second, strict=True))
