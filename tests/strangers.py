"""Damaged files: valid files of every kind, damaged at random, and the outcomes of reading them."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from structgrad.reports import results
from structgrad.reports.analysis.loading import load
from structgrad.suites.comparison.settings import load_settings
from structgrad.suites.problems.score_files import ScoreFile, ScoreTables
from structgrad.suites.running import runner, store
from structgrad.suites.running.planning.plan import plan_from
from structgrad.suites.running.work import Cell, Grid, encode
from structgrad.suites.trust import text_of
from tests.reports import examples

NASTY = (
    "\x1b[2J",
    "\u202e",
    "[red]",
    "<script>",
    "../../x",
    "NaN",
    "1e999",
    "-1",
    "null",
    '{"a": ',
    "[" * 2000,
    "9" * 5000,
    "\x00",
    "é" * 3,
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
    import gzip

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
            told = sentence.strip() and len(sentence) < 2000 and type(error) in (ValueError, FileNotFoundError, OSError, *_OURS)
            return "refused" if told else f"no sentence: {type(error).__name__}: {sentence[:200]}\n{traceback.format_exc()[-1500:]}"
        except BaseException as error:
            return f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    return "read"


_OURS = (store.DamagedError, store.OtherSchemaError, store.NewerSchemaError)
