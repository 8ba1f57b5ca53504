"""That the compiler takes what the interpreter takes is asked of one structure here; of the others by hand, see `compiling`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_kernel_compiles_for_a_gpu_that_is_not_there() -> None:
    pytest.importorskip("triton", reason="Triton is offered for Linux alone")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), "subset", "argmax"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["dtype"] for record in found} == {"float32", "float64"}
    assert all(record["spilled"] == 0 and record["registers"] > 0 for record in found)
