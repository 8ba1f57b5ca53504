import math
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ORACLES, EnumerableOracle, ProjectionOracle, SamplingOracle, make_oracle


@dataclass(frozen=True)
class Corners(ProjectionOracle):
    """All 0/1 vectors with at least one 1, whose last part is ignored: as a third party would write it."""

    name: ClassVar[str] = "corners"
    axes: ClassVar[tuple[str, ...]] = ("length",)
    _ignores_entries: ClassVar[bool] = True

    def count(self, event_shape: tuple[int, ...]) -> int:
        return int(2 ** (event_shape[0] - 1)) - 1

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.arange(event_shape[0], device=device) < event_shape[0] - 1

    def _argmax(self, rows: Tensor) -> Tensor:
        inner = rows[..., :-1]
        best = (inner > 0).to(rows.dtype).scatter(-1, inner.argmax(-1, keepdim=True), 1)
        return torch.nn.functional.pad(best, (0, 1))


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


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        *((name, {"length": 7}, (7,)) for name in ("categorical", "subset[k=2]")),
        *((name, {"length": 7}, (7, 7)) for name in ("constituency", "assignment")),
        *((name, {"length": 7}, (8, 8)) for name in ("projective_tree", "spanning_tree")),
        ("linear_chain", {"length": 5, "tags": 3}, (5, 3, 3)),
        ("alignment", {"rows": 5, "columns": 3}, (5, 3)),
        ("shift_reduce", {"length": 5}, (6, 6, 2)),
    ],
)
def test_event_shapes_by_the_names_of_sizes(name: str, sizes: dict[str, int], expected: Any) -> None:
    oracle = make_oracle(name)
    assert oracle.event_shape(**sizes) == expected
    oracle.check_event("test", expected)
