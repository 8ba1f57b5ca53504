"""The contract of every task, for tasks of any size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from structgrad.suites.score_folders import TASK_FOLDERS, task_file
from structgrad.suites.tasks import Batch, LatentModel, Task


def needs(*files: str) -> pytest.MarkDecorator:
    """Skips where real data is not there."""
    missing = [name for name in files if task_file(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is in none of {', '.join(TASK_FOLDERS)}")


def some(task: Task, count: int = 5) -> Tensor:
    return torch.arange(min(count, task.size("train")))


def check_reproducible(task: Task, *caches: Any) -> None:
    """Data and parameters are reproducible, and their random numbers leave the global generator alone."""
    here = torch.get_rng_state()
    first = task.batch("train", some(task))
    for cache in caches:
        cache.cache_clear()
    second = task.batch("train", some(task))
    for one, other in zip((*first.inputs, first.labels), (*second.inputs, second.labels), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(task.model(3).parameters(), task.model(3).parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == torch.float32
    assert torch.equal(torch.get_rng_state(), here)
    assert not all(torch.equal(one, other) for one, other in zip(task.model(3).parameters(), task.model(4).parameters(), strict=True))


def check_loss(task: Task) -> None:
    """One value per structure for any leading dimensions; near a structure the soft loss approaches the hard one."""
    batch, model = task.batch("train", some(task)), task.model(0)
    with torch.no_grad():
        scores, loss = task.scores(model, batch), task.loss(model, batch)
        structure, inside = task.oracle.argmax(scores), task.oracle.marginals(torch.randn_like(scores).where(scores > -torch.inf, scores))
        hard = loss(structure)
        assert hard.shape == (len(batch.labels),)
        assert torch.isfinite(hard).all()
        assert (loss(torch.stack([structure, inside])) - torch.stack([hard, loss(inside)])).abs().max() < 1e-5
        assert (loss(structure.lerp(inside, 1e-6)) - hard).abs().max() < 1e-3
        for values in task.judge(model, batch, structure).values():
            assert values.shape == (len(batch.labels),)
        if batch.lengths is not None:
            assert torch.equal(scores, task.oracle.pad(scores, batch.lengths))
            used = task.oracle._inside(tuple(scores.shape[1:]), batch.lengths)
            assert not used.all()
            torch.testing.assert_close(loss(torch.where(used, inside, 7.0)), loss(inside))
    point = inside.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(point).sum(), point)
    assert (slope.flatten(1) != 0).any(1).all()


def check_stackable(task: Task) -> None:
    """Several models are one stacked model, of the same scores and losses."""
    models, items = [task.model(seed) for seed in range(2)], some(task)
    batches = [_parts(task.batch("train", items)), _parts(task.batch("train", items.flip(0)))]
    with torch.no_grad():
        structures = [task.oracle.argmax(task.scores(model, Batch(**batch))) for model, batch in zip(models, batches, strict=True)]
    called = [_Called(task, model) for model in models]
    parameters, buffers = stack_module_state(called)  # type: ignore[arg-type]
    stacked = tree_map(lambda *parts: torch.stack(parts), *batches)

    def each(state: dict[str, Tensor], batch: dict[str, Any], structure: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = functional_call(called[0], state, (batch, structure))
        return found

    together = vmap(each)({**parameters, **buffers}, stacked, torch.stack(structures))
    for seed, (model, batch) in enumerate(zip(called, batches, strict=True)):
        for one, other in zip(model(batch, structures[seed]), together, strict=True):
            torch.testing.assert_close(one, other[seed], atol=1e-5, rtol=1e-4)


def _parts(batch: Batch) -> dict[str, Any]:
    """The tensors of a batch without None, over which a transform cannot map."""
    return {name: part for name, part in batch._asdict().items() if part is not None}


class _Called(torch.nn.Module):
    """A task's scores and losses as one module, whose state can be stacked."""

    def __init__(self, task: Task, model: LatentModel) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, parts: dict[str, Any], structure: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(**parts)
        return self.task.scores(self.model, batch), self.task.loss(self.model, batch)(structure)


def check_absence(task: Task, monkeypatch: pytest.MonkeyPatch, folder: Path, file: str) -> None:
    """Without its data a task says which file it lacks, and where it was looked for."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STRUCTGRAD_TASK_DATA", raising=False)
    said = (
        f"`{task.name}` needs the file {file}, which is in none of $STRUCTGRAD_TASK_DATA, ./data, ../shared/data; "
        f"set STRUCTGRAD_TASK_DATA to the folder that holds {file.partition('/')[0]}/"
    )
    assert task.unavailable() == said
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        task.size("train")
