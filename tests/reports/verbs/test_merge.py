"""Shards of a plan, measured apart, and joined into the run that the whole plan would have been."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from structgrad.reports import results
from structgrad.suites.running.store import FILE
from tests.reports.calling import FEW, SMALL, call, refused, without_page
from tests.suites.running_cases import cells_of, kept

NAMES = ("rloo", "ste", "reinforce")


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    without_page(monkeypatch)


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
