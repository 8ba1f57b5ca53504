"""Damaged files are read or refused with one sentence; they run no code, crash nothing, and exhaust no memory."""

import gzip
import io
import json
import pickle
import random
import shutil
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from safetensors.torch import save_file

from structgrad.estimators import make_estimator
from structgrad.reports import results
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.loading import load
from structgrad.reports.verbs.outcome import fail
from structgrad.suites import trust
from structgrad.suites.comparison.settings import load_settings
from structgrad.suites.problems.score_files import ScoreFile, ScoreTables, read_arrays
from structgrad.suites.running import runner, store
from structgrad.suites.running.planning.plan import plan_from
from structgrad.suites.running.runner import derive
from structgrad.suites.running.work import Cell, Grid, encode
from structgrad.suites.trust import text_of
from tests.covering import RUN
from tests.reports import examples

# Valid files of every kind, damaged at random, and the outcomes of reading them.

REFUSALS = (ValueError, FileNotFoundError, OSError, store.DamagedError, store.OtherSchemaError, store.NewerSchemaError)
NASTY = (
    *("\x1b[2J", "\u202e", "[red]", "<script>", "../../x", "NaN", "1e999", "-1", "null"),
    *('{"a": ', "[" * 2000, "9" * 5000, "\x00", "é" * 3),
)


@dataclass(frozen=True)
class Kind:
    """One kind of file: a function that writes a valid one, the file to damage, and a function that reads it."""

    write: Callable[[Path], Any]
    file: str
    read: Callable[[Path], Any]


def _npz(folder: Path) -> None:
    np.savez_compressed(folder / "scores.npz", scores=np.zeros((3, 4, 5)), lengths=np.array([4, 3, 2]), gold=np.zeros((3, 4), int))


def _safetensors(folder: Path) -> None:
    save_file({"scores": torch.zeros(3, 4, 5), "lengths": torch.tensor([4, 3, 2])}, folder / "scores.safetensors")


def _scores(name: str) -> Callable[[Path], Any]:
    return lambda folder: ScoreTables(ScoreFile(str(folder / name), lengths="lengths"))


def _table(folder: Path) -> None:
    results.write(examples.rows(), folder, {"seed": 7, "environment": {"cpu": "x"}, "status": "finished"})


CELLS = tuple(Cell("bias", "toy", "init", (f"ste{number}",), 3, f"{number:032x}") for number in range(4))


def _run(folder: Path) -> None:
    """A run that was killed."""
    rows = [replace(row, cell="") for row in examples.rows()[:5]]
    with store.Store(folder, write=True) as found:
        found.freeze(Grid(CELLS, (replace(rows[0], status="skipped"),)))
        for cell in CELLS:
            text = encode([replace(row, cell=cell.identity) for row in rows], 0.5)
            found.keep(cell.identity, text)
    results.write_manifest(folder, {"status": "running", "plan": {"suites": ["bias"], "seed": 3}, "command": "structgrad run"})


def _known(folder: Path) -> None:
    with store.Store(folder) as found:
        found.counts(), found.planned(), found.known()
    list(runner.collect(folder))
    results.manifest_of(folder)
    results.read(folder)


def _toml(folder: Path) -> None:
    (folder / "gate.toml").write_text(
        '[gate]\nalpha = 0.05\n[gate.metric.gain]\nminimum_change = 0.1\n[[gate.override]]\nestimator = "i*"\n'
    )


def _gz(folder: Path) -> None:
    (folder / "text.gz").write_bytes(gzip.compress(b"1\tThe\tthe\tDET\n" * 40, mtime=0))


