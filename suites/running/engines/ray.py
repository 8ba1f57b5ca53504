"""Workers on a Ray cluster: actors, one CPU each, that send the content of a cell's file back; nothing need be shared but the package.

On CUDA each has a GPU to itself, the one that Ray shows it.

Ray has no time limit for a task of its own, and an actor that hangs is ended from outside; a cell whose worker or node is lost is tried
again elsewhere a few times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cells import Failure, execute
from ..planning.plan import Machine, Plan
from ..work import Cell
from .base import Dead, Done, Engine, Message, Ready, Worker

RETRIES = 2
"""How often a cell is tried again after its worker was lost: one that kills every worker gives up after so many."""


def imported_ray() -> Any:
    """The library, or ValueError with one sentence on how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray needs the package ray; install it with: pip install 'structgrad[ray]'") from error
    return ray


class RayEngine(Engine):
    """Actors of a cluster, as many as it has CPUs, and GPUs where the plan computes there, unless fewer are asked for.

    Args:
        plan: what is measured.
        machine: with the address of the cluster (``auto`` is the one that runs here); without one, a cluster of this machine is started.
    """

    retries = RETRIES

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.ray, self.plan, self.machine, self.hired = imported_ray(), plan, machine, 0
        self.ours = not self.ray.is_initialized()
        if self.ours:
            self._connect()
        self.actor = self.ray.remote(num_cpus=1, num_gpus=int(plan.device == "cuda"), max_restarts=0)(_Actor)
        if not self.places():
            self.close()
            raise ValueError("the engine ray got device='cuda' and a cluster without a GPU; expected one: start a node with --num-gpus")

    def _connect(self) -> None:
        size = {} if self.machine.address else {"num_cpus": max(self.machine.jobs, 1), "include_dashboard": False}
        try:
            self.ray.init(address=self.machine.address, log_to_driver=False, **size)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"the engine ray cannot reach a cluster at {self.machine.address} ({reason}); check --address") from error

    def places(self) -> int:
        resources = self.ray.cluster_resources()
        available = int(resources.get("CPU", 1))
        if self.plan.device == "cuda":
            available = min(available, int(resources.get("GPU", 0)))
        return available if self.machine.address else min(max(self.machine.jobs, 1), available)

    def hire(self, directory: Path, place: int) -> Worker:
        self.hired += 1
        return RayWorker(f"ray worker {self.hired}", self.ray, self.actor.remote(self.plan))

    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        pending = [worker.pending for worker in workers if isinstance(worker, RayWorker) and worker.pending is not None]
        if pending:
            self.ray.wait(pending, num_returns=1, timeout=seconds)

    def close(self) -> None:
        if self.ours:
            self.ray.shutdown()


class RayWorker(Worker):
    """An actor, seen from the driver."""

    def __init__(self, name: str, ray: Any, actor: Any) -> None:
        self.name, self.ray, self.actor = name, ray, actor
        self.pending: Any = actor.ready.remote()
        self.started = False

    def give(self, cell: Cell) -> None:
        self.pending = self.actor.measure.remote(cell)

    def heard(self) -> Message | None:
        if self.pending is None or not self.ray.wait([self.pending], timeout=0)[0]:
            return None
        try:
            result, self.pending = self.ray.get(self.pending), None
        except self.ray.exceptions.RayError as error:
            self.pending = None
            kind = type(error).__name__
            return Dead(Failure("crash", f"the worker or its node was lost: {kind}", kind, str(error)), lost=self.started)
        self.started, first = True, not self.started
        return Ready() if first else Done(result)

    def kill(self, *, traceback: bool = False) -> str:
        with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
            self.ray.kill(self.actor, no_restart=True)
        return ""


class _Actor:
    """In the worker: measures cells of one plan, and keeps its caches from cell to cell."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def ready(self) -> bool:
        """Whether the imports are done."""
        return True

    def measure(self, cell: Cell) -> str:
        """The content of the cell's file."""
        return execute(self.plan, cell)
