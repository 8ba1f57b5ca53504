"""Transcripts of the command line: help, lists, plans, and one sentence for every wrong input.

A change made on purpose: `python -m tests.goldens.test_verbs` writes the transcripts again.
"""

import os
import re
import shlex
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from structgrad.oracles import plugins
from tests.reports.calling import call

FILE = Path(__file__).with_name("verbs.txt")
LIST = "\n$ structgrad "
MASKS = {
    r"(?m)^note: pip must find .*$": "",  # only where the package comes from no repository
    r"\b\d[\d.e-]* GiB": "MEMORY",
    r"(structgrad_file_\w+)_[0-9a-f]{8}": r"\1",
    r'"(seconds|bytes)": [\d.]+': r'"\1": 0',
    r"[╭╰─╮╯│ \u2500-\u257f]+": " ",
}
TIMES = r"\b(\d[\d.]*(e-?\d+)? (ms|s|min|h|days?)\b ?)+(?=[a-z,;.)]|$)"

NAMED = """
from dataclasses import dataclass
from typing import ClassVar
from structgrad.estimators import Reinforce

@dataclass(frozen=True)
class Mine(Reinforce):
    name: ClassVar[str] = "{}"
"""

TEXTS = {
    "preset.toml": "preset = 3",
    "unknown.toml": "nonsense = 3",
    "cut.toml": "a = [",
    "list.toml": "preset = ['quick']",
    "flag.toml": "builtin = 'yes'",
    "flags.toml": "estimator = [true]",
    "empty.toml": "loss = []",
    "own.py": "x = 1",
    "broken.py": "x = (",
    "leaves.py": "import sys; sys.exit(0)",
    "ends.py": "import os; os._exit(0)",
    "closes.py": "raise GeneratorExit",
    "raises.py": "raise RuntimeError('no')",
    "taken.py": NAMED.format("rloo"),
    "taken_too.py": NAMED.format("crf"),
    "hook.py": NAMED.format("hook") + "\n    def evaluations(self):\n        return {}['losses']\n",
    "damaged.npz": "",
    "damaged.parquet": "no",
    "table.csv": "a,b",
}
"""Files that are wrong; those that end the process when they are imported are given to every verb that takes one."""


def transcripts() -> dict[str, str]:
    """The output of each command, standard error with ``! `` before each line; the first line is the exit code."""
    parts = (part.partition("\n") for part in ("\n" + FILE.read_text(encoding="utf-8")).split(LIST)[1:])
    return {command: output.strip("\n") for command, _, output in parts}


def write_files() -> None:
    """Write the files that the commands name into this folder; all but one are wrong in some way."""
    row = np.random.default_rng(0).standard_normal((2, 5))
    arrays = {"nan": np.where(row == row[0, 0], np.nan, row), "words": np.array([["a", "b"]]), "flat": row[0], "none_inside": row[:0]}
    arrays["forbidden"] = np.full((1, 3), -np.inf)
    for name, array in arrays.items():
        np.savez(f"{name}.npz", scores=array)
    np.savez("right.npz", scores=row, many=np.array([9, 1]), half=np.array([1.5, 2.0]), gold=np.ones((2, 5)), index=np.array([1, 5]))
    np.savez("arcs.npz", arcs=np.zeros((2, 4, 4)), words=np.array([3, 3]))
    np.savez("pickle.npz", scores=np.array([1, None], dtype=object))
    for name, text in TEXTS.items():
        Path(name).write_text(text)
    with warnings.catch_warnings(), zipfile.ZipFile("twice.npz", "w") as archive:
        warnings.simplefilter("ignore")
        archive.write(Path("flat.npz"), "scores.npy")
        archive.write(Path("flat.npz"), "scores.npy")
    Path("empty").mkdir()
    call("init", "--oracle")


def output(command: str) -> str:
    """The transcript of a command in this folder, without times, memory, frames and paths."""
    before = contents()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "160")
        patched.setenv("TERMINAL_WIDTH", "160")
        result = call(*shlex.split(command))
    plugins.use(())
    assert contents() == before or command.startswith("init"), f"{command} wrote a file"
    lines = [*result.stdout.splitlines(), *(f"! {line}" for line in result.stderr.splitlines())]
    text = "\n".join([f"exit {result.exit_code}", *lines]).replace(os.getcwd(), ".")
    text = re.sub(TIMES, "TIME ", text) if "--dry-run" in command else text
    for pattern, mask in MASKS.items():
        text = re.sub(pattern, mask, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def contents() -> dict[str, int]:
    """Every file with the time of its last change, except compiled Python."""
    found = (os.path.join(root, name) for root, _, names in os.walk(".") if "__pycache__" not in root for name in names)
    return {path: os.stat(path).st_mtime_ns for path in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("transcripts"))
        write_files()
        yield Path()


@pytest.mark.parametrize("command", transcripts())
def test_a_command_says_what_it_said(folder: Path, command: str) -> None:
    assert output(command) == transcripts()[command]


def test_wrong_input_gets_one_sentence() -> None:
    wrong = {command: said for command, said in transcripts().items() if said.startswith("exit 2")}
    assert len(wrong) > 140
    for command, said in wrong.items():
        assert re.fullmatch(r"exit 2\n! error: [^\n]{1,480}", said), command


if __name__ == "__main__":
    commands = sys.argv[1:] or list(transcripts())
    os.chdir(tempfile.mkdtemp())
    write_files()
    FILE.write_text("\n".join(f"$ structgrad {command}\n{output(command)}\n" for command in commands), encoding="utf-8")
