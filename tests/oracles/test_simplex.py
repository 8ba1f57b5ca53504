import math
from collections.abc import Iterator
from contextlib import nullcontext
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from structgrad.oracles import Subset, kernels
from structgrad.oracles.simplex.projection import project
from tests.helpers import seeded

SIZES = [(1, 1), (2, 1), (7, 3), (30, 1), (30, 29), (30, 30), (64, 10), (65, 40), (120, 120)]


@pytest.fixture(params=["compiled", "torch"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.param == "compiled" else kernels.disabled():
        yield


def exact(row: list[float], k: int) -> list[Fraction]:
    """In rational numbers: the piece between two bends, on which the sum of the clips is affine, that holds the value k."""
    scores = [Fraction(score) for score in row]
    bends = sorted({bend for score in scores for bend in (score, score - 1)})

    def clips(threshold: Fraction) -> list[Fraction]:
        return [min(max(score - threshold, Fraction(0)), Fraction(1)) for score in scores]

    for lower, upper in zip(bends, [*bends[1:], bends[-1] + 1], strict=True):
        high, low = sum(clips(lower)), sum(clips(upper))
        if high >= k >= low:
            return clips(lower if high == low else lower + (upper - lower) * (high - k) / (high - low))
    return clips(bends[0])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_larger_rows_are_exact(n: int, k: int) -> None:
    noise = torch.randn(1, n, dtype=torch.float64)
    for rows in (0 * noise, 1e-6 * noise, 0.05 * noise, noise, 50 * noise, (5 * noise).round()):
        point, gap = project(rows, k)
        expected = torch.tensor([[float(value) for value in exact(rows[0].tolist(), k)]], dtype=torch.float64)
        torch.testing.assert_close(point, expected, rtol=0, atol=1e-13)
        assert bool((gap <= 1e-12).all())


ENTRIES = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-2.0, 2.0),
    st.floats(-1e6, 1e6),
    st.floats(-1e-6, 1e-6),
    st.integers(-4, 4).map(lambda i: i / 3),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_is_exact_to_rounding_at_every_scale(data: st.DataObject) -> None:
    row = data.draw(st.lists(ENTRIES, min_size=1, max_size=12))
    k = data.draw(st.integers(1, len(row)))
    hidden = data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)).filter(lambda mask: sum(mask) <= len(row) - k))
    expected = iter(exact([score for score, forbidden in zip(row, hidden, strict=True) if not forbidden], k))
    truth = torch.tensor([0.0 if forbidden else float(next(expected)) for forbidden in hidden], dtype=torch.float64)
    rows = torch.tensor([row], dtype=torch.float64).masked_fill(torch.tensor([hidden]), -math.inf)
    finite = rows[rows > -math.inf]
    # Scores of 1e6 are multiples of 1e-10, and their differences no better.
    rounding = 1e-15 * (len(row) + float(finite.abs().max()))
    with kernels.disabled():
        reference = project(rows, k)
    for point, gap in (project(rows, k), reference):
        torch.testing.assert_close(point[0], truth, rtol=0, atol=rounding)
        assert abs(float(point.sum()) - k) <= rounding * len(row)
        assert bool(((point >= 0) & (point <= 1)).all())
        thresholds = (rows - point)[(point > 0) & (point < 1)]
        assert not len(thresholds) or float(thresholds.max() - thresholds.min()) <= 2 * rounding
        assert 0 <= float(gap) <= 1e-12


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("row", "k"),
    [
        # Newton's method without a bracket goes round in circles.
        ([-0.16666666666666666, -1.0, -0.16666666666666666, 0.5, -0.3333333333333333, 0.16666666666666666], 1),
        ([-0.8333333333333334, 0.0, 0.0, -0.16666666666666666, 0.3333333333333333, -0.5, -0.8333333333333334], 3),
        # Rounding leads from the last piece on which the sum rises to the next, on which it is k throughout.
        ([0.3, 0.0, 2.7, 0.0], 4),
        ([-2.6666666666666665, -2.0, 2.0, -2.6666666666666665, -1.3333333333333333, 0.6666666666666666, 5.0], 7),
    ],
)
def test_rows_that_are_hard_to_solve(row: list[float], k: int) -> None:
    point, gap = project(torch.tensor([row], dtype=torch.float64), k)
    assert point[0].tolist() == pytest.approx([float(value) for value in exact(row, k)], abs=1e-15)
    assert gap.item() <= 1e-15


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (4,), (0,), (2, 3)])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 11, 39])
def test_a_gradient_in_any_layout_and_its_own_gradients(batch: tuple[int, ...], size: int, dtype: torch.dtype) -> None:
    scores = torch.randn(*batch, size, generator=seeded(3)).to(dtype).requires_grad_()
    mean = Subset(size // 2).project(scores).mean
    weights = torch.randn(size, *batch, generator=seeded(4)).to(dtype)
    dense = weights.movedim(0, -1).contiguous().requires_grad_()
    first, strided, negative, shared = (
        torch.autograd.grad(mean, scores, given, retain_graph=True)[0]
        for given in (dense, weights.movedim(0, -1), (-1j * dense.detach()).conj().imag, torch.ones(()).to(dtype).expand_as(mean))
    )
    # The free parts move, less their average.
    free = (mean > 0) & (mean < 1)
    inside = torch.where(free, dense, 0)
    average = inside.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    rounding = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(first, torch.where(free, inside - average, 0).detach(), rtol=0, atol=rounding)
    assert torch.equal(strided, first)
    assert torch.equal(negative, first)
    torch.testing.assert_close(shared, torch.zeros_like(first), rtol=0, atol=rounding)
    # Linear in the weights, and its own transpose: twice, three times as once.
    (again,) = torch.autograd.grad(mean, scores, dense, create_graph=True)
    assert torch.equal(again, first)
    given = again.detach().requires_grad_()
    (second,) = torch.autograd.grad(again, dense, given, create_graph=True)
    (third,) = torch.autograd.grad(second, given, dense.detach())
    torch.testing.assert_close(second, first, rtol=0, atol=rounding)
    torch.testing.assert_close(third, first, rtol=0, atol=rounding)
