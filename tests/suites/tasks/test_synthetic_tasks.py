"""Tasks on drawn data: the laws of the data, and losses and metrics in closed form."""

import math
from dataclasses import replace

import pytest
import torch

from structgrad.suites.tasks.speech import AutoEncoder
from structgrad.suites.tasks.synthetic import Clusters, L2XSwitch, v_measure
from structgrad.suites.tasks.training import train

CLUSTERS = Clusters(clusters=3, features=6, train=400, heldout=200, labelled=50, steps=60)
SWITCH = L2XSwitch(hidden=16, train=1000, heldout=400)
VAE = AutoEncoder(categories=2, parts=3, hidden=16, generated=True, drawn=200)


def test_splits_share_the_centres_and_no_point() -> None:
    train, test = (CLUSTERS.batch(split, torch.arange(200)) for split in ("train", "test"))  # type: ignore[arg-type]
    centres = [batch.true().mT @ batch.inputs[0] / batch.true().sum(0).unsqueeze(-1) for batch in (train, test)]
    assert (centres[0] - centres[1]).abs().max() < 1
    assert not torch.isclose(train.inputs[0], test.inputs[0]).all(-1).any()


@pytest.mark.parametrize("task", [CLUSTERS, SWITCH, VAE], ids=lambda task: task.name)
def test_data_depend_on_sizes_of_the_data_alone(task) -> None:
    longer, items = replace(task, steps=7, batch_size=3), torch.tensor([5, 0, 3])
    first, again, other = task.batch("test", items), longer.batch("test", items), task.batch("train", items)
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs[0], other.inputs[0])


@pytest.mark.parametrize(("options", "steps"), [({"start": "pretrained"}, 0), ({"auxiliary": 1.0}, None)])
def test_an_encoder_learns_from_points_with_known_clusters(options, steps) -> None:
    """Beforehand, or during training: with `frozen`, which has no gradient, the second loss alone trains it."""
    task = replace(CLUSTERS, **options)
    model = train(task, "frozen", rate=0.02, seed=0, steps=steps)
    assert CLUSTERS.evaluate(CLUSTERS.model(0))["structure_accuracy"] < 0.3
    assert task.evaluate(model)["structure_accuracy"] > 0.6


def test_v_measures() -> None:
    """Rosenberg & Hirschberg 2007: one cluster for all has no homogeneity; splitting a class costs completeness."""
    assert v_measure(torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 1])) == 0
    assert v_measure(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])) == pytest.approx(2 / 3)


def test_labels_depend_on_the_features_of_their_side_of_the_switch() -> None:
    batch = SWITCH.batch("train", torch.arange(1000))
    (x,), y, gold = batch.inputs, batch.labels, batch.true()
    assert torch.equal(gold[:, 0] > 0, gold[:, 4] == 0)
    assert bool((gold.sum(-1) == 5).all())
    assert bool((gold[:, 9] == 1).all())
    positive = gold[:, 0] > 0
    assert float(x[positive, 9].mean()) == pytest.approx(3, abs=0.2)
    assert float(x[~positive, 9].mean()) == pytest.approx(-3, abs=0.2)
    # Beyond the orange's skin labels are 0; with the additive labels, the sign of the fifth feature nearly decides.
    skin = x[:, :4].square().sum(-1)
    assert float(y[positive & (skin > 8)].mean()) < 0.1
    assert float(y[positive & (skin < 2)].mean()) > 0.8
    assert float((y == (x[:, 4] > 0))[~positive].float().mean()) > 0.9


def test_the_divergence_from_the_uniform_code() -> None:
    divergence = VAE.regulariser(VAE.model(0), VAE.batch("train", torch.arange(2)))
    scores = torch.tensor([[[0.0, 0.0, 0.0], [50.0, 0.0, 0.0]], [[math.log(2), 0.0, -50.0], [1.0, 1.0, 1.0]]])
    two_thirds = 2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3) + math.log(3)
    assert divergence(scores).tolist() == pytest.approx([math.log(3), two_thirds], abs=1e-5)


def test_the_loss_is_the_density_up_to_a_constant() -> None:
    batch, model = VAE.batch("train", torch.arange(3)), VAE.model(0)
    structures = VAE.oracle.enumerate((2, 3)).unsqueeze(1).expand(-1, 3, -1, -1)
    normal = torch.distributions.Normal(model.decoder(structures.flatten(-2)), VAE.noise**0.5)
    constant = 40 * 0.5 * math.log(2 * math.pi * VAE.noise)
    assert torch.allclose(VAE.loss(model, batch)(structures) + constant, -normal.log_prob(batch.labels).sum(-1), rtol=1e-5)


def test_the_bound_is_the_mean_over_codes() -> None:
    model, test = VAE.model(0), VAE.batch("test", torch.arange(200))
    scores = VAE.scores(model, test)
    codes = VAE.oracle.enumerate((2, 3)).unsqueeze(1).expand(-1, 200, -1, -1)
    chances = VAE.oracle.log_prob(codes, scores).exp()
    cost = (chances * VAE.loss(model, test)(codes)).sum(0) + VAE.regulariser(model, test)(scores)
    assert VAE.evaluate(model)["elbo"] == pytest.approx(-float(cost.detach().mean()), rel=1e-5)


def test_accuracy_of_a_reconstruction_is_the_explained_share() -> None:
    batch, model = VAE.batch("train", torch.arange(2)), VAE.model(0)
    model.decoder = torch.nn.Identity()
    whole = batch._replace(labels=torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]))
    structures = torch.tensor([[[3.0, 4.0]], [[3.0, 0.0]], [[30.0, 0.0]]])
    assert VAE.judge(model, whole, structures)["accuracy"].tolist() == pytest.approx([1, 9 / 25, 0])
