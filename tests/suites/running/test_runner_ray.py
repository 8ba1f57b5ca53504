"""The same plan on a cluster of two nodes, of which one is killed in the middle."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from structgrad.suites.running.engines import ENGINES
from structgrad.suites.running.engines import ray as engine
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE, SMALL, broken, comparable
from tests.suites.simulated import simulated_plan

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


# Bundles.

BUNDLES = """
import json, sys
from pathlib import Path
import ray
from structgrad.suites.running import dispatch
from structgrad.suites.running.engines.ray import RayWorker
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.simulated import simulated_plan
from tests.suites.running_cases import HERE, comparable

plan = simulated_plan(80)
ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False, object_store_memory=80_000_000)
seen = {"given": [], "texts": [], "killed_with": 0, "lost": []}

def give(worker, cells, really=RayWorker.give):
    seen["given"].append(len(cells))
    really(worker, cells)

def heard(worker, really=RayWorker.heard):
    message = really(worker)
    seen["texts"].append(getattr(message, "text", ""))
    if not seen["killed_with"] and worker.left >= 3 and len(seen["texts"]) > 5 and seen["texts"][-1]:
        seen["killed_with"] = worker.left
        ray.kill(worker.actor)
    return message

def close(dispatcher, really=dispatch.Dispatcher.close):
    seen["lost"] = list(dispatcher.lost.values())
    really(dispatcher)

RayWorker.give, RayWorker.heard, dispatch.Dispatcher.close = give, heard, close
folder = Path(sys.argv[1])
there = run(plan, folder / "ray", machine=Machine(jobs=1, engine="ray", timeout=60.0))
here = run(plan, folder / "here", machine=HERE)
texts = [text for text in seen["texts"] if text]
outcome = {"same": comparable(there) == comparable(here), "cells": len({row.cell for row in there}), "heard": len(texts),
           "given": seen["given"], "killed_with": seen["killed_with"], "lost": seen["lost"]}
(folder / "outcome.json").write_text(json.dumps(outcome))
ray.shutdown()
"""


def _ended(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of Ray's driver, with a folder of Ray's own: a cluster that is killed leaves its address there for the next one."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    fast = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_gcs_server_request_timeout_seconds": "5"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # not a test's own, whose name is too long for a socket
        environment = {**os.environ, "PYTHONPATH": path, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", **fast}
        return subprocess.run(
            [sys.executable, "-c", command, *arguments], env=environment, capture_output=True, text=True, timeout=400, check=False
        )


def test_a_worker_that_is_lost_in_a_bundle_costs_one_try_of_one_cell(tmp_path):
    pytest.importorskip("ray", reason="the optional extra ray is not installed")
    done = _ended(BUNDLES, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["same"]
    assert outcome["killed_with"] >= 3, "no worker was lost in the middle of a bundle"
    assert outcome["lost"] == [1]
    assert outcome["heard"] == outcome["cells"], "a cell that was heard of was measured again"
    assert len(outcome["given"]) < outcome["cells"] / 2


# A run that loses more than a worker.

LOST = """
import os, signal, sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.simulated import simulated_plan

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000})

left = [True]

def disturb(snapshot):
    if snapshot.finished >= 20 and left:
        left.clear()
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        if sys.argv[2] == "driver":
            os.kill(os.getpid(), signal.SIGKILL)

