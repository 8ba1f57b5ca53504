"""Errors of tasks that break the contract, and results that are computed once."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Subset
from structgrad.suites.tasks import ModuleTask, Task, make_task
from structgrad.suites.tasks.check import check_task
from structgrad.suites.tasks.references import remembered
from structgrad.suites.tasks.synthetic import Clusters

SIZES: dict[str, Any] = {"clusters": 3, "features": 4, "train": 200, "heldout": 100, "steps": 20}


def test_true_structures_help() -> None:
    assert check_task(Clusters(**SIZES | {"steps": 60})) == []


def changed(method: str, change: Callable[..., Any], kind: type[Task] = Clusters) -> dict[str, Any]:
    """A method of a task that applies a function to the result, and to the arguments."""
    return {method: lambda self, *given: change(getattr(kind, method)(self, *given), *given)}


def with_loss(change: Callable[..., Any], kind: type[Task] = Clusters, **more: Any) -> dict[str, Any]:
    """A task whose loss is a function of the plain one and of structures."""
    return changed("loss", lambda plain, *_: replace(plain, call=lambda z: change(plain, z), **more), kind)


def noisy(model: Any, seed: int) -> Any:
    with torch.no_grad():
        model.encoder.bias.add_(torch.randn(()))
    return model


def failing(*_: Any) -> None:
    raise KeyError("nothing")


FAULTS: dict[str, dict[str, Any]] = {
    r"labels of 4 items of the split train has shape \(1,\); expected 4 rows": changed(
        "batch", lambda batch, *_: batch._replace(labels=batch.labels[:1])
    ),
    r"the loss of structures of shape \(3, 4, 3\) has shape \(3,\); expected one value": with_loss(lambda plain, z: plain(z).mean(-1)),
    "the scores of an item depend on the other items of its batch": changed("scores", lambda scores, *_: scores - scores.mean(0)),
    "the loss of a structure depends on the other structures of a call": with_loss(lambda plain, z: plain(z) - plain(z).mean()),
    "the loss jumps by 10 next to a structure; expected soft and hard": with_loss(lambda plain, z: plain(z) + 10.0 * (z.amax(-1) < 1)),
    "has no gradient in the structure; say differentiable=False": with_loss(lambda plain, z: plain(z.detach()).detach(), inside_hull=False),
    "two models of one seed differ": changed("model", noisy),
    "the models of two seeds are equal": {"model": lambda self, seed: Clusters.model(self, 0)},
    "inputs\\[0\\] of a batch is another one when it is asked for again": changed(
        "batch", lambda batch, *_: batch._replace(inputs=(batch.inputs[0] + torch.randn(()),))
    ),
    "expected structure_accuracy where it has a name": {"structured": ""},
    "`parameter_groups` has 6 parameters; expected the 4 that require gradients, each once": changed(
        "parameter_groups", lambda groups, model, rate: [*groups, {"params": list(model.encoder.parameters()), "lr": rate}]
    ),
    "gives scores of torch.float32 and losses of torch.float64; expected float64 of both": changed(
        "scores", lambda scores, *_: scores.float()
    ),
    "scores in double precision are others": changed("scores", lambda scores, *_: scores + 1.0 * (scores.dtype == torch.float64)),
    "no parameter of the encoder requires a gradient": changed(
        "model", lambda model, seed: (model.encoder.requires_grad_(False), model)[1]
    ),
    "labels of 4 items of the split test has shape": changed(
        "batch", lambda batch, split, items: batch._replace(labels=batch.labels[:1]) if split == "test" else batch
    ),
    "expected a task on which structures help": {"ceiling": Clusters.floor},
    "failed with KeyError: 'nothing'": {"judge": failing},
}
"""Sentences of the check, and the methods that break the contract."""


@pytest.mark.parametrize("sentence", FAULTS)
def test_faults_are_found(sentence: str) -> None:
    found = check_task(type("Faulty", (Clusters,), FAULTS[sentence])(**SIZES), trained="ceiling" in FAULTS[sentence])
    assert any(re.search(sentence, line) for line in found), found


class Counting(torch.nn.Module):
    def forward(self, x, z):
        return torch.stack([-(x * z).sum(-1), (x * z).sum(-1)], -1)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.weight * x


def ragged(methods: dict[str, Any]) -> ModuleTask:
    """Two of three to six numbers, whose sum has the label as its sign."""
    draws = torch.Generator().manual_seed(0)
    items = [torch.randn(int(size), generator=draws) for size in torch.randint(3, 7, (60,), generator=draws)]
    kind = type("Faulty", (ModuleTask,), methods)
    return kind(Weighted, Counting, Subset(2), [(x, int(x.topk(2).values.sum() > 0)) for x in items])


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        (
            {"scores": lambda self, model, batch: model.encoder(*batch.inputs)},
            r"others when the oracle gets lengths=; expected scores that `oracle.pad\(scores, lengths\)` has padded",
        ),
        (with_loss(lambda plain, z: plain(z) + z.sum(-1), ModuleTask), "the loss depends on the parts of a structure in the padding"),
        (
            {"judge": lambda self, model, batch, structure: {"accuracy": structure.mean(-1).clamp(0, 1)}},
            "`judge` gives another accuracy when the padding of a structure changes",
        ),
    ],
)
def test_padding_must_not_matter(methods: dict[str, Any], sentence: str) -> None:
    found = check_task(ragged(methods), trained=False)
    assert any(re.search(sentence, line) for line in found), found
    assert check_task(ragged({}), trained=False) == []


def test_a_task_without_data_or_items_is_not_checked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_task(make_task("clusters[train=2]"), trained=False) == ["clusters: the split train has 2 items; expected at least 4"]
    monkeypatch.setattr(Clusters, "size", failing)
    assert check_task(Clusters(**SIZES)) == ["clusters failed with KeyError: 'nothing'"]
    monkeypatch.setattr(Clusters, "unavailable", lambda self: "no points are there")
    assert check_task(Clusters(**SIZES)) == ["clusters cannot be checked: no points are there"]


TASK = Clusters(**SIZES)


def never() -> dict[str, Tensor]:
    return pytest.fail("computed again")


def state(value: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor([value])}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"not parameters", b"PK\x03\x04"])
def test_results_are_read_by_their_names(content: bytes | None, tmp_path: Path) -> None:
    """A file that cannot be read is written again, and no other file is left."""
    assert remembered(TASK, ("a", 1), lambda: state(0.1)) == state(0.1)
    if content is not None:
        [file] = (tmp_path / "structgrad" / "tasks").glob("*.pt")
        file.write_bytes(content)
        assert remembered(TASK, ("a", 1), lambda: state(0.3)) == state(0.3)
    assert remembered(TASK, ("a", 1), never) == state(0.1 if content is None else 0.3)
    assert remembered(TASK, ("a", 2), lambda: state(0.2)) == state(0.2)
    assert {path.suffix for path in (tmp_path / "structgrad" / "tasks").iterdir()} <= {".pt", ".lock"}


def test_results_that_cannot_be_written_are_computed_again(tmp_path: Path) -> None:
    (tmp_path / "structgrad").write_text("no folder")
    assert remembered(TASK, ("a",), lambda: state(0.4)) == state(0.4)
    assert remembered(TASK, ("a",), lambda: state(0.5)) == state(0.5)


def test_results_are_computed_on_one_thread() -> None:
    """The number of threads does not change the parameters."""
    before, threads = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        remembered(TASK, ("a",), lambda: threads.append(torch.get_num_threads()) or state(0.6))
        assert (threads, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
