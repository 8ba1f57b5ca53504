"""Workers on a Ray cluster: one actor for each place, with a local worker in it, so that limits and crashes are handled as on one machine.

A bundle of cells is a call of about a second. A bundle whose actor or node is lost is measured again by another actor, a few times.
"""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ....oracles.magnitudes import GIB
from ..cells import failed
from ..planning.plan import Machine, Plan
from ..work import Busy, Cell
from .local import Limit, LocalEngine, LocalWorker, WorkerConfig

RETRIES = 2  # how often a cell is measured again after its worker was lost


def imported_ray() -> Any:
    """The library, or ValueError with one sentence on how to install it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray needs the package ray; install it with: pip install 'structgrad[ray]'") from error
    return ray


class RayEngine(LocalEngine):
    """Actors of a cluster, as many as it has CPUs and GPUs for, unless fewer are asked for.

    Each has as many CPUs as the plan has threads, the memory of the limit, and on CUDA a GPU or the share of one that is asked for. Without
    an address (``auto`` is the cluster that runs here), a cluster of this machine is started. Logs and checkpoints stay on the nodes.
    """

    bundle = 1.0

    def __init__(self, plan: Plan, machine: Machine, folder: Path, limit: Limit) -> None:
        super().__init__(plan, machine, folder, limit)
        self.ray, self.lost = imported_ray(), Counter[str]()
        self.ours = not self.ray.is_initialized()
        if self.ours:
            size = {} if machine.address else {"num_cpus": max(machine.jobs, 1) * plan.threads, "include_dashboard": False}
            try:
                self.ray.init(address=machine.address or "local", log_to_driver=False, **size)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise ValueError(f"the engine ray cannot reach a cluster at {machine.address} ({reason}); check --address") from error
        gpus = float(plan.device == "cuda") if machine.gpus is None else machine.gpus
        self.needs = {"CPU": plan.threads, "GPU": gpus, "memory": int((machine.memory or 0) * GIB)}
        self.sharing = int(1 / gpus) if gpus else 1
        self.actor = self.ray.remote(num_cpus=plan.threads, num_gpus=gpus, memory=self.needs["memory"], max_restarts=0)(Actor)
        if not self.places():
            self.close()
            if gpus and not self.ray.cluster_resources().get("GPU", 0):
                raise ValueError("the engine ray got device='cuda' and a cluster without a GPU; expected one: start a node with --num-gpus")
            wanted, much = f"threads={plan.threads}", ""
            if machine.memory:
                wanted, much = f"{wanted}, memory={machine.memory:g} GiB", " and so much memory"
            raise ValueError(
                f"the engine ray got {wanted} and no node with so many CPUs{' and a GPU' if gpus else ''}{much}; expected one: give fewer "
                f"--threads{' or a lower --memory-limit' if much else ''}"
            )

    def places(self) -> int:
        available = 0
        for resources in (node["Resources"] for node in self.ray.nodes() if node["Alive"]):
            room = [int(resources.get(name, 0)) // int(needed) for name, needed in self.needs.items() if needed >= 1]
            if 0 < self.needs["GPU"] < 1:  # a worker's share of a GPU lies on one GPU
                room.append(int(resources.get("GPU", 0)) * self.sharing)
            available += min(room)
        return available if self.machine.address else min(max(self.machine.jobs, 1), available)

    def start_worker(self, place: int) -> "RayWorker":
        return RayWorker(f"ray worker {place + 1}", self)

    def close(self) -> None:
        super().close()
        if self.ours:
            self.ray.shutdown()


class RayWorker:
    """An actor as the driver sees it; it is created with its first bundle, and again after it was lost."""

    def __init__(self, name: str, engine: RayEngine) -> None:
        self.name, self.engine, self.since, self.actor = name, engine, 0.0, None

    def submit(self, cells: Sequence[Cell]) -> Future[dict[str, str]]:
        """Start to measure a bundle, by a new actor if there is none."""
        self.since, engine = time.monotonic(), self.engine
        if self.actor is None:
            self.actor = engine.actor.remote(engine.plan, engine.machine.memory, engine.sharing)
        call: Any = self.actor
        return call.measure.remote(tuple(cells), [engine.limit(cell) for cell in cells]).future()  # type: ignore[no-any-return]

    def collect(self, future: Future[dict[str, str]], cells: Sequence[Cell]) -> dict[str, str]:
        """The texts of the finished cells, and of those whose actor was lost too often."""
        try:
            return future.result()
        except self.engine.ray.exceptions.RayError as error:
            kind = type(error).__name__
            failure = {"status": "crash", "reason": f"the worker or its node was lost: {kind}", "error_type": kind, "traceback": str(error)}
        self.close()
        self.engine.lost.update(cell.identity for cell in cells)
        given_up = [cell for cell in cells if self.engine.lost[cell.identity] > RETRIES]
        return {cell.identity: failed(self.engine.plan, cell, failure, time.monotonic() - self.since) for cell in given_up}

    def busy(self, cells: Sequence[Cell]) -> Busy:
        """The first cell of the bundle."""
        return Busy(self.name, cells[0].label, time.monotonic() - self.since) if cells else Busy(self.name, "idle", 0.0)

    def close(self) -> None:
        """Kill the actor."""
        if self.actor is not None:
            with contextlib.suppress(self.engine.ray.exceptions.RayError, ValueError):
                self.engine.ray.kill(self.actor, no_restart=True)
            self.actor = None


class Actor:
    """Measures bundles of one plan by a local worker, on a node of the cluster."""

    def __init__(self, plan: Plan, memory: float | None, sharing: int) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.limits: dict[str, float] = {}
        config = WorkerConfig("worker", plan, Path(self.folder.name), memory, sharing)
        self.worker = LocalWorker(config, lambda cell: self.limits[cell.identity])

    def measure(self, cells: Sequence[Cell], limits: Sequence[float]) -> dict[str, str]:
        """The texts of all cells by identity."""
        self.limits = {cell.identity: limit for cell, limit in zip(cells, limits, strict=True)}
        texts: dict[str, str] = {}
        while rest := [cell for cell in cells if cell.identity not in texts]:
            future = self.worker.submit(rest)
            with contextlib.suppress(Exception):
                future.exception()
            texts |= self.worker.collect(future, rest)
        return texts
