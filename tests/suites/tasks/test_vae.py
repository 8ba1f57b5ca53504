"""The variational autoencoder: its bound, and the quality of reconstructions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.training import train
from structgrad.suites.tasks.vae import AutoEncoder

TINY = AutoEncoder(categories=2, parts=3, hidden=16, generated=True, drawn=200, steps=150)


def test_by_name() -> None:
    assert make_task("vae") == AutoEncoder()


def test_windows_are_the_same_whenever_they_are_drawn_and_differ_between_splits() -> None:
    train_, test = TINY.windows("train"), TINY.windows("test")
    again = AutoEncoder(categories=2, parts=3, generated=True, drawn=200).windows("train")
    assert torch.equal(train_, again)
    assert not torch.equal(train_, test)
    assert torch.allclose(train_.mean(0), torch.zeros(40), atol=1e-6)
    assert torch.allclose(train_.std(0), torch.ones(40))


def test_the_divergence_from_the_uniform_code() -> None:
    divergence = TINY.regulariser(TINY.model(0), TINY.batch("train", torch.arange(2)))
    scores = torch.tensor([[[0.0, 0.0, 0.0], [50.0, 0.0, 0.0]], [[math.log(2), 0.0, -50.0], [1.0, 1.0, 1.0]]])
    two_thirds = 2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3) + math.log(3)
    assert divergence(scores).tolist() == pytest.approx([math.log(3), two_thirds], abs=1e-5)


def test_the_loss_is_the_density_up_to_a_constant() -> None:
    batch, model = TINY.batch("train", torch.arange(3)), TINY.model(0)
    structures = TINY.oracle.enumerate((2, 3)).unsqueeze(1).expand(-1, 3, -1, -1)
    normal = torch.distributions.Normal(model.decoder(structures.flatten(-2)), TINY.noise**0.5)
    constant = 40 * 0.5 * math.log(2 * math.pi * TINY.noise)
    assert torch.allclose(TINY.loss(model, batch)(structures) + constant, -normal.log_prob(batch.labels).sum(-1), rtol=1e-5)


def test_the_bound_is_the_mean_over_codes() -> None:
    model, test = TINY.model(0), TINY.batch("test", torch.arange(200))
    scores = TINY.scores(model, test)
    codes = TINY.oracle.enumerate((2, 3)).unsqueeze(1).expand(-1, 200, -1, -1)
    chances = TINY.oracle.log_prob(codes, scores).exp()
    cost = (chances * TINY.loss(model, test)(codes)).sum(0) + TINY.regulariser(model, test)(scores)
    assert TINY.evaluate(model)["elbo"] == pytest.approx(-float(cost.detach().mean()), rel=1e-5)


def test_a_reconstruction_is_worth_the_share_it_explains() -> None:
    batch, model = TINY.batch("train", torch.arange(2)), TINY.model(0)
    model.decoder = torch.nn.Identity()
    whole = batch._replace(labels=torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]))
    structures = torch.tensor([[[3.0, 4.0]], [[3.0, 0.0]], [[30.0, 0.0]]])
    assert TINY.judge(model, whole, structures)["accuracy"].tolist() == pytest.approx([1, 9 / 25, 0])


def test_the_exact_gradient_beats_the_mean_window() -> None:
    floor, ceiling = TINY.floor(0), TINY.ceiling(0)
    assert floor["accuracy"] == 0
    assert ceiling["accuracy"] > 0.2
    assert floor["elbo"] + 5 < ceiling["elbo"]
    assert TINY.ceiling(0) == ceiling


def test_without_recordings_a_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    reason = "there is no timeseries/fsdd_mfcc13.npz among the data of tasks"
    assert AutoEncoder().unavailable() == reason
    assert TINY.unavailable() is None
    with pytest.raises(ValueError, match=f"{reason}; set STRUCTGRAD_TASK_DATA to the folder that holds it, or choose generated windows"):
        AutoEncoder().windows("train")


@pytest.mark.skipif(AutoEncoder().unavailable() is not None, reason=str(AutoEncoder().unavailable()))
def test_windows_of_speech() -> None:
    task = AutoEncoder()
    assert [task.windows(split).shape[-1] for split in ("train", "validation", "test")] == [65] * 3
    assert train(task, make_estimator("ste"), rate=0.003, seed=0, steps=1).decoder is not None
