"""A plan on a Ray cluster: numbers of workers, lost nodes and lost workers; skipped without Ray."""

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

from structgrad.suites.running.engines import ray as engine
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE, SMALL, broken, comparable
from tests.suites.simulated import simulated_plan

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the optional extra ray is not installed")

BEGIN = """
import json, os, signal, sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from structgrad.suites.running.engines import ray as engine
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.running.test_runner_ray import PLAN
from tests.suites.simulated import simulated_plan

folder = Path(sys.argv[1])
small = {"object_store_memory": 80_000_000}
head = {"num_cpus": 1, "include_dashboard": False, **small}
"""
PLAN = dataclasses.replace(SMALL, estimators=("ste", *broken("Aborting", "Killed", "Hanging")), instances=1)


def ended(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A driver that ran a script to its end, with a short folder of Ray's own, whose name must fit into a socket's."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fast = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_gcs_server_request_timeout_seconds": "5"}
        path = os.pathsep.join([os.getcwd(), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", **fast}
        command = [sys.executable, "-c", BEGIN + script, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_a_sentence_says_how_to_install_it() -> None:
    with pytest.raises(ValueError, match=r"^the engine ray needs the package ray; install it with: pip install 'structgrad\[ray\]'$"):
        engine.imported_ray()


@needs_ray
def test_crashes_and_limits_are_rows_as_on_one_machine_and_a_lost_actor_is_replaced(tmp_path: Path) -> None:
    script = """
ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False, **small)
rows = run(PLAN, folder / "rows", machine=Machine(jobs=1, engine="ray", timeout=10.0))
found = {row.estimator.rpartition(":")[2]: [row.status, row.reason] for row in rows}
submit, bundles = engine.RayWorker.submit, []

def killing(worker, cells):
    future = submit(worker, cells)
    bundles.append(len(cells))
    if len(bundles) == 2:
        ray.kill(worker.actor)
    return future

engine.RayWorker.submit = killing
run(simulated_plan(80), folder / "ray", machine=Machine(jobs=1, engine="ray", timeout=60.0))
(folder / "outcome.json").write_text(json.dumps({"rows": found, "bundles": bundles}))
"""
    done = ended(script, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["rows"] == {
        "ste": ["ok", ""],
        "Aborting": ["crash", "the worker died of SIGABRT"],
        "Killed": ["oom", "the worker was killed by SIGKILL, as the kernel does when memory runs out"],
        "Hanging": ["timeout", "took longer than 10 s; raise --timeout"],
    }
    assert len(outcome["bundles"]) < 40
    assert 80 < sum(outcome["bundles"]) < 90, "one bundle is measured twice"
    plan = simulated_plan(80)
    assert comparable(run(plan, tmp_path / "ray", machine=HERE)) == comparable(run(plan, tmp_path / "here", machine=HERE))


# Room.


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    """Pretend that there is a cluster of some nodes, and of one more that is dead."""

    def pretend(*nodes: dict[str, float]) -> SimpleNamespace:
        listed = [{"Alive": True, "Resources": resources} for resources in nodes] + [{"Alive": False, "Resources": {"CPU": 64.0}}]
        total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
        asked = SimpleNamespace(is_initialized=lambda: False, nodes=lambda: listed, cluster_resources=lambda: total, options={}, reached={})
        asked.remote = lambda **options: asked.options.update(options) or (lambda actor: actor)
        asked.init, asked.shutdown = (lambda **options: asked.reached.update(options)), lambda: None
        monkeypatch.setattr(engine, "imported_ray", lambda: asked)
        return asked

    return pretend


def made(machine: Machine, **changes) -> engine.RayEngine:
    return engine.RayEngine(dataclasses.replace(SMALL, **changes), machine, Path("unused"), lambda cell: 60.0)


RAY = Machine(engine="ray", address="auto")
GPUS = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]


@pytest.mark.parametrize(
    ("nodes", "made_with", "places", "options"),
    [
        ([{"CPU": 3.0}, {"CPU": 5.0}, {"memory": 1.0}], (RAY, {"threads": 2}), 3, {"num_cpus": 2, "num_gpus": 0}),
        ([{"CPU": 8.0, "memory": 5.0 * 2**30}], (dataclasses.replace(RAY, memory=1.5), {}), 3, {"memory": 1.5 * 2**30}),
        *(
            (GPUS, (dataclasses.replace(RAY, gpus=gpus), {"device": "cuda"}), places, {"num_gpus": gpus or 1})
            for gpus, places in [(None, 3), (0.4, 6), (0.1, 16)]
        ),
    ],
)
def test_workers_fit_on_nodes(cluster, nodes, made_with, places, options) -> None:
    asked = cluster(*nodes)
    assert made(made_with[0], **made_with[1]).places() == places
    assert asked.options.items() >= options.items()


@pytest.mark.parametrize(
    ("nodes", "machine", "changes", "message"),
    [
        ([{"CPU": 3.0}], RAY, {"threads": 4}, "threads=4 and no node with so many CPUs; expected one: give fewer --threads$"),
        ([{"CPU": 3.0}], RAY, {"device": "cuda"}, "device='cuda' and a cluster without a GPU; expected one: start a node with --num-gpus$"),
        (
            [{"CPU": 3.0, "memory": 1.0}],
            dataclasses.replace(RAY, memory=6.0),
            {},
            "threads=1, memory=6 GiB and no node with so many CPUs and so much",
        ),
    ],
)
def test_a_cluster_without_room_is_refused(cluster, nodes, machine, changes, message) -> None:
    cluster(*nodes)
    with pytest.raises(ValueError, match=f"^the engine ray got {message}"):
        made(machine, **changes)