KINDS = {
    "score archive (.npz)": Kind(_npz, "scores.npz", _scores("scores.npz")),
    "score file (.safetensors)": Kind(_safetensors, "scores.safetensors", _scores("scores.safetensors")),
    "result table (.parquet)": Kind(_table, "results.parquet", lambda folder: load(str(folder / "results.parquet"))),
    "manifest (run.json)": Kind(_run, "run.json", lambda folder: plan_from(results.manifest_of(folder).get("plan"))),
    "cells (.sqlite)": Kind(_run, store.FILE, _known),
    "configuration (.toml)": Kind(_toml, "gate.toml", lambda folder: load_settings(folder / "gate.toml")),
    "packed text (.gz)": Kind(_gz, "text.gz", lambda folder: text_of(folder / "text.gz", 10_000)),
}


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A file with some damage: bytes changed, cut, doubled or put in, numbers and words exchanged."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, other = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
        choice = chance.randrange(7)
        if choice == 0:
            content = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
        elif choice == 1:
            content = content[:at]
        elif choice == 2:
            content = content[:other] + content[at:]
        elif choice == 3:
            content = content[:at] + content[other:]
        elif choice == 4:
            content = content[:at] + chance.choice(NASTY).encode() + content[at:]
        elif choice == 5:
            content = content[:at] + chance.randbytes(8) + content[at + 8 :]
        else:
            digits = [place for place, byte in enumerate(content) if 48 <= byte < 58] or [0]
            place = chance.choice(digits)
            content = content[:place] + chance.choice((*NASTY, "0", "99999999999")).encode() + content[place + 1 :]
    return content


def exchanged(content: bytes, chance: random.Random) -> bytes:
    """JSON of which one value is another one."""
    found = here = json.loads(content)
    while True:
        key = chance.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if not isinstance(here[key], dict | list) or not here[key] or chance.random() < 0.2:
            break
        here = here[key]
    here[key] = chance.choice([None, -1, 0, 10**30, 1e308, "", "x" * 10_000, [], {}, [[]], True, *NASTY])
    return json.dumps(found).encode()


def outcome(kind: Kind, sound: Path, chance: random.Random) -> str:
    """The outcome of reading a damaged copy: ``read``, ``refused``, or a failure with its traceback."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        shutil.copytree(sound, folder)
        path = folder / kind.file
        is_json = path.suffix == ".json" and chance.random() < 0.5
        path.write_bytes((exchanged if is_json else damaged)(path.read_bytes(), chance))
        try:
            kind.read(folder)
        except (ValueError, OSError) as error:
            sentence = str(error)
            told = sentence.strip() and len(sentence) < 2000 and type(error) in REFUSALS
            return "refused" if told else f"no sentence: {type(error).__name__}: {sentence[:200]}\n{traceback.format_exc()[-1500:]}"
        except BaseException as error:
            return f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    return "read"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind, one in KINDS.items():
        found[kind] = tmp_path_factory.mktemp("sound")
        one.write(found[kind])
    return found


@settings(max_examples=1000 if RUN["whole"] else 60, deadline=None)
@example(kind="score file (.safetensors)", number=2633)  # a header of 2**63 bytes, as it says
@given(kind=st.sampled_from(list(KINDS)), number=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused_with_a_sentence(sound: dict[str, Path], kind: str, number: int) -> None:
    assert outcome(KINDS[kind], sound[kind], random.Random(number)) in ("read", "refused")


@pytest.mark.parametrize(("kind", "number"), [("manifest (run.json)", 711), ("cells (.sqlite)", 646), ("cells (.sqlite)", 814)])
def test_what_ended_otherwise_once_is_read_or_refused(sound: dict[str, Path], kind: str, number: int) -> None:
    """A setting of the plan with a name of thousands of letters; batches of a row that are words."""
    assert outcome(KINDS[kind], sound[kind], random.Random(f"5 {kind} {number}")) in ("read", "refused")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_damaged_is_read(sound: dict[str, Path], kind: str) -> None:
    if kind != "manifest (run.json)":  # its plan is a part of one
        KINDS[kind].read(sound[kind])


# Bombs, each refused by the size that it declares.


def npy(shape: tuple[int, ...], content: bytes) -> bytes:
    """An array that says that it has a shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


def test_an_absurd_shape_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "scores.npz", "w") as archive:
        archive.writestr("scores.npy", npy((2**31, 2**10), b"\0" * 64))
    with pytest.raises(ValueError, match=r"damaged or cut off \(.*\); save it again with numpy.savez"):
        read_arrays(tmp_path / "scores.npz")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "scores.npz", scores=np.zeros(100_000))
    monkeypatch.setattr(trust, "LARGEST_ARRAYS", 100_000)
    with pytest.raises(ValueError, match="its arrays have 800128 bytes when they are unpacked; expected at most 100000"):
        read_arrays(tmp_path / "scores.npz")


class Armed:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (warnings.warn, ("it ran",))


