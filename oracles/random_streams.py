"""Random numbers whose values do not depend on how rows are batched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class SeedBlocks(torch.Generator):
    """A generator of independent streams: each consecutive block of ``size`` rows of a batch draws from a stream of its own.

    With it, the noise of a row depends on its block's seed and its place in the block, not on how many blocks share a launch; so results do
    not depend on the batch size. It acts as an ordinary `torch.Generator` (its first stream) for code that knows nothing of blocks.

    Args:
        seeds: one 64-bit seed per block.
        size: rows per block; the last block of a batch may be shorter.
    """

    seeds: tuple[int, ...]
    size: int
    streams: list[torch.Generator]

    def __new__(cls, seeds: tuple[int, ...], size: int, device: torch.device | str = "cpu") -> SeedBlocks:
        return super().__new__(cls, device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, seeds: tuple[int, ...], size: int, device: torch.device | str = "cpu") -> None:
        if not seeds or size < 1:
            raise ValueError(f"`SeedBlocks` got {len(seeds)} seeds and size={size}; expected at least one of each")
        self.seeds, self.size = tuple(seeds), size
        self.streams = [torch.Generator(device).manual_seed(seed) for seed in self.seeds]
        self.manual_seed(self.seeds[0])

    def draw(self, rows: int, draw: Callable[[int, torch.Generator], Tensor]) -> Tensor:
        """Concatenate ``draw(rows of the block, its stream)`` over the blocks of a batch of ``rows`` rows."""
        needed = -(-rows // self.size)
        if needed > len(self.streams):
            raise ValueError(f"`SeedBlocks` got a batch of {rows} rows; expected at most {len(self.streams)} blocks of {self.size}")
        return torch.cat([draw(min(self.size, rows - i * self.size), self.streams[i]) for i in range(needed)])


def random_uniform(batch: tuple[int, ...], shape: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Float64 uniforms ``[*batch, *shape]`` in [0, 1); every random number of this package comes through here or `draw_rows`."""
    return draw_rows(batch, shape, lambda size, stream: torch.rand(size, generator=stream, dtype=torch.float64, device=device), generator)


def draw_rows(
    batch: tuple[int, ...],
    shape: tuple[int, ...],
    draw: Callable[[tuple[int, ...], torch.Generator], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """``draw([rows, *shape], stream)`` shaped as ``[*batch, *shape]``; `SeedBlocks` cut the rows of the first batch dimension."""
    if isinstance(generator, SeedBlocks) and batch:
        rest = (*batch[1:], *shape)
        return generator.draw(batch[0], lambda rows, stream: draw((rows, *rest), stream))
    return draw((*batch, *shape), generator)


def standard_gumbel(size: tuple[int, ...], stream: torch.Generator, device: torch.device) -> Tensor:
    """Float64 Gumbel variables of location 0 and scale 1, all finite, to be drawn through `draw_rows`."""
    uniform = torch.rand(size, generator=stream, dtype=torch.float64, device=device).clamp_(min=2.0**-54)
    return uniform.log_().neg_().log_().neg_()
