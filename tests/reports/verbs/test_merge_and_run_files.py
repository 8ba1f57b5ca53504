"""Shards that are joined into the run of the whole plan; messages about files of scores before any measurement."""

import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from structgrad.reports import results
from structgrad.suites.running.store import FILE
from tests.reports.calling import FEW, SMALL, call, refused
from tests.suites.running_cases import cells_of, kept

NAMES = ("rloo", "ste", "reinforce")


def words(folder: Path, *more: str) -> list[str]:
    return [*SMALL, *FEW, *(word for name in NAMES for word in ("-e", name)), "-j", "0", "-o", str(folder), *more]


def shards(folder: Path, of: int, most: int | None = None) -> list[Path]:
    """All or the first of them, measured one after the other, here."""
    found = [folder / f"part-{number}" for number in range(1, (most or of) + 1)]
    for number, shard in enumerate(found, 1):
        assert call(*words(shard, "--shard", f"{number}/{of}")).exit_code == 0
    return found


def check_same(merged: Path, whole: Path) -> None:
    one, two = (results.read(folder)[0].drop(columns=["seconds"]) for folder in (merged, whole))
    assert one.equals(two)


def test_merged_shards_are_the_run_of_the_whole_plan(tmp_path: Path) -> None:
    one, two, three = shards(tmp_path, 3)
    assert [len(cells_of(shard)) for shard in (one, two, three)] == [1, 1, 1]
    merged = tmp_path / "merged"
    told = call("merge", one, three, one, "-o", merged)
    assert told.exit_code == 0
    assert "2 shards of 3 merged: 2 cells of 3\n1 cells are missing; shards not given: 2\n" in told.stdout
    assert results.manifest_of(merged)["status"] == "stopped"
    assert "3 shards of 3 merged: 3 cells of 3" in call("merge", one, two, three, "-o", merged).stdout
    assert call(*words(tmp_path / "whole")).exit_code == 0
    check_same(merged, tmp_path / "whole")
    assert results.manifest_of(merged)["status"] == "finished"
    before = kept(merged)
    assert call(*words(merged)).exit_code == 0
    assert kept(merged) == before


def test_shards_of_something_else_are_refused(tmp_path: Path) -> None:
    (one,), other = shards(tmp_path, 3, 1), tmp_path / "other"
    other.mkdir()
    part = {"number": 2, "of": 4, "cells": 3}
    for manifest, message in (
        ({}, f"`merge` got {other}, which is not a shard; expected folders written by `structgrad run --shard`"),
        ({**results.manifest_of(one), "plan_hash": "00000000"}, f"and {other}, of plan 00000000; expected shards of one plan"),
        ({**results.manifest_of(one), "shard": part}, f"of 3 shards of 3 cells, and {other}, of 4 shards of 3 cells; expected"),
    ):
        (other / results.MANIFEST).write_text(json.dumps(manifest))
        assert message in refused("merge", one, other)
    assert f"`merge` got {one} as a shard and as the folder of the whole run" in refused("merge", one, "-o", one)


def test_a_shard_whose_cells_are_others_is_refused(tmp_path: Path) -> None:
    one, two = shards(tmp_path, 2)
    with sqlite3.connect(two / FILE) as base:
        base.execute("UPDATE plan SET place = 0 WHERE place = (SELECT min(place) FROM plan)")
    assert "has another plan than the shards before it" in refused("merge", one, two, "-o", tmp_path / "merged")


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("3", "0/3", "4/3", "a/b", "1/0", "-1/3", "1/2/3"):
        said = f"--shard got {text!r}; expected a part of a whole such as 3/40, counted from 1"
        assert said in refused(*words(tmp_path, f"--shard={text}"))


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