machine = Machine(jobs=1, engine="ray", address=cluster.address, timeout=60.0)
run(simulated_plan(80), Path(sys.argv[1]), machine=machine, progress=disturb)
"""


@pytest.mark.parametrize("lost", ["head", "driver"])
def test_a_run_whose_head_or_driver_is_lost_goes_on(tmp_path, lost):
    pytest.importorskip("ray", reason="the optional extra ray is not installed")
    done = _ended(LOST, str(tmp_path / "run"), lost)
    assert done.returncode != 0, "the run came to its end"
    told = []
    there = run(simulated_plan(80), tmp_path / "run", machine=HERE, progress=told.append)
    # Without its head a driver lives on for some seconds, in which it may hear of all that was under way.
    assert 20 <= told[0].finished < 80 + (lost == "head"), done.stderr[-3000:]
    assert comparable(there) == comparable(run(simulated_plan(80), tmp_path / "here", machine=HERE))


# Room.


def _cluster(*nodes: dict[str, float]) -> SimpleNamespace:
    """As much of Ray as is asked how much room there is; the last node is dead."""
    listed = [{"Alive": place < len(nodes) - 1, "Resources": resources} for place, resources in enumerate(nodes)]
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    asked = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: listed, cluster_resources=lambda: total, options={}, reached={})
    asked.remote = lambda **options: asked.options.update(options) or (lambda actor: actor)
    asked.init = lambda **options: asked.reached.update(options)
    return asked


def test_a_worker_has_as_many_cpus_of_one_node_as_the_plan_has_threads(monkeypatch):
    asked = _cluster({"CPU": 3.0}, {"CPU": 5.0}, {"memory": 1.0}, {"CPU": 8.0})
    monkeypatch.setattr(engine, "imported_ray", lambda: asked)
    made = engine.RayEngine(dataclasses.replace(SMALL, threads=2), Machine(engine="ray", address="auto"))
    assert made.places() == 1 + 2
    assert asked.options["num_cpus"] == 2


def test_a_cluster_whose_nodes_have_fewer_cpus_than_a_worker_needs_is_refused(monkeypatch):
    monkeypatch.setattr(engine, "imported_ray", lambda: _cluster({"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 8.0}))
    with pytest.raises(
        ValueError, match=r"^the engine ray got threads=4 and no node with so many CPUs; expected one: give fewer --threads$"
    ):
        engine.RayEngine(dataclasses.replace(SMALL, threads=4), Machine(engine="ray", address="auto"))
    monkeypatch.setattr(engine, "imported_ray", lambda: _cluster({"CPU": 3.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 8.0}))
    with pytest.raises(ValueError, match=r"^the engine ray got threads=2 and no node with so many CPUs and a GPU; expected one"):
        engine.RayEngine(dataclasses.replace(SMALL, threads=2, device="cuda"), Machine(engine="ray", address="auto"))


def test_a_worker_has_the_memory_that_it_may_take(monkeypatch):
    asked = _cluster({"CPU": 8.0, "memory": 5.0 * 2**30}, {"CPU": 8.0, "memory": 1.0 * 2**30}, {})
    monkeypatch.setattr(engine, "imported_ray", lambda: asked)
    made = engine.RayEngine(SMALL, Machine(engine="ray", address="auto", memory=1.5))
    assert made.places() == 3
    assert asked.options["memory"] == 1.5 * 2**30
    limits: list[float] = []
    monkeypatch.setattr(engine, "limit_memory", limits.append)
    made.actor = SimpleNamespace(remote=lambda *given: SimpleNamespace(ready=SimpleNamespace(remote=lambda: engine._Actor(*given).ready())))
    made.hire(Path(), 0)
    assert limits == [1.5]
    with pytest.raises(ValueError, match=r"threads=1, memory=6 GiB and no node with so many CPUs and so much memory; expected one: give"):
        engine.RayEngine(SMALL, Machine(engine="ray", address="auto", memory=6.0))


def test_without_an_address_a_cluster_is_started_even_where_another_one_is_or_was(monkeypatch):
    asked = _cluster({"CPU": 4.0}, {})
    asked.is_initialized = lambda: False
    monkeypatch.setattr(engine, "imported_ray", lambda: asked)
    engine.RayEngine(dataclasses.replace(SMALL, threads=2), Machine(jobs=2, engine="ray"))
    assert (asked.reached["address"], asked.reached["num_cpus"]) == ("local", 4)
    engine.RayEngine(SMALL, Machine(engine="ray", address="here:1"))
    assert asked.reached["address"] == "here:1"


# Shares of a GPU.

SHARES = """
import dataclasses, json, sys
from collections import Counter
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from structgrad.suites.running.engines.base import Ready
from structgrad.suites.running.engines.ray import RayEngine
from structgrad.suites.running.planning.plan import Machine
from tests.suites.running_cases import SMALL

