"""Random numbers whose values do not depend on how rows are batched.

All of them are made of uniforms, by inverse distribution functions; and all uniforms come from `random_uniform`.
"""

import math
from typing import Self

import torch
from torch import Tensor

from . import kernels

LEAST = 2.0**-54
"""Stands for 0 where a uniform must lie strictly inside (0, 1): a uniform is a multiple of 2⁻⁵³ below 1."""


class RowGenerator(torch.Generator):
    """A generator that serves the uniforms of every row of a batch from a place of its own.

    For code that knows nothing of rows it acts as an ordinary `torch.Generator`.
    """

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        """The next draw: float64 uniforms ``[rows, width]`` in [0, 1)."""
        raise NotImplementedError


class SeedBlocks(RowGenerator):
    """A generator of independent streams: each consecutive block of ``size`` rows of a batch has a stream of its own.

    A random number is a function (`philox`) of the seed of its block, of its row in the block, of how many draws came before, and of its
    place in the draw, so of nothing that shares the launch with it, nor of the device.

    Args:
        seeds: one 64-bit seed per block.
        size: rows per block; the last block of a batch may be shorter.

    Example:
        >>> whole, second = SeedBlocks((1, 2), size=3), SeedBlocks((2,), size=3)
        >>> cpu = torch.device("cpu")
        >>> torch.equal(whole.uniforms(6, 4, cpu)[3:], second.uniforms(3, 4, cpu))
        True
    """

    seeds: tuple[int, ...]
    size: int
    draws: int

    def __new__(cls, seeds: tuple[int, ...], size: int, device: torch.device | str = "cpu") -> Self:
        return super().__new__(cls, device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, seeds: tuple[int, ...], size: int, device: torch.device | str = "cpu") -> None:
        if not seeds or size < 1:
            raise ValueError(f"`SeedBlocks` got {len(seeds)} seeds and size={size}; expected at least one of each")
        self.seeds, self.size, self.draws = tuple(seeds), size, 0
        self.manual_seed(self.seeds[0])
        # As int64 numbers of the same bits.
        keys = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in self.seeds], device=device)
        self._keys, self._places = keys.repeat_interleave(size), torch.arange(size, device=device).repeat(len(keys))

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        if rows > len(self._keys):
            raise ValueError(f"`SeedBlocks` got a batch of {rows} rows; expected at most {len(self.seeds)} blocks of {self.size}")
        drawn = philox_uniforms(self._keys[:rows].to(device), self._places[:rows].to(device), width, self.draws)
        self.draws += 1
        return drawn


A_GENERATOR = "a torch.Generator, such as torch.Generator().manual_seed(0)"
"""What is expected where numbers are drawn."""


def random_uniform(batch: tuple[int, ...], shape: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Float64 uniforms ``[*batch, *shape]`` in [0, 1), multiples of 2⁻⁵³; a `RowGenerator` serves the rows of the first batch dimension."""
    if not isinstance(generator, torch.Generator):  # torch would take None for its global one, and two calls would differ without a word
        raise ValueError(f"`random_uniform` got generator={generator!r}; expected {A_GENERATOR}")
    size = (*batch, *shape)
    if isinstance(generator, RowGenerator):
        rows, width = batch[0] if batch else 1, math.prod((*batch[1:], *shape))
        return generator.uniforms(rows, width, device).reshape(size)
    return torch.rand(size, generator=generator, dtype=torch.float64, device=device)


def inner_uniform(batch: tuple[int, ...], shape: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """`random_uniform` strictly inside (0, 1), for distribution functions that are infinite at an end."""
    return random_uniform(batch, shape, generator=generator, device=device).clamp_(min=LEAST)


def standard_gumbel(batch: tuple[int, ...], shape: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Float64 Gumbel variables ``[*batch, *shape]`` of location 0 and scale 1, between -3.63 and 36.74: 2⁻⁵³ lies beyond each end."""
    return gumbel_quantile(inner_uniform(batch, shape, generator=generator, device=device))


def gumbel_quantile(uniform: Tensor) -> Tensor:
    """``−log(−log u)``, in place."""
    return uniform.log_().neg_().log_().neg_()


_WORD, _DROPPED, _ROUNDS = 0xFFFFFFFF, 11, 10
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox_uniforms(keys: Tensor, places: Tensor, width: int, draw: int) -> Tensor:
    """Uniforms of 53 bits, ``[rows, width]``, each a function of its key, row, draw and place; see `kernels.philox`.

    Args:
        keys: int64 ``[rows]``, the 64 bits of a seed.
        places: int64 ``[rows]``, of the row in its block.
        width: uniforms per row.
        draw: how many draws came before.
    """
    out = torch.empty((len(keys), width), dtype=torch.float64, device=keys.device)
    kernel = kernels.find("philox", "uniforms", out)
    if kernel is not None:
        # Not an option by which it is found: no two draws have the same.
        kernel._replace(options=(draw,))(keys, places, out)
        return out
    pairs = torch.arange((width + 1) // 2, device=keys.device)
    rows = (places.unsqueeze(-1), torch.full_like(pairs, draw), torch.zeros_like(pairs))
    a, b, c, d = philox((pairs, *rows), (keys.unsqueeze(-1) & _WORD, keys.unsqueeze(-1) >> 32 & _WORD))
    # The upper 53 of 64 bits.
    words = torch.stack([a << 21 | b >> _DROPPED, c << 21 | d >> _DROPPED], -1)
    return words.flatten(-2)[:, :width].double() * 2.0**-53


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3), on any device.

    Args:
        counter: four int64 tensors of numbers below 2³², which broadcast.
        key: two of them.

    Example:
        >>> zero = torch.tensor(0)
        >>> [hex(int(word)) for word in philox((zero,) * 4, (zero,) * 2)]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    k, m = key
    for _ in range(_ROUNDS):
        # A product of 64 bits may come out negative; its bits are right.
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32 & _WORD) ^ b ^ k, second & _WORD, (first >> 32 & _WORD) ^ d ^ m, first & _WORD
        k, m = k + _STEPS[0] & _WORD, m + _STEPS[1] & _WORD
    return a, b, c, d
