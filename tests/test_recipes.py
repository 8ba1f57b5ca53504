"""The programs of `docs/recipes` run, and print what the page says."""

import contextlib
import multiprocessing
import os
import re
import runpy
import socket
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

RECIPES = Path(__file__).parents[1] / "docs/recipes"


def execute(name: str) -> None:
    with mock.patch.object(sys, "argv", [name]):
        runpy.run_path(str(RECIPES / name), run_name="__main__")


def test_a_latent_tree_is_learnt(capsys: Any) -> None:
    execute("latent_tree.py")
    right = re.search(r"([\d.]+)% of the heads", capsys.readouterr().out)
    assert right
    assert float(right[1]) > 90


def run(rank: int, port: int, folder: Path) -> None:
    """Run the program as `torchrun` does as one of two processes."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test")
    with (folder / str(rank)).open("w") as file, contextlib.redirect_stdout(file):
        execute("data_parallel.py")


def test_two_processes_learn_what_one_does(tmp_path: Path, capsys: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A fork need not import torch again; after CUDA has started it is broken.
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    processes = [context.Process(target=run, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    execute("data_parallel.py")
    assert (tmp_path / "0").read_text().split("loss")[1][:7] == capsys.readouterr().out.split("loss")[1][:7]
