"""Streams are keyed by names and by block."""

from __future__ import annotations

import torch

from structgrad.suites.statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence

GOLDEN_WORDS = [415978578, 1823177460]
GOLDEN_DRAW = 886044541


def test_a_name_is_a_stream_of_its_own():
    words = {
        tuple(seed_sequence(entropy, *names).generate_state(2)) for entropy in (0, 1) for names in (("a",), ("b",), ("a", "b"), ("ab",))
    }
    assert len(words) == 8


def test_streams_do_not_change_between_versions():
    """A golden value: published numbers depend on it."""
    assert [int(w) for w in seed_sequence(0, "tagging", "init").generate_state(2)] == GOLDEN_WORDS
    assert int(torch.randint(10**9, (), generator=generator(0, "tagging"))) == GOLDEN_DRAW


def test_blocks_are_numbered_from_the_start_of_the_run():
    key = seed_sequence(0, "a")
    whole = seed_blocks(key, 0, 5 * BLOCK)
    later = seed_blocks(key, 3 * BLOCK, 2 * BLOCK)
    assert whole.seeds[3:] == later.seeds
    assert len(set(whole.seeds)) == 5


def test_a_short_last_block_has_a_seed():
    assert len(seed_blocks(seed_sequence(0, "a"), 0, BLOCK + 1).seeds) == 2
