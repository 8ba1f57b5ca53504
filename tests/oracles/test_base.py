from __future__ import annotations

import math
import re
from dataclasses import dataclass, is_dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    ORACLES,
    Categorical,
    EnumerableOracle,
    LinearChain,
    Oracle,
    ProjectionOracle,
    SamplingOracle,
    SeedBlocks,
    Subset,
    active_set,
    make_oracle,
)
from structgrad.oracles.base import RowArgmax
from structgrad.oracles.masking import log_sum_exp, share_rows, zero_ignored
from structgrad.oracles.random_streams import draw_rows, random_uniform
from structgrad.oracles.sparse_solution import Projection


@dataclass(frozen=True)
class Corners(ProjectionOracle):
    """All 0/1 vectors of length n with at least one 1, whose last part is ignored: as a third party would write it."""

    name: ClassVar[str] = "corners"
    event_ndim: ClassVar[int] = 1
    _ignores_entries: ClassVar[bool] = True

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return (sizes["length"] + 1,)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return int(2 ** (event_shape[0] - 1)) - 1

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.arange(event_shape[0], device=device) < event_shape[0] - 1

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        pass

    def _argmax(self, rows: Tensor) -> Tensor:
        inner = rows[..., :-1]
        best = (inner > 0).to(rows.dtype).scatter(-1, inner.argmax(-1, keepdim=True), 1)
        return torch.nn.functional.pad(best, (0, 1))

    def _project(self, rows: Tensor, argmax: RowArgmax) -> Projection:
        return active_set.solve(argmax, rows)


def test_an_oracle_of_a_third_party_needs_an_argmax_alone() -> None:
    scores = torch.tensor([[0.25, 2.0, -3.0, math.nan], [-0.5, -0.25, -3.0, 7.0]], dtype=torch.float64).requires_grad_()
    solution = Corners().project(scores.unsqueeze(1).expand(2, 3, 4))
    expected = torch.tensor([[0.25, 1.0, 0.0, 0.0], [0.375, 0.625, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(solution.mean, expected.unsqueeze(1).expand(2, 3, 4), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(solution.mean[:, :, 0].sum(), scores)
    torch.testing.assert_close(gradient, torch.tensor([[3.0, 0, 0, 0], [1.5, -1.5, 0, 0]], dtype=torch.float64), rtol=0, atol=1e-12)
    assert make_oracle(f"{__name__}:Corners") == Corners()


@pytest.mark.parametrize("name", ORACLES)
def test_the_registry_holds_frozen_dataclasses_under_their_names(name: str) -> None:
    oracle = ORACLES[name]
    assert oracle.name == name
    assert is_dataclass(oracle)
    assert oracle.__dataclass_params__.frozen
    assert issubclass(oracle, SamplingOracle)
    assert issubclass(oracle, ProjectionOracle)
    assert issubclass(oracle, EnumerableOracle)
    assert oracle.references


def test_an_abstract_oracle_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Oracle()  # type: ignore[abstract]


def test_expanded_rows_are_shared_and_strided_ones_are_not() -> None:
    rows = torch.randn(3, 1, 4)
    assert share_rows(rows.expand(3, 5, 4), 1).shape == (3, 1, 4)
    assert share_rows(rows.repeat(1, 5, 1), 1).shape == (3, 5, 4)
    assert share_rows(torch.randn(1, 4).expand(3, 4).unsqueeze(-1).expand(3, 4, 2), 1).shape == (1, 4, 2)


def test_zeroing_ignored_entries_keeps_rows_shared() -> None:
    mask = torch.tensor([True, False])
    scores = torch.tensor([1.0, math.nan], dtype=torch.float64).expand(3, 2).detach().requires_grad_()
    zeroed = zero_ignored(scores, mask)
    assert zeroed.tolist() == [[1, 0]] * 3
    assert share_rows(zeroed, 1).shape == (1, 2)
    rates = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).unsqueeze(1)
    (gradient,) = torch.autograd.grad((rates * zeroed.square()).sum(), scores, create_graph=True)
    assert gradient.tolist() == [[2, 0], [4, 0], [6, 0]]
    (second,) = torch.autograd.grad(gradient.sum(), scores)
    assert second.tolist() == [[2, 0], [4, 0], [6, 0]]


def test_log_sum_exp_of_nothing() -> None:
    values = torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf], [1e4, 1e4]], dtype=torch.float64, requires_grad=True)
    result = log_sum_exp(values, -1)
    torch.testing.assert_close(result, torch.tensor([-math.inf, 0.0, 1e4 + math.log(2)], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(result[1:].sum() + result[0], values)
    assert gradient.tolist() == [[0, 0], [1, 0], [0.5, 0.5]]


def test_uniforms_are_float64_in_the_unit_interval() -> None:
    uniforms = random_uniform((1000,), (20,), generator=torch.Generator().manual_seed(0), device=torch.device("cpu"))
    assert uniforms.dtype == torch.float64
    assert uniforms.shape == (1000, 20)
    assert bool(((uniforms >= 0) & (uniforms < 1)).all())
    assert len(uniforms.unique()) == 20_000


def test_each_block_draws_from_a_stream_of_its_own() -> None:
    def draw(size: tuple[int, ...], stream: torch.Generator) -> Tensor:
        return torch.rand(size, generator=stream)

    together = draw_rows((7, 2), (3,), draw, SeedBlocks((1, 2, 3), 3))
    assert together.shape == (7, 2, 3)
    for i, rows in enumerate((3, 3, 1)):
        assert torch.equal(together[3 * i : 3 * i + 3], torch.rand(rows, 2, 3, generator=torch.Generator().manual_seed(i + 1)))
    assert torch.equal(draw_rows((), (3,), draw, SeedBlocks((1, 2), 3)), torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_blocks_go_on_where_they_stopped() -> None:
    blocks, stream = SeedBlocks((4, 5), 2), torch.Generator().manual_seed(5)
    scores = torch.zeros(4, 50)
    first, second = (Categorical().sample(scores, generator=blocks) for _ in range(2))
    assert not torch.equal(first, second)
    expected = [Categorical().sample(scores[2:], generator=stream) for _ in range(2)]
    assert torch.equal(torch.stack([first[2:], second[2:]]), torch.stack(expected))


def test_blocks_are_a_generator() -> None:
    blocks = SeedBlocks((9, 10), 4)
    assert isinstance(blocks, torch.Generator)
    assert blocks.seeds == (9, 10)
    assert torch.equal(torch.rand(5, generator=blocks), torch.rand(5, generator=torch.Generator().manual_seed(9)))


def test_messages_of_seed_blocks() -> None:
    with pytest.raises(ValueError, match="`SeedBlocks` got 0 seeds and size=4; expected at least one of each"):
        SeedBlocks((), 4)
    with pytest.raises(ValueError, match="`SeedBlocks` got 1 seeds and size=0; expected at least one of each"):
        SeedBlocks((1,), 0)
    with pytest.raises(ValueError, match="`SeedBlocks` got a batch of 5 rows; expected at most 2 blocks of 2"):
        Categorical().sample(torch.zeros(5, 3), generator=SeedBlocks((1, 2), 2))


@pytest.mark.parametrize(
    ("oracle", "sizes", "message"),
    [
        (LinearChain, {"length": 3}, "`linear_chain.event_shape` got sizes length; expected length, tags"),
        (Categorical, {}, "`categorical.event_shape` got sizes nothing; expected length"),
        (Subset, {"length": 3, "tags": 2}, "`subset.event_shape` got sizes length, tags; expected length"),
    ],
)
def test_event_shape_names_the_sizes_it_expects(oracle, sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        oracle.event_shape(**sizes)