node = {"num_cpus": 8, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={"num_gpus": 2, "include_dashboard": False, **node})
cluster.add_node(num_gpus=1, **node)
machine = Machine(jobs=1, engine="ray", address=cluster.address, gpus=float(sys.argv[2]))
engine = RayEngine(dataclasses.replace(SMALL, device="cuda"), machine)
places = engine.places()
workers = [engine.hire(Path(sys.argv[1]), place) for place in range(places + 1)]
started = [worker for worker in workers[:-1] if ray.get(worker.pending)]
where = ray.get([worker.actor.__ray_call__.remote(
    lambda actor: (ray.get_runtime_context().get_node_id(), tuple(ray.get_gpu_ids()), actor.sharing)) for worker in started])
beyond = ray.wait([workers[-1].pending], timeout=3)[0]
workers[0].kill()
beside = Counter((node, gpus) for node, gpus, _ in where)
outcome = {"places": places, "of_each": sorted(beside.values()), "one_gpu": all(len(gpus) == 1 for _, gpus, _ in where),
           "sharing": where[0][2], "beyond": len(beyond), "then": len(ray.wait([workers[-1].pending], timeout=60)[0])}
(Path(sys.argv[1]) / "outcome.json").write_text(json.dumps(outcome))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.sweep
def test_no_more_workers_than_shares_lie_on_a_gpu(tmp_path):
    """Of GPUs that nobody has: Ray deals what a node says that it has. With 0.4, two fit on each of three, and 0.2 of each stays."""
    pytest.importorskip("ray", reason="the optional extra ray is not installed")
    done = _ended(SHARES, str(tmp_path), "0.4")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "outcome.json").read_text())
    assert found == {"places": 6, "of_each": [2, 2, 2], "one_gpu": True, "sharing": 2, "beyond": 0, "then": 1}


@pytest.mark.parametrize(("gpus", "places"), [(None, 3), (1.0, 3), (0.5, 6), (0.4, 6), (0.25, 12), (0.3333, 9), (1 / 3, 9), (0.1, 16)])
def test_room_is_by_shares_of_one_gpu(monkeypatch, gpus, places):
    asked = _cluster({"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}, {"CPU": 8.0, "GPU": 1.0})
    monkeypatch.setattr(engine, "imported_ray", lambda: asked)
    made = engine.RayEngine(dataclasses.replace(SMALL, device="cuda"), Machine(engine="ray", address="auto", gpus=gpus))
    assert made.places() == places
    assert asked.options["num_gpus"] == (gpus or 1)


def test_without_cuda_a_worker_takes_no_gpu(monkeypatch):
    asked = _cluster({"CPU": 8.0, "GPU": 2.0}, {})
    monkeypatch.setattr(engine, "imported_ray", lambda: asked)
    assert engine.RayEngine(SMALL, Machine(engine="ray", address="auto")).places() == 8
    assert asked.options["num_gpus"] == 0


@pytest.mark.parametrize(
    ("machine", "device", "message"),
    [
        (Machine(engine="ray", gpus=0.0), "cuda", "got gpus=0; expected a share above 0 and at most 1: a cell computes on one GPU"),
        (Machine(engine="ray", gpus=2.0), "cuda", "got gpus=2; expected a share above 0 and at most 1"),
        (Machine(engine="ray", gpus=float("nan")), "cuda", "got gpus=nan; expected a share above 0"),
        (Machine(gpus=0.5), "cuda", "got gpus=0.5 for the engine local; choose --engine ray, or share a GPU by more --jobs"),
        (
            Machine(engine="ray", gpus=0.5),
            "cpu",
            "got gpus=0.5 and device='cpu', which takes no GPU; choose --device cuda, or leave it out",
        ),
    ],
)
def test_a_share_of_no_gpu_is_refused(machine, device, message):
    with pytest.raises(ValueError, match=f"^the machine {message}"):
        machine.checked(ENGINES, dataclasses.replace(SMALL, device=device))
