"""``structgrad run --file``: messages about files before any measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from structgrad.reports import results
from tests.reports.calling import FEW, call, refused, without_page


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    without_page(monkeypatch)


TREES = ["--oracle", "spanning_tree", "--loss", "own"]


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def ragged(path: Path) -> Path:
    """Trees of 6, 4 and 3 words, padded with 0."""
    values, words = np.zeros((3, 7, 7)), np.array([6, 4, 3])
    for item, count in enumerate(words):
        values[item, : count + 1, : count + 1] = np.random.default_rng(item).normal(size=(count + 1, count + 1))
    return saved(path, scores=values, words=words)


@pytest.mark.filterwarnings("default::structgrad.suites.problems.score_files.PaddingWarning")
def test_padding_is_warned_of_in_one_line(tmp_path: Path) -> None:
    words = ["run", "bias", "-e", "reinforce", "--dry-run", "--file", ragged(tmp_path / "trees.npz"), *TREES]
    result = call(*words)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {tmp_path}/trees.npz: 2 of 3 items, such as 1, end in parts of one value: ")
    assert "--field lengths=NAME" in result.stderr
    assert result.stderr.count("\n") == 1
    assert call(*words, "--field", "lengths=words").stderr == ""


def test_items_of_several_sizes_are_counted_and_measured(tmp_path: Path) -> None:
    words = ["run", "bias", "-e", "reinforce", "--file", ragged(tmp_path / "trees.npz"), *TREES, "--field", "lengths=words", "--json"]
    found = json.loads(call(*words, "--dry-run").stdout)
    assert found["suites"] == {"bias": {"cells": 1, "instances": 3}}
    assert found["structures"] == 6**5 + 4**3 + 3**2
    result = call(*words, *FEW, "-j", "0", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    frame, manifest = results.read(tmp_path / "out")
    assert set(manifest["catalogue"]["sizes"].values()) == {"n = 3 to 6"}
    counts = frame[frame["metric"] == "truth_norm"].set_index("instance")["log_count"].to_dict()
    assert {name: round(np.exp(count)) for name, count in counts.items()} == {str(item): n ** (n - 1) for item, n in enumerate((6, 4, 3))}


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_a_path_or_a_folder_that_is_not_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("--file", "--out", "--data", "--plugin", "--config"):
        said = refused("run", "bias", option, "bad\udcff.npz")
        assert said == "error: got the path b'bad\\xff.npz', whose name is not UTF-8; rename it, or use a symbolic link\n"
    folder = tmp_path / "d\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "whose name is not UTF-8" in refused("run", "bias")


def test_what_is_skipped_is_foretold_with_its_reason(tmp_path: Path) -> None:
    path = saved(tmp_path / "large.npz", scores=np.random.default_rng(0).normal(size=(2, 31, 31)))
    words = ["run", "bias", "descent", "-e", "exact", "-e", "reinforce", "--file", path, "--oracle", "spanning_tree", "--loss", "mlp"]
    result = call(*words, "--dry-run")
    assert result.exit_code == 0
    assert "1 cells, 2 pairs skipped" in result.stdout
    assert "structures to enumerate: about 0\n" in result.stdout
    assert "skipped: exact on large@mlp: enumerates at most limit=" in result.stdout
    assert "skipped: reinforce on descent of large@mlp: `descent` got a space of 6.86e+42 structures" in result.stdout
    found = json.loads(call(*words, "--dry-run", "--json").stdout)
    assert [(row["suite"], row["estimator"]) for row in found["skips"]] == [("", "exact"), ("descent", "reinforce")]
    measured = call(*words, *FEW, "-j", "0", "--out", tmp_path / "out")
    assert measured.exit_code == 0, measured.output
