from __future__ import annotations

import pytest
import torch

from structgrad.oracles import numerics
from structgrad.oracles.numerics import row_products


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_pieces_are_as_large_as_the_cache_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matrix = drawn(100, 3), drawn(4, 3, seed=1)
    whole = row_products(rows, matrix)
    for numbers in (1, 12, 100):
        monkeypatch.setattr(numerics, "_PRODUCTS", numbers)
        assert torch.equal(row_products(rows, matrix), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("size", "number"), [(1, 1), (3, 2), (7, 16), (8, 5), (9, 1), (16, 2), (33, 5), (255, 16), (1000, 2)])
def test_a_row_comes_out_the_same_to_the_last_bit_whatever_the_others(size: int, number: int, dtype: torch.dtype) -> None:
    matrix, most = drawn(number, size, seed=1, dtype=dtype), 600
    rows, directions = drawn(most, size, dtype=dtype), drawn(most, number, seed=2, dtype=dtype)

    def computed(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = rows[part].clone().requires_grad_()
        products = row_products(leaf, matrix)
        return products.detach(), torch.autograd.grad(products, leaf, directions[part])[0]

    values, gradients = computed(slice(most))
    torch.testing.assert_close(values, rows @ matrix.mT, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-12)
    for few in (1, 2, 3, 5, 16, 63, 64, 65, 513):
        for part in (slice(few), slice(most - few, most)):
            found, slopes = computed(part)
            assert torch.equal(found, values[part])
            assert torch.equal(slopes, gradients[part])
