"""Runs of training: paired, resumed, and batched."""

import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from structgrad.estimators import StraightThrough, make_estimator
from structgrad.oracles import Subset
from structgrad.suites.tasks.clusters import Clusters
from structgrad.suites.tasks.training import BatchOrder, Job, Training, train_all

SIZES = {"clusters": 3, "features": 4, "train": 200, "heldout": 100, "steps": 20}
SMALL = Clusters(**SIZES)

KILLED = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from structgrad.estimators import make_estimator
from structgrad.suites.tasks import training
from structgrad.suites.tasks.clusters import Clusters
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


def test_a_killed_run_continues_to_the_same_bits(tmp_path):
    jobs = [Job(0, 0.05), Job(1, 0.05)]
    whole = train_all(SMALL, "rloo", jobs)
    program = KILLED.format(name="rloo", folder=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    training_of = Training(SMALL, make_estimator("rloo"), jobs)
    training_of.run(until=0, scratch=tmp_path)
    assert training_of.step == 6  # two batches a step
    resumed = train_all(SMALL, "rloo", jobs, scratch=tmp_path)
    assert [found.curve for found in resumed] == [found.curve for found in whole]
    assert [found.metrics for found in resumed] == [found.metrics for found in whole]
    for one, other in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


def test_the_checkpoint_of_other_jobs_is_left_alone(tmp_path):
    train_all(SMALL, "ste", [Job(0, 0.05)], scratch=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    for other in ((SMALL, "ste", Job(0, 0.02)), (replace(SMALL, batch_size=100), "ste", Job(0, 0.05)), (SMALL, "rloo", Job(0, 0.05))):
        started = Training(other[0], make_estimator(other[1]), [other[2]])
        started.run(until=0, scratch=tmp_path)
        assert started.step == 0


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
    ("task", "name"), [(SMALL, "structured_attention"), (SMALL, "ste"), (SMALL, "exact"), (Folded(**SIZES), "structured_attention")]
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
    task = Clipped(**SIZES)
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
    task = Overflowing(**SIZES)
    lost, sane = train_all(task, "structured_attention", [Job(0, 0.05), Job(1, 0.05)])
    assert (lost.diverged, sane.diverged) == (0, None)
    [alone] = train_all(task, "structured_attention", [Job(1, 0.05)])
    parameters_agree(sane, alone)


def test_estimators_with_state_share_none_across_seeds():
    jobs = [Job(0, 0.05), Job(1, 0.05)]
    for name in ("reinforce_running_mean", "reinforce_normalised", "aimle"):
        first, second = train_all(SMALL, name, jobs, steps=3), [train_all(SMALL, name, [job], steps=3)[0] for job in jobs]
        assert all(torch.equal(one.model.encoder.weight, other.model.encoder.weight) for one, other in zip(first, second, strict=True))


@dataclass(frozen=True)
class Ragged(Clusters):
    """Clusters that see themselves as items of two lengths: the last cluster is not there for half of them."""

    oracle: ClassVar[Subset] = Subset(1)

    def batch(self, split, items):
        return super().batch(split, items)._replace(lengths=self.clusters - items % 2)

    def scores(self, model, batch):
        return self.oracle.pad(super().scores(model, batch), batch.lengths)

    def loss(self, model, batch):
        return replace(super().loss(model, batch), gold=None)


@dataclass(frozen=True)
class Watching(StraightThrough):
    """Record the gradient of the loss in the padding, and the lengths of the oracle."""

    def surrogate(self, loss, oracle, scores, *, generator):
        point = oracle.argmax(scores).requires_grad_()
        (slope,) = torch.autograd.grad(loss(point).sum(), point)
        WATCHED.append((slope[..., -1] != 0, oracle.parts_within(torch.ones_like(scores, dtype=torch.bool), scores)[..., -1]))
        return super().surrogate(loss, oracle, scores, generator=generator)


WATCHED = []


@pytest.mark.parametrize("seeds", [1, 2])
def test_padding_is_left_out_of_training(seeds):
    task = Ragged(**SIZES | {"steps": 3})
    WATCHED.clear()
    run = Training(task, Watching(), [Job(seed, 0.05) for seed in range(seeds)])
    run.run(until=1)
    [(felt, inside)] = WATCHED
    lengths = run.lengths
    assert felt.shape == lengths.shape
    assert torch.equal(felt, lengths == 3)
    assert torch.equal(inside, lengths == 3)
