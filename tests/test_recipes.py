"""The programs of `docs/recipes` run, and print what the page says."""

import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

RECIPES = Path(__file__).parents[1] / "docs/recipes"


def execute(name: str) -> None:
    with mock.patch.object(sys, "argv", [name]):
        runpy.run_path(str(RECIPES / name), run_name="__main__")


def test_a_latent_tree_is_learnt(capsys: Any) -> None:
    execute("latent_tree.py")
    right = re.search(r"([\d.]+)% of the heads", capsys.readouterr().out)
    assert right
    assert float(right[1]) > 90


def test_two_processes_learn_what_one_does(capsys: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As torchrun starts them, but without its own process. Never a fork: this process has threads, and a fork may hold their locks.
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(RECIPES / "data_parallel.py")]
    processes = [
        subprocess.Popen(command, env={**os.environ, **variables, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    execute("data_parallel.py")
    assert told[0].split("loss")[1][:7] == capsys.readouterr().out.split("loss")[1][:7]
