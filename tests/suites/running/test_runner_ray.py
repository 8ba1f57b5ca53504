"""The same plan on a cluster of two nodes, of which one is killed in the middle."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from structgrad.suites.running.engines import ray as engine
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.running_cases import SMALL, broken

SLOW = broken(*(f"Slow[seconds={0.3 + i / 100}]" for i in range(4)))
PLAN = dataclasses.replace(SMALL, estimators=(*SLOW, "gst", "ste_sample"), instances=1)
COMMAND = """
import json, sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from structgrad.suites.base import FAILED
from structgrad.suites.running.engines.base import Dead
from structgrad.suites.running.engines.ray import RayWorker
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE, comparable
from tests.suites.running.test_runner_ray import PLAN

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000})
second = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
seen = {"deaths": 0, "killed_at": None}

def heard(worker, really=RayWorker.heard):
    message = really(worker)
    seen["deaths"] += isinstance(message, Dead) and message.lost
    return message

def disturb(snapshot):
    both = sum(busy.label not in ("starting", "idle") for busy in snapshot.busy) == 2
    if both and seen["killed_at"] is None:
        seen["killed_at"] = snapshot.finished
        cluster.remove_node(second, allow_graceful=False)

RayWorker.heard = heard
folder = Path(sys.argv[1])
machine = Machine(jobs=2, engine="ray", address=cluster.address, timeout=60.0)
there = run(PLAN, folder / "ray", machine=machine, progress=disturb)
here = run(PLAN, folder / "here", machine=HERE)
outcome = {"same": comparable(there) == comparable(here), "rows": len(there), "failed": sum(row.status in FAILED for row in there),
           **seen, "cells": len({row.cell for row in there})}
(folder / "outcome.json").write_text(json.dumps(outcome))
ray.shutdown()
cluster.shutdown()
"""


def test_a_cluster_that_loses_a_node_gives_the_numbers_of_this_process(tmp_path):
    pytest.importorskip("ray", reason="the optional extra ray is not installed")
    path = os.pathsep.join([os.getcwd(), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["same"]
    assert outcome["failed"] == 0
    assert outcome["killed_at"] < outcome["cells"], "the node was not killed in the middle"
    assert outcome["deaths"] == 1, "the cell of the lost node was not tried again"


def test_without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"^the engine ray needs the package ray; install it with: pip install 'structgrad\[ray\]'$"):
        engine.imported_ray()
    with pytest.raises(ValueError, match="install it with"):
        run(SMALL, tmp_path, machine=Machine(engine="ray"))


@pytest.mark.skipif(find_spec("ray") is None, reason="without ray, an import of it ends every test")
def test_nothing_of_ray_is_imported_without_need():
    code = "import sys, structgrad.suites.running.runner; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
