"""Targets on a device: what is timed, and what it is held to; ratios against a contender in the same run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..benchmarks.cases import HUGE
from .cases import CASES, Case, named, operations

BATCH = 1024


@dataclass(frozen=True)
class SpeedTarget:
    """At least ``factor`` times as fast as a contender; 0.5 allows twice its time."""

    contender: str
    factor: float


@dataclass(frozen=True)
class DeviceTask:
    """An operation of a case at a batch size."""

    case: Case
    operation: str
    batch: int
    target: SpeedTarget | None = None

    @property
    def name(self) -> str:
        """Of the case and of the operation."""
        return f"{self.case.name} {self.operation}"

    @property
    def kernel(self) -> tuple[str | None, str]:
        """The module and the name of the kernel that the operation stands on."""
        name = self.operation.removesuffix("64")
        name = {"marginals_backward": "covariance_product", "project_backward": "project"}.get(name, name)
        closed = name == "project" and self.case.structure in ("categorical", "subset")
        return "simplex" if closed else self.case.oracle.kernel, name

    @property
    def double(self) -> bool:
        """Whether the operation computes in float64 whatever the scores are."""
        return self.operation.startswith("project")

    @property
    def draws(self) -> bool:
        """Whether the operation is a sampler."""
        return self.operation.startswith("sample")

    @property
    def slow(self) -> bool:
        """Whether plain torch may take minutes: it asks the device after every step, of which there are thousands."""
        steps = self.case.structure not in ("categorical", "categories", "subset") and self.double
        return steps or (self.case.structure, self.operation) == ("assignment", "argmax")

    @property
    def numbers(self) -> int:
        """Of the result."""
        return self.batch * math.prod(self.case.event) * (64 if self.operation == "sample64" else 1)


DEVICE_CASES: dict[str, Case] = CASES | {name: named(name) for name in HUGE}

TARGETS: dict[tuple[str, str], SpeedTarget] = {
    ("linear_chain 128x32", "marginals_backward"): SpeedTarget("torch", 10),
    ("constituency 40", "marginals_backward"): SpeedTarget("torch", 10),
    ("projective_tree 40", "marginals_backward"): SpeedTarget("torch", 10),
    ("spanning_tree 40", "log_partition"): SpeedTarget("lu64", 0.5),
    ("spanning_tree 40", "marginals"): SpeedTarget("lu64", 0.5),
    ("spanning_tree 40", "argmax"): SpeedTarget("cpu", 50),
    ("assignment 64", "argmax"): SpeedTarget("scipy", 10),
    ("assignment 1000", "argmax"): SpeedTarget("scipy", 1),
    ("alignment 512x512", "marginals"): SpeedTarget("torch", 5),
    ("spanning_tree 20", "project"): SpeedTarget("cpu", 20),
}
"""By case and operation."""

BATCHES = {"assignment 1000": 8, "alignment 512x512": 64}
"""Where 1024 would not fit beside what plain torch keeps."""

LEFT_OUT = frozenset(
    f"{structure} {size}"
    for structure, sizes in {
        "linear_chain": ("32x16",), "constituency": (10, 20), "projective_tree": (10, 20), "spanning_tree": (10,), "alignment": ("32x32",),
        "subset": ("20/5",),
    }.items()
    for size in sizes
)  # fmt: skip
"""Small sizes, which say nothing about a large device."""

WITHOUT_KERNEL = frozenset({"kbest16", "argmax_indices", "sample64_indices"})
"""Operations that no device has a kernel for: plain torch asks the device for every list, and makes indices of dense structures."""

MOST_NUMBERS = 2**30
"""Of one result: what is larger is not timed."""


def tasks(chosen: str = "", most: int = BATCH, *, held: bool = True) -> list[DeviceTask]:
    """Those with a target first, then every operation of every case that fits, but for compact structures: those are of dense ones there.

    Args:
        chosen: a part of their names, such as ``"chain"`` or ``"spanning_tree 40 argmax"``.
        most: no batch is larger.
        held: whether they have targets, which are for a GPU.

    Example:
        >>> [(task.case.name, task.operation, task.batch) for task in tasks("assignment 1000")]
        [('assignment 1000', 'argmax', 8)]
    """
    cases = [case for name, case in DEVICE_CASES.items() if name not in LEFT_OUT]
    timed = [(case, operation) for case in cases for operation in operations(case) if operation not in WITHOUT_KERNEL]
    found = [DeviceTask(case, operation, min(BATCHES.get(case.name, BATCH), most)) for case, operation in timed]
    wanted = [task for task in found if task.numbers <= MOST_NUMBERS and chosen in task.name]
    targets = TARGETS if held else {}
    return sorted(
        (replace(task, target=targets.get((task.case.name, task.operation))) for task in wanted), key=lambda task: task.target is None
    )
