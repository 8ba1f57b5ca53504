"""The programs of `docs/recipes` run, and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "docs/recipes"


def printed(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_latent_tree_is_learnt() -> None:
    right = re.search(r"([\d.]+)% of the heads", printed(str(RECIPES / "latent_tree.py")))
    assert right
    assert float(right[1]) > 90


def test_two_processes_learn_what_one_does() -> None:
    program = str(RECIPES / "data_parallel.py")
    two = printed("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program)
    assert two.split("loss")[1][:7] == printed(program).split("loss")[1][:7]