def test_a_pickle_never_runs(tmp_path: Path) -> None:
    np.savez(tmp_path / "scores.npz", scores=np.array([Armed()], dtype=object))
    with pytest.raises(ValueError, match="a pickle, and pickles are refused"):
        read_arrays(tmp_path / "scores.npz")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("scores.npy", pickle.dumps(Armed()))
    with pytest.raises(ValueError, match="not an array"):
        read_arrays(tmp_path / "other.npz")


def test_a_table_that_declares_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write(examples.rows(), tmp_path, {})
    monkeypatch.setattr(trust, "MOST_ROWS", 10)
    with pytest.raises(ValueError, match=r"says that it has \d+ rows in \d+ bytes; expected at most 10 in"):
        results.read(tmp_path)


def test_a_packed_text_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a" * 10_000))
    with pytest.raises(ValueError, match="has more than 9999 bytes when it is unpacked"):
        trust.text_of(tmp_path / "a.gz", 9999)
    assert trust.text_of(tmp_path / "a.gz", 10_000) == "a" * 10_000
    (tmp_path / "b").write_text("a" * 45)
    with pytest.raises(ValueError, match="has 45 bytes; expected at most 20"):
        trust.text_of(tmp_path / "b", 20)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe", "is no text"), (gzip.compress(b"abc", mtime=0)[:-3], "damaged or cut off"), (b"abc", "damaged or cut off")],
)
def test_what_is_no_text_is_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / ("a.txt" if content[0] == 255 else "a.gz")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        trust.text_of(path)


def test_what_is_nested_too_deep_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the JSON is nested too deep"):
        trust.json_of("[" * 100_000)
    (tmp_path / "a.toml").write_text(f"a = {'[' * 5000}")
    with pytest.raises(ValueError, match="the TOML is nested too deep"):
        trust.toml_of(tmp_path / "a.toml")


def test_a_name_in_a_table_imports_nothing(tmp_path: Path) -> None:
    """Neither a report, which asks estimators for their needs, nor derived results import the module."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'it ran')!r}).touch()\n"
        "from structgrad.estimators import LeaveOneOut\nclass Mine(LeaveOneOut):\n    pass\n"
    )
    names = (f"{mine}:Mine", "os:system[command=true]", "subprocess:Popen[args=true]")
    rows = [replace(row, estimator=name) for row in examples.rows() if row.estimator == "rloo" for name in names]
    derived = derive([*rows, *examples.rows()])
    results.write(derived, tmp_path / "run", {})
    results.read(tmp_path / "run")
    assert not any(answers.needs_values_only(name) for name in names)
    assert not (tmp_path / "it ran").exists()
    make_estimator(names[0])
    answers.needs_values_only.cache_clear()
    assert (tmp_path / "it ran").exists()
    assert answers.needs_values_only(names[0])


# Names that a terminal, a page or a file system would obey.


def test_names_that_a_terminal_obeys_are_written_out() -> None:
    shown = trust.visible_words({"a\x1b]0;x\x07": ["\u202egpj", 3, "tab\tstays\nso"], "é": None})
    assert shown == {"a\\x1b]0;x\\x07": ["\\u202egpj", 3, "tab\tstays\nso"], "é": None}


def test_names_of_a_table_are_written_out(tmp_path: Path) -> None:
    rows = [examples.rows()[0]]
    table = pq.read_table(results.write(rows, tmp_path, {"command": "run \x1b[2J"}))
    wrong = pa.array(["ste\x1b[2J\u202e"]).dictionary_encode()
    names = {"estimator": wrong, "reason": pa.array(["\x9b31m"])}
    for name, values in names.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table, tmp_path / "results.parquet")
    frame, manifest = results.read(tmp_path)
    assert (frame["estimator"][0], frame["reason"][0], manifest["command"]) == ("ste\\x1b[2J\\u202e", "\\x9b31m", "run \\x1b[2J")


def test_an_error_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - typer's own exit
        fail("got the key 'a\x1b[2J'")
    assert capsys.readouterr().err == "error: got the key 'a\\x1b[2J'\n"


@pytest.mark.parametrize("plan", [[], {"portions": 3}, {"effort": []}, {"file": {"path": 1}}, {"file": "x"}, None])
def test_a_plan_of_a_manifest_that_is_none_is_a_sentence(plan: Any) -> None:
    with pytest.raises(ValueError, match=r"the plan of the run cannot be read"):
        plan_from(plan)
