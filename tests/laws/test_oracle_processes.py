"""What is computed does not depend on which kernels the process compiled, which it loaded from the cache, and in what order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structgrad.suites.problems.named import BUILT_IN_PROBLEMS

ROOT = Path(__file__).parents[2]


@pytest.mark.sweep
def test_every_structure_is_measured_alike_cold_and_warm(tmp_path: Path) -> None:
    """The small form is in `tests/oracles/test_compilation.py`: one kernel of which copies differ."""
    names = list(BUILT_IN_PROBLEMS)
    compiled, loaded, reversed_ = (in_a_process(order, tmp_path) for order in (names, names, names[::-1]))
    assert {name.partition(" ")[0] for name in compiled} == set(names)
    assert [name for name in compiled if loaded[name] != compiled[name]] == []
    assert [name for name in compiled if reversed_[name] != compiled[name]] == []


def in_a_process(names: list[str], cache: Path) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.fresh_process", *names]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    found = subprocess.run(command, check=True, timeout=3600, env=environment, cwd=ROOT, capture_output=True, text=True)
    result: dict[str, str] = json.loads(found.stdout)
    return result
