"""Spoken digits: splits of a seed, segments, and accuracies without and with the right ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from structgrad.suites.tasks import fsdd, make_task
from structgrad.suites.tasks.fsdd import SERIES, SpokenDigits
from tests.suites.tasks import contracts

TINY = SpokenDigits(segments=5, chosen=1, hidden=8, tested=2, validated=1, steps=60, batch_size=20)


@pytest.fixture(autouse=True)
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six recordings of each digit, of 10 to 15 frames; the second fifth of the frames tells the digit, the others lie."""
    generator = np.random.default_rng(0)
    digit = np.repeat(np.arange(10), 6)
    lengths = 5 * generator.integers(2, 4, len(digit))
    frames = []
    for label, length in zip(digit, lengths, strict=True):
        told = np.eye(10)[generator.integers(0, 10, length)]
        told[length // 5 : 2 * length // 5] = np.eye(10)[label]
        frames.append(told + 0.1 * generator.standard_normal((length, 10)))
    (tmp_path / "timeseries").mkdir()
    offsets = np.concatenate([[0], lengths.cumsum()])
    np.savez(tmp_path / SERIES, features=np.concatenate(frames).astype(np.float32), offsets=offsets, digit=digit.astype(np.int32))
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))


def test_contract():
    contracts.check_reproducible(TINY, fsdd._split, fsdd._read)
    contracts.check_loss(TINY)
    contracts.check_stackable(TINY)


def test_a_split_holds_each_digit_and_each_recording_once():
    parts = fsdd._recordings(TINY)
    assert {split: part.digit.bincount().tolist() for split, part in parts.items()} == {
        "train": [3] * 10,
        "validation": [1] * 10,
        "test": [2] * 10,
    }
    assert len(torch.cat([part.x for part in parts.values()]).flatten(1).unique(dim=0)) == 60


def test_a_seed_has_a_split_of_its_own():
    assert TINY.at(3) == replace(TINY, fold=3)
    one, other = (TINY.at(seed).batch("test", torch.arange(20)).inputs[0] for seed in (3, 4))
    assert not torch.equal(one, other)


def test_segments_are_means_of_standardised_frames(tmp_path: Path):
    frames = np.arange(14, dtype=np.float32).reshape(7, 2)
    np.savez(tmp_path / "few.npz", features=frames, offsets=np.array([0, 4, 7]), digit=np.array([1, 0]))
    read = fsdd._read(tmp_path / "few.npz", 2)
    assert read.digit.tolist() == [1, 0]
    scaled = torch.tensor((frames - frames.mean(0)) / frames.std(0))
    expected = torch.stack([scaled[:2].mean(0), scaled[2:4].mean(0), scaled[4:6].mean(0), scaled[6]])
    torch.testing.assert_close(read.x[..., :2].reshape(4, 2), expected)
    assert torch.equal(read.x[..., 2:], torch.eye(2).expand(2, 2, 2))


def test_what_chooses_well_beats_what_chooses_at_random():
    assert TINY.ceiling(0)["accuracy"] > TINY.floor(0)["accuracy"] + 0.2


def test_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert TINY.unavailable() is None
    (tmp_path / "elsewhere").mkdir()
    contracts.check_absence(TINY, monkeypatch, tmp_path / "elsewhere", SERIES)


def test_by_name():
    assert make_task("fsdd") == SpokenDigits()
