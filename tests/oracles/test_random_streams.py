"""Random numbers: the published generator, its two implementations, and what a number may depend on."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SeedBlocks, kernels
from structgrad.oracles.kernels.philox import CHUNK
from structgrad.oracles.random_streams import LEAST, RowGenerator, gumbel_quantile, inner_uniform, philox, philox_uniforms, random_uniform

CPU = torch.device("cpu")
ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Published with the generator: counter, key, words."""

SEEDS = (3, 2**64 - 1, 2**63, 5, 8)


def uniforms(generator: torch.Generator, *size: int, batch: int = 1) -> Tensor:
    return random_uniform(size[:batch], size[batch:], generator=generator, device=CPU)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(int(word) for word in philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))) == expected


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_kernel_is_its_reference(rows: int) -> None:
    """Bitwise; rows and pairs of uniforms cross the kernel's chunks in every way."""
    keys, places = torch.tensor([0, -1, -(2**63), 2**63 - 1, 12345])[:rows], torch.tensor([0, 1, 7, 2**31, 2**32 - 1])[:rows]
    widths = (0, 1, 2, 3, 8, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 5 * CHUNK)
    for width, draw in itertools.product(widths, (0, 3, 2**32 - 1)):
        found = philox_uniforms(keys, places, width, draw)
        with kernels.disabled():
            assert torch.equal(philox_uniforms(keys, places, width, draw), found)


def test_a_uniform_is_made_of_the_upper_bits_of_two_words() -> None:
    """Of the counter (place / 2, row, draw, 0) and the seed of the block as the key: a protocol, which published numbers follow."""
    seed, row, draw, place = 0x299F31D0A4093822, 6, 2, 11
    blocks = SeedBlocks((1, seed), 8)
    drawn = [uniforms(blocks, 16, 13) for _ in range(3)][draw][8 + row, place]
    counter, key = (place // 2, row, draw, 0), (seed & ONES, seed >> 32)
    w = [int(word) for word in philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))][2:]
    assert float(drawn) == (w[0] * 2**32 + w[1] >> 11) * 2.0**-53


@pytest.mark.parametrize("width", [1, 6, 101])
def test_devices_draw_the_same_numbers(width: int, device: torch.device) -> None:
    found = random_uniform((9,), (width,), generator=SeedBlocks(SEEDS, 2, device), device=device)
    assert torch.equal(found.cpu(), uniforms(SeedBlocks(SEEDS, 2), 9, width))


def test_numbers_do_not_depend_on_the_launch() -> None:
    """Rows together, in blocks, in another order, and with another number of samples per row: the first ones are the same."""
    whole = uniforms(SeedBlocks(SEEDS, 4), 18, 6)
    for block, seed in enumerate(SEEDS):
        rows = min(4, 18 - 4 * block)
        assert torch.equal(uniforms(SeedBlocks((seed,), 4), rows, 6), whole[4 * block : 4 * block + rows])
    assert torch.equal(uniforms(SeedBlocks(SEEDS[::-1], 4), 20, 6)[4:8], whole[12:16])
    assert torch.equal(uniforms(SeedBlocks(SEEDS, 4), 18, 3, 6, batch=2)[:, 0], whole)
    assert torch.equal(uniforms(SeedBlocks(SEEDS, 4), 6, batch=0), whole[0])


class Ends(RowGenerator):
    """Serves the least, the middle and the greatest uniform."""

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        return torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64, device=device).expand(rows, width).clone()


def test_inner_uniforms_and_gumbel_variables_reach_both_tails() -> None:
    inner = inner_uniform((2,), (3,), generator=Ends(), device=CPU)
    assert inner.tolist() == [[LEAST, 0.5, 1 - 2.0**-53]] * 2
    expected = [-math.log(54 * math.log(2)), -math.log(math.log(2)), 53 * math.log(2)]
    assert gumbel_quantile(inner)[0].tolist() == pytest.approx(expected, rel=1e-14)


def test_blocks_are_a_generator() -> None:
    blocks = SeedBlocks((9, 10), 4)
    assert isinstance(blocks, torch.Generator)
    assert blocks.seeds == (9, 10)
    assert torch.equal(torch.rand(5, generator=blocks), torch.rand(5, generator=torch.Generator().manual_seed(9)))
