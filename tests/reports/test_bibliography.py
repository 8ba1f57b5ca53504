import re
from pathlib import Path

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
    text = (Path(bibliography.__file__).parent / "references.bib").read_text(encoding="utf-8")
    assert sorted(entry.source for entry in entries().values()) == sorted(text.strip().split("\n\n"))


def test_every_entry_is_whole_and_reads_well() -> None:
    for key, entry in entries().items():
        assert not re.search(r"[{}\\]|\.\.|None", str(entry)), key
        assert str(entry).endswith("."), key
        kind = entry.source.partition("{")[0].removeprefix("@")
        assert {"author", "title", "year"} <= set(entry.fields), key
        assert kind in ("misc", "techreport") or VENUES[kind] in entry.fields, key
        assert re.fullmatch(r"[a-z]+(\d{4})[a-z]+", key)[1] == entry.fields["year"], key
        assert entry.source.count("{") == entry.source.count("}"), key
        first = entry.fields["author"].split(",")[0].lower()
        assert key.startswith(re.sub(r"[^a-z]", "", first)[:4]), key


def test_only_used_publications_are_named() -> None:
    used = {entry.key: names for entry, names in bibliography.used(results.to_frame(examples.rows())).items()}
    assert used["williams1992simple"] == ["reinforce"]
    assert "subset" in used["chen1997statistical"]
    assert "niculae2018sparsemap" not in used
    assert list(used) == sorted(used)
