"""A probe in a layer that trains."""

import copy
import functools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from structgrad import Probe, StructuredLayer, train_step
from structgrad.suites.problems import from_file
from structgrad.suites.problems.score_files import ScoreFile

TARGET = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]])


def trained(probe_of: StructuredLayer, steps: int = 6, **options: int) -> tuple[Probe, nn.Linear]:
    """A decoder that learns with the layer: the loss of a step has the weights of that step."""
    torch.manual_seed(0)
    decoder, scores = nn.Linear(4, 1), nn.Parameter(torch.randn(2, 4))
    optimiser = torch.optim.SGD([scores, *decoder.parameters()], lr=0.5)
    probe = Probe(probe_of, **options)
    for number in range(steps):
        x = TARGET + number

        def loss(z: Tensor) -> Tensor:
            return (decoder(z).squeeze(-1) - (z * x).sum(-1)).square()  # noqa: B023

        train_step(probe_of, optimiser, scores, loss)
    return probe, decoder


def test_it_measures_the_steps_as_they_were() -> None:
    probe, decoder = trained(StructuredLayer("subset[k=2]", "rloo", seed=1), every=2)
    assert [record.step for record in probe.records] == [0, 2, 4]
    weights = [tensor.clone() for tensor in decoder.parameters()]
    frame = probe.measure(["rloo", "ste"]).frame
    assert all(map(torch.equal, weights, decoder.parameters()))
    assert decoder.weight.dtype == torch.float32
    assert decoder.training
    biases = frame[frame["metric"] == "relative_bias"]
    assert list(biases["stage"].unique()) == ["step=0", "step=2", "step=4"]
    assert len(biases) == 3 * 2 * 2
    assert set(biases.loc[biases["estimator"] == "rloo", "verdict"]) == {"unbiased-exact"}
    assert set(biases.loc[biases["estimator"] == "ste", "verdict"]) == {"biased"}
    # Batch and weights changed from step to step, and the losses are those of each.
    z = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    values = []
    for record in probe.records:
        with record.restored():
            values.append(record.loss(z.expand(2, 4)).tolist())
    assert len({round(value, 6) for pair in values for value in pair}) == 3


def test_its_memory_is_bounded() -> None:
    probe, _ = trained(StructuredLayer("subset[k=2]", "rloo", seed=1), steps=20, every=1, keep=4, items=1)
    assert len(probe.records) <= 4
    assert probe.every == 8
    assert [len(record.scores) for record in probe.records] == [1] * len(probe.records)
    probe.close()
    assert copy.deepcopy(probe.layer).oracle == pickle.loads(pickle.dumps(probe.layer)).oracle


def test_after_forward_the_loss_is_given() -> None:
    layer, scores = StructuredLayer("subset[k=2]", "ste", seed=1), nn.Parameter(torch.randn(2, 4))
    probe = Probe(layer)
    with pytest.raises(ValueError, match="has no record; save it after"):
        probe.save("never.npz")
    z = layer(scores)
    with pytest.raises(ValueError, match="no record with a loss"):
        probe.measure()
    probe.loss(lambda z: (z * TARGET).sum(-1).square())
    z.sum().backward()
    names = set(probe.measure().frame["estimator"])
    assert names >= {"ste", "rloo", "exact"}
    with pytest.raises(ValueError, match="every=0; expected at least 1"):
        Probe(layer, every=0)


def test_what_is_saved_is_what_a_run_takes(tmp_path: Path) -> None:
    layer, lengths = StructuredLayer("linear_chain", "rloo", seed=1), torch.tensor([3, 2])
    scores = nn.Parameter(torch.randn(2, 3, 2, 2))
    probe = Probe(layer, every=1)
    layer.surrogate(lambda z: z.flatten(-3).cumsum(-1).square().sum(-1), scores, lengths=lengths).sum().backward()
    found = probe.measure(["rloo"]).frame
    assert set(found.loc[found["metric"] == "relative_bias", "verdict"]) == {"unbiased-exact"}
    path = probe.save(tmp_path / "scores.npz")
    assert np.load(path)["lengths"].tolist() == [3, 2]
    problem = from_file(ScoreFile(str(path), "linear_chain", lengths="lengths"))
    assert [tuple(item.scores.shape) for item in problem.instances] in ([(3, 2, 2), (2, 2, 2)], [(2, 2, 2), (3, 2, 2)])


@pytest.mark.parametrize(
    ("oracle", "shape", "lengths", "places"),
    [
        ("subset[k=2]", (3, 4), None, [0, 1, 2]),
        ("linear_chain", (3, 3, 2, 2), [0, 3, 2], [1, 2]),
        ("projective_tree", (3, 4, 4), [0, 3, 2], [1, 2]),
        ("spanning_tree", (2, 4, 4), 2, [0, 1]),
        ("edit_alignment", (2, 3, 3, 5), [2, 1], [0, 1]),
        ("linear_chain", (2, 3, 2, 2), [0, 0], None),
    ],
)
def test_forbidden_parts_and_lengths(
    oracle: str, shape: tuple[int, ...], lengths: list[int] | int | None, places: list[int] | None
) -> None:
    """Empty items are left out, and one length may be that of all items."""
    layer, scores = StructuredLayer(oracle, "rloo", seed=1), torch.randn(shape)
    probe, event = Probe(layer), layer.oracle.event_ndim
    if lengths is None:
        scores[..., 0] = -torch.inf
    given = None if lengths is None else torch.tensor(lengths)
    layer.surrogate(lambda z: z.flatten(-event).cumsum(-1).square().sum(-1), scores.requires_grad_(), lengths=given)
    assert [record.places for record in probe.records] == ([] if places is None else [places])
    if places is not None:
        frame = probe.measure(["rloo"]).frame
        assert set(frame.loc[frame["metric"] == "relative_bias", "verdict"]) == {"unbiased-exact"}


def test_losses_are_copied_with_their_arguments() -> None:
    layer, decoder, weights = StructuredLayer("subset[k=2]", "rloo", seed=1), nn.Linear(4, 1), np.ones(4)
    table: dict[str, object] = {"weights": weights, "shift": torch.ones(())}
    table["table"] = [table]

    def loss(z: Tensor, decode: nn.Module, scale: Tensor, shift: object = table["shift"]) -> Tensor:
        return decode(z).squeeze(-1) * scale + z @ torch.as_tensor(table["weights"]).to(z) + shift

    first, second = Probe(layer), Probe(layer, every=2)
    given = functools.partial(loss, decode=decoder, scale=torch.tensor(2.0))
    expected = given(TARGET).detach().double()
    layer.surrogate(given, torch.randn(2, 4, requires_grad=True))
    (record,), (_,) = first.records, second.records
    assert {value.dtype for _, value, _ in record.weights} == {torch.float32}
    nn.init.zeros_(decoder.weight)
    given.keywords["scale"].zero_()
    weights[:] = 7
    table["shift"].zero_()  # type: ignore[attr-defined]
    with record.restored():
        torch.testing.assert_close(record.loss(TARGET.double()).detach(), expected)
    first.close()
    for scores, lengths in ((torch.zeros(4), torch.tensor([9])), ([0.0], None), (torch.zeros(2, dtype=torch.int64), None)):
        with pytest.raises(ValueError, match="got"):
            layer.surrogate(given, scores, lengths=lengths)  # type: ignore[arg-type]
    assert (first.calls, second.calls) == (1, 1)
    layer.surrogate(given, torch.zeros(2, 4))
    assert (first.calls, second.calls) == (1, 2)
