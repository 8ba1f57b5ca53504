"""Philox4x32-10 (Salmon et al. 2011, section 3.3): a counter of four words and a key of two give four random words, without a state.

The counter of a uniform is (its place in the draw / 2, its row in the seed block, the number of the draw, 0), and the key is the seed of
the block: so a uniform depends on what it is for, and not on what is drawn beside it. Two words make a uniform of 53 bits.
"""

import numpy as np

from .compilation import compiled, inner

CHUNK = 512
"""Counters at a time: their words stay in the nearest cache, and rounds of neighbours run side by side in a vector."""

_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FIRST, _SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_FIRST_STEP, _SECOND_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ZERO, _ONE, _DROPPED, _SPACING = np.uint64(0), np.uint64(1), np.uint64(11), 2.0**-53


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row, roughly."""
    return 10 * event[0]


@compiled
def uniforms(keys: np.ndarray, places: np.ndarray, out: np.ndarray, draw: int) -> None:
    """Fill ``out`` [rows, width] with uniforms of 53 bits in [0, 1), from the seed of each row's block and its place there, both int64."""
    rows, width = out.shape
    state, pairs = np.empty((6, CHUNK), dtype=np.uint32), np.empty((2, CHUNK), dtype=np.uint64)
    state[2], state[3] = np.uint64(draw) & _WORD, _ZERO
    half = (width + 1) // 2
    row, pair = 0, 0
    while row < rows and width > 0:
        first_row, first_pair, size = row, pair, 0
        while row < rows and size < CHUNK:
            steps = min(half - pair, CHUNK - size)
            _count(state, size, steps, pair, np.uint64(places[row]), np.uint64(keys[row]))
            size, pair = size + steps, pair + steps
            if pair == half:
                row, pair = row + 1, 0
        _scramble(state, pairs, size)
        _spread(pairs, size, out, first_row, first_pair)


@inner
def _count(state, start, steps, pair, place, key):
    """The counters and keys of neighbouring pairs of uniforms of one row."""
    low, high, first = key & _WORD, key >> _HALF, np.uint64(pair)
    for i in range(steps):
        state[0, start + i] = first + np.uint64(i)
        state[1, start + i] = place
        state[4, start + i] = low
        state[5, start + i] = high


@inner
def _scramble(state, pairs, size):
    """Ten rounds on every counter; the first two words and the last two, joined."""
    for i in range(size):
        # As 64-bit numbers that the compiler knows to be short, which makes a product one instruction.
        a, b, c, d = np.uint64(state[0, i]), np.uint64(state[1, i]), np.uint64(state[2, i]), np.uint64(state[3, i])
        k, m = np.uint64(state[4, i]), np.uint64(state[5, i])
        for _ in range(10):
            # Both products of 32 bits by 32 are whole in 64.
            first, second = _FIRST * a, _SECOND * c
            a, b, c, d = (second >> _HALF) ^ b ^ k, second & _WORD, (first >> _HALF) ^ d ^ m, first & _WORD
            k, m = (k + _FIRST_STEP) & _WORD, (m + _SECOND_STEP) & _WORD
        pairs[0, i], pairs[1, i] = (a << _HALF) | b, (c << _HALF) | d


@inner
def _spread(pairs, size, out, row, pair):
    """Write uniforms from a pair of a row on; an odd row leaves the second one of its last pair out."""
    half = (out.shape[1] + 1) // 2
    i = 0
    while i < size:
        steps = min(half - pair, size - i)
        whole = min(steps, out.shape[1] // 2 - pair)
        for j in range(whole):
            out[row, 2 * (pair + j)] = np.float64(pairs[0, i + j] >> _DROPPED) * _SPACING
            out[row, 2 * (pair + j) + 1] = np.float64(pairs[1, i + j] >> _DROPPED) * _SPACING
        if whole < steps:
            out[row, 2 * (pair + whole)] = np.float64(pairs[0, i + whole] >> _DROPPED) * _SPACING
        i, pair = i + steps, 0
        row += 1
