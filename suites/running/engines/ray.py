"""Workers on a Ray cluster: actors that send the content of cells' files back; nothing need be shared but the package.

Each has as many CPUs as the plan has threads, the memory that a worker may take where that is limited, and on CUDA a GPU to itself, or
the share of one that is asked for: the one that Ray shows it.

A call takes about a second: a bundle of cells, each of which is heard of as it is finished. Ray has no time limit for a task of its own,
and an actor that hangs is ended from outside; a cell whose worker or node is lost is tried again elsewhere a few times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ....oracles.magnitudes import GIB
from ... import device_memory
from ..cells import Failure, execute, healthy, load
from ..planning.plan import Machine, Plan
from ..work import Cell
from .base import Dead, Done, Engine, Message, Ready, Worker, limit_memory

RETRIES = 2
"""How often a cell is tried again after its worker was lost: one that kills every worker gives up after so many."""


def imported_ray() -> Any:
    """The library, or ValueError with one sentence on how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray needs the package ray; install it with: pip install 'structgrad[ray]'") from error
    return ray


BUNDLE = 1.0
"""Seconds of a call, as far as they can be foretold: a call itself costs some milliseconds, as much as many a cell."""


class RayEngine(Engine):
    """Actors of a cluster, as many as it has CPUs for, and GPUs where the plan computes there, unless fewer are asked for.

    Args:
        plan: what is measured.
        machine: with the address of the cluster (``auto`` is the one that runs here); without one, a cluster of this machine is started.
    """

    retries = RETRIES
    bundle = BUNDLE

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.ray, self.plan, self.machine, self.hired = imported_ray(), plan, machine, 0
        self.ours = not self.ray.is_initialized()
        if self.ours:
            self._connect()
        gpus = float(plan.device == "cuda") if machine.gpus is None else machine.gpus
        self.needs = {"CPU": plan.threads, "GPU": gpus, "memory": int((machine.memory or 0) * GIB)}
        resources = dict(zip(("num_cpus", "num_gpus", "memory"), self.needs.values(), strict=True))
        self.actor = self.ray.remote(**resources, max_restarts=0)(_Actor)
        if not self.places():
            self.close()
            raise ValueError(self._no_place())

    def _connect(self) -> None:
        size = {} if self.machine.address else {"num_cpus": max(self.machine.jobs, 1) * self.plan.threads, "include_dashboard": False}
        try:
            self.ray.init(address=self.machine.address or "local", log_to_driver=False, **size)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"the engine ray cannot reach a cluster at {self.machine.address} ({reason}); check --address") from error

    def places(self) -> int:
        available = sum(self._room(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        return available if self.machine.address else min(max(self.machine.jobs, 1), available)

    def _room(self, resources: Mapping[str, float]) -> int:
        """For how many workers a node has room; a worker lies on one node, and its share of a GPU on one GPU."""
        room = [int(resources.get(name, 0)) // int(needed) for name, needed in self.needs.items() if needed >= 1]
        if 0 < self.needs["GPU"] < 1:
            room.append(int(resources.get("GPU", 0)) * self._sharing())
        return min(room)

    def _sharing(self) -> int:
        """How many workers share a GPU."""
        return int(1 / self.needs["GPU"]) if self.needs["GPU"] else 1

    def _no_place(self) -> str:
        if self.needs["GPU"] and not self.ray.cluster_resources().get("GPU", 0):
            return "the engine ray got device='cuda' and a cluster without a GPU; expected one: start a node with --num-gpus"
        beside = " and a GPU" if self.needs["GPU"] else ""
        if self.machine.memory:
            return (
                f"the engine ray got threads={self.plan.threads}, memory={self.machine.memory:g} GiB and no node with so many CPUs{beside} "
                "and so much memory; expected one: give fewer --threads or a lower --memory-limit"
            )
        return f"the engine ray got threads={self.plan.threads} and no node with so many CPUs{beside}; expected one: give fewer --threads"

    def hire(self, directory: Path, place: int) -> Worker:
        self.hired += 1
        return RayWorker(f"ray worker {self.hired}", self.ray, self.actor.remote(self.plan, self.machine.memory, self._sharing()))

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
        self.started, self.left = False, 0

    def give(self, cells: Sequence[Cell]) -> None:
        self.pending, self.left = self.actor.measure.options(num_returns="streaming").remote(tuple(cells)), len(cells)

    def heard(self) -> Message | None:
        if self.pending is None or not self.ray.wait([self.pending], timeout=0)[0]:
            return None
        try:
            result = self.ray.get(next(self.pending) if self.started else self.pending)
        except self.ray.exceptions.RayError as error:
            self.pending = None
            kind = type(error).__name__
            return Dead(Failure("crash", f"the worker or its node was lost: {kind}", kind, str(error)), lost=self.started)
        if not self.started:
            self.started, self.pending = True, None
            return Ready()
        self.left -= 1
        if self.left == 0:
            self.pending = None
        return Done(result)

    def kill(self, *, traceback: bool = False) -> str:
        with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
            self.ray.kill(self.actor, no_restart=True)
        return ""


class _Actor:
    """In the worker: measures cells of one plan, and keeps its caches from cell to cell."""

    def __init__(self, plan: Plan, memory: float | None, sharing: int = 1) -> None:
        self.plan, self.sharing = plan, sharing
        load()
        if memory is not None:
            limit_memory(memory)

    def ready(self) -> bool:
        """Whether the imports are done."""
        return True

    def measure(self, cells: Sequence[Cell]) -> Iterator[str]:
        """The content of each cell's file, until one leaves this process unfit for another."""
        # Ray deals shares of a GPU, and knows nothing of its memory; what is allotted holds in the context of a call.
        if self.sharing > 1 and torch.cuda.is_available():
            device_memory.allot(torch.cuda.get_device_properties(self.plan.device).total_memory / self.sharing)
        for cell in cells:
            text = execute(self.plan, cell)
            yield text
            if not healthy(text):
                return
