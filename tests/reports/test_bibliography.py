from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from structgrad.estimators import ESTIMATORS, SUPERVISED
from structgrad.oracles import ORACLES
from structgrad.reports import bibliography, results
from structgrad.reports.bibliography import entries
from structgrad.suites.tasks import TASKS, make_task
from tests.reports import examples

VENUES = {"article": "journal", "inproceedings": "booktitle", "incollection": "booktitle", "book": "publisher"}


def test_the_file_has_exactly_the_keys_of_the_registries() -> None:
    kinds = [*ESTIMATORS.values(), *SUPERVISED.values(), *ORACLES.values(), *map(make_task, TASKS)]
    keys = {key for kind in kinds for key in kind.references}
    assert set(entries()) == keys


@pytest.mark.parametrize("key", sorted(entries()))
def test_every_entry_is_whole(key: str) -> None:
    entry = entries()[key]
    kind = entry.source.partition("{")[0].removeprefix("@")
    assert {"author", "title", "year"} <= set(entry.fields)
    assert kind in ("misc", "techreport") or VENUES[kind] in entry.fields
    assert re.fullmatch(r"[a-z]+(\d{4})[a-z]+", key)[1] == entry.fields["year"]
    assert entry.source.count("{") == entry.source.count("}")
    first = bibliography.plain(entry.fields["author"]).split(",")[0].lower()
    assert key.startswith(re.sub(r"[^a-z]", "", first)[:4])


@pytest.mark.parametrize("key", sorted(entries()))
def test_every_entry_reads_well(key: str) -> None:
    text = str(entries()[key])
    assert not re.search(r"[{}\\]|\.\.|None", text)
    assert text.endswith(".")


def test_only_what_was_used_is_named(frame: pd.DataFrame) -> None:
    used = {entry.key: names for entry, names in bibliography.used(frame).items()}
    assert used["williams1992simple"] == ["reinforce"]
    assert "subset" in used["chen1997statistical"]
    assert "niculae2018sparsemap" not in used
    assert list(used) == sorted(used)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.mark.parametrize("text", ["@book{a,\n  title = {One},\n", "nonsense\n"])
def test_what_is_no_entry_is_told(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "references.bib").write_text(text)
    monkeypatch.setattr(bibliography.importlib.resources, "files", lambda package: tmp_path)
    entries.cache_clear()
    with pytest.raises(ValueError, match=r"references.bib holds '.*', which is no entry; expected one `  field = "):
        entries()
    monkeypatch.undo()
    entries.cache_clear()
