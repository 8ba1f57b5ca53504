"""The command line where the system is odd: other encodings, missing modules, output that cannot be written."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structgrad.reports import cli, results
from tests.covering import sampled
from tests.reports.calling import FEW, SMALL

PROBE = """
import importlib, pkgutil, sys
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
import structgrad
waiting = [structgrad]
while waiting:
    package = waiting.pop()
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("structgrad") or error.name in sys.modules:
                print(found.name, error)
            continue
        if found.ispkg:
            waiting.append(module)
print("imported", len(sys.modules))
"""


def test_all_but_studies_is_imported_without_the_modules_that_windows_lacks() -> None:
    told = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, encoding="utf-8", check=False)
    assert told.stdout.startswith("imported"), told.stdout + told.stderr


def spoken(monkeypatch: pytest.MonkeyPatch, encoding: str, *words: str) -> int:
    """The exit code of a command whose output is in an encoding."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    monkeypatch.setattr(sys, "argv", ["structgrad", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_output_in_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "run")
    commands = (
        ("list",),
        ("describe", "rloo"),
        ("describe", "subset"),
        (*SMALL, *FEW, "-e", "rloo", "-o", run),
        ("status", run),
        ("report", run, "--format", "md", "--output", "-"),
        ("compare", run, run),
        ("gate", run, "-b", run),
        ("audit", "rloo", "--quick", "--time", "0"),
        ("learn", "--quick", "--dry-run"),
        ("recommend", "--oracle", "subset[n=10,k=5]"),
    )
    for words in commands:
        assert spoken(monkeypatch, "ascii", *words) == 0, words
    for words in sampled(commands, 3):
        assert spoken(monkeypatch, "cp1252", *words) == 0, words


FULL = Path("/dev/full")
COMMAND = [sys.executable, "-c", "from structgrad.reports.cli import main; main()"]


@pytest.mark.skipif(not FULL.is_char_device(), reason="there is no full device")
def test_output_on_a_full_disk_or_a_closed_stream() -> None:
    for words in (["list", "presets"], ["--version"]):
        with FULL.open("w", encoding="utf-8") as full:
            told = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (told.returncode, told.stderr) == (2, "error: cannot write to standard output (No space left on device)\n")
    assert subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND, "list", "presets"], check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_and_the_file_behind_a_link_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, link):
        results.write_whole(path, b"text")
    assert os.read(reading, 9) == file.read_bytes() == b"text"
    assert pipe.is_fifo()
    assert link.is_symlink()
    os.close(reading)
