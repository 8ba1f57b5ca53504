import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, Subset
from structgrad.suites.problems import Offset
from structgrad.suites.problems.losses import (
    F1,
    LOSSES,
    MLP,
    BlackBox,
    Downstream,
    ExactMatch,
    Hamming,
    Linear,
    LinearForm,
    LinearSquaredDistance,
    LowRankQuadratic,
    SquaredDistance,
    StructureLoss,
    make_loss,
)
from tests.suites.truth.test_closed_form import Formed

EVENT = (3, 2, 2)
PARTS = LinearChain().read_mask(EVENT)
GOLD = LinearChain.structure(torch.tensor([1, 0, 1]), 2, torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def cross_entropy(logits: list[float], label: int) -> float:
    return math.log(sum(math.exp(logit) for logit in logits)) - logits[label]


@dataclass(frozen=True, eq=False)
class Case:
    """A loss and the same number written with explicit loops over Python floats."""

    loss: StructureLoss
    explicit: Callable[[Any], Any]
    event: tuple[int, ...] = EVENT

    def __str__(self) -> str:
        return self.loss.name


WEIGHTS, TARGET = drawn(*EVENT, seed=1), drawn(*EVENT, seed=2)
MATRIX, BIAS, SECOND = drawn(4, *EVENT, seed=3), drawn(4, seed=4), drawn(3, 4, seed=5)
CLASSIFIER, CLASS_BIAS, FRAMES = drawn(3, 2, seed=6), drawn(3, seed=7), drawn(5, 2, seed=8)
CELLS = list(np.ndindex(*EVENT))
READ = [cell for cell in CELLS if bool(PARTS[cell])]


def explicit_mlp(z: Any) -> Any:
    hidden = [math.tanh(sum(float(MATRIX[(h, *c)]) * z[c] for c in CELLS) + float(BIAS[h])) for h in range(4)]
    return cross_entropy([sum(float(SECOND[c, h]) * hidden[h] for h in range(4)) for c in range(3)], 2)


def explicit_downstream(z: Any) -> Any:
    mean = [sum(z[i] * float(FRAMES[i, f]) for i in range(5)) / 2 for f in range(2)]
    return cross_entropy([sum(float(CLASSIFIER[c, f]) * mean[f] for f in range(2)) + float(CLASS_BIAS[c]) for c in range(3)], 1)


def explicit_f1(z: Any) -> Any:
    common = sum(z[c] * float(GOLD[c]) for c in CELLS)
    return 1 - 2 * common / (sum(z[c] for c in READ) + sum(float(GOLD[c]) for c in CELLS))


NETWORK = MLP(MATRIX, BIAS, SECOND, 2)
CASES = (
    Case(Linear(WEIGHTS), lambda z: sum(float(WEIGHTS[c]) * z[c] for c in CELLS)),
    Case(SquaredDistance(TARGET, PARTS), lambda z: sum((z[c] - float(TARGET[c])) ** 2 for c in READ)),
    Case(LinearSquaredDistance(TARGET, PARTS), lambda z: sum(z[c] * (1 - 2 * float(TARGET[c])) + float(TARGET[c]) ** 2 for c in READ)),
    Case(
        LowRankQuadratic(MATRIX, GOLD),
        lambda z: sum(sum(float(MATRIX[(r, *c)]) * (z[c] - float(GOLD[c])) for c in CELLS) ** 2 for r in range(4)),
    ),
    Case(Hamming(GOLD), lambda z: sum(1 - z[c] for c in CELLS if GOLD[c] == 1)),
    Case(ExactMatch(GOLD, PARTS), lambda z: 1 - math.prod(1 - abs(z[c] - float(GOLD[c])) for c in READ)),
    Case(F1(GOLD, PARTS), explicit_f1),
    Case(NETWORK, explicit_mlp),
    Case(Downstream(CLASSIFIER, CLASS_BIAS, FRAMES, 2, 1), explicit_downstream, (5,)),
    Case(BlackBox(NETWORK), explicit_mlp),
)
each = pytest.mark.parametrize("case", CASES, ids=str)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows by parts": torch.Tensor.contiguous,
    "parts by rows": lambda z: z.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other row": lambda z: torch.stack([z, z], 1)[:, 0],
}


def points(event: tuple[int, ...], *leading: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(9).uniform(0.1, 1, (*leading, *event)))


@each
def test_values_equal_an_explicit_loop(case: Case) -> None:
    z = points(case.event, 6)
    torch.testing.assert_close(case.loss(z), torch.tensor([case.explicit(row.numpy()) for row in z], dtype=torch.float64))


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_comes_out_the_same_to_the_last_bit_whatever_it_shares_a_call_with(case: Case, dtype: torch.dtype, layout: str) -> None:
    """Values and gradients: a product of matrices rounds a row by how many there are, on one processor or another."""
    z = points(case.event, 1030).to(dtype)
    z[2::3] = z[2::3].round()
    values, gradients = with_gradients(case.loss, z)
    for rows in (1, 2, 3, 5, 7, 16, 63, 64, 65, 127, 513, 1024):
        for part in (slice(rows), slice(len(z) - rows, len(z))):
            found, slopes = with_gradients(case.loss, LAYOUTS[layout](z[part]))
            assert torch.equal(found, values[part])
            assert torch.equal(slopes, gradients[part])


def with_gradients(loss: StructureLoss, z: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.detach().requires_grad_()
    values = loss(leaf)
    return values.detach(), torch.autograd.grad(values.sum(), leaf)[0] if loss.differentiable else values.detach()


@each
def test_a_form_is_the_loss_on_structures(case: Case) -> None:
    z = (LinearChain() if case.event == EVENT else Subset(2)).enumerate(case.event, dtype=torch.float64)
    form = case.loss.form
    assert (case.loss.vertex_degree == 1) == isinstance(form, LinearForm)
    assert (form is None) == (case.loss.name in ("mlp", "downstream", "black_box"))
    if form is not None:
        torch.testing.assert_close(case.loss(z), Formed(form, len(case.event))(z).double())


made = pytest.mark.parametrize("name", [name for name in LOSSES if name != "downstream"])


@made
def test_ignored_entries_carry_no_weight(name: str) -> None:
    loss = make_loss(name, GOLD, LinearChain(), seed=0)
    z = points(EVENT, 3)
    ignored = torch.where(PARTS, z, z + 5)
    torch.testing.assert_close(loss(ignored), loss(z))
    if loss.differentiable:
        (gradient,) = torch.autograd.grad(loss(leaf := z.requires_grad_()).sum(), leaf)
        assert bool((gradient[:, ~PARTS] == 0).all())
        assert bool((gradient[:, PARTS] != 0).any())


@each
def test_a_shifted_loss_keeps_all_but_its_values(case: Case) -> None:
    loss, z = Offset(Offset(case.loss, 10.0), -0.5), points(case.event, 3).requires_grad_()
    torch.testing.assert_close(loss(z), case.loss(z) + 9.5)
    assert (loss.name, loss.offset) == (f"{case.loss.name}+10-0.5", 9.5)
    for name in ("differentiable", "inside_hull", "vertex_degree", "extension"):
        assert getattr(loss, name) == getattr(case.loss, name)
    if case.loss.differentiable:
        assert torch.equal(*(torch.autograd.grad(one(z).sum(), z)[0] for one in (loss, case.loss)))
