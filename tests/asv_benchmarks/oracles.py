"""Time and peak memory of every operation of every oracle."""

from typing import ClassVar

from structgrad.suites.measures.cost.steps import peak_memory

from . import cases
from .tasks import OPERATIONS, clock, operation_task


class _OracleBase:
    version: ClassVar[str] = "3"
    params: ClassVar[tuple[list[str | int], ...]] = (
        cases.chosen(cases.MIDDLE, (*cases.SMALL, *cases.LARGE)),
        list(OPERATIONS),
        cases.chosen(cases.BATCH, cases.OTHER_BATCHES),
        cases.chosen(cases.DEVICE, cases.OTHER_DEVICES),
    )
    param_names: ClassVar[tuple[str, ...]] = ("oracle", "operation", "batch", "device")

    def setup(self, case: str, operation: str, batch: int, device: str) -> None:
        self.call, generator = operation_task(case, operation, batch, device)
        generator.manual_seed(0)  # every timed call has the same random numbers


class OracleTime(_OracleBase):
    # A thousand calls, or as many as fit into .3 s: medians of twenty calls of equal code differed by half.
    number, repeat, rounds, warmup_time = 1, (5, 1000, 0.3), 2, 0.1
    timer = staticmethod(clock)

    def time_operation(self, case: str, operation: str, batch: int, device: str) -> None:
        self.call()


class OracleMemory(_OracleBase):
    unit = "bytes"

    def track_peak_memory(self, case: str, operation: str, batch: int, device: str) -> float:
        return max(peak_memory(self.call, device=device), 1.0)  # asv cannot compare with 0
