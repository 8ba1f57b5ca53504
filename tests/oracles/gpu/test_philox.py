from __future__ import annotations

import pytest
import torch

from structgrad.oracles import kernels
from structgrad.oracles.random_streams import SeedBlocks, philox_uniforms


@pytest.mark.parametrize(
    ("rows", "width", "draw"), [(1, 1, 0), (3, 7, 1), (5, 2, 16), (40, 61, 2**32 - 1), (2, 1500, 3), (2000, 1, 7), (4, 0, 0)]
)
def test_equals_the_reference(rows: int, width: int, draw: int, gpu_kernels: torch.device) -> None:
    keys = torch.tensor([0, 1, -1, -(2**63), 2**40 + 5], device=gpu_kernels).repeat(400)[:rows]
    places = torch.arange(rows, device=gpu_kernels) * 3
    found = philox_uniforms(keys, places, width, draw)
    with kernels.disabled():
        assert torch.equal(found, philox_uniforms(keys, places, width, draw))


def test_serves_blocks_of_seeds(gpu_kernels: torch.device) -> None:
    out = torch.empty(1, 1, dtype=torch.float64, device=gpu_kernels)
    assert isinstance(kernels.find("philox", "uniforms", out, (5,)), kernels.gpu.DeviceKernel)
    drawn = SeedBlocks((1, 2), 2).uniforms(4, 3, gpu_kernels)
    assert torch.equal(drawn[2:], SeedBlocks((2,), 2).uniforms(2, 3, gpu_kernels))
