"""Time and peak memory of one gradient estimate per row."""

from typing import ClassVar

from structgrad.suites.measures.cost.steps import peak_memory

from . import cases
from .tasks import clock, estimator_task


class _EstimatorBase:
    version: ClassVar[str] = "2"
    params: ClassVar[tuple[list[str | int], ...]] = (
        list(cases.ESTIMATORS),
        cases.chosen((cases.HOME,), (*cases.SMALL, *cases.MIDDLE)),
        cases.chosen(cases.BATCH, cases.OTHER_BATCHES),
        cases.chosen(cases.DEVICE, cases.OTHER_DEVICES),
    )
    param_names: ClassVar[tuple[str, ...]] = ("estimator", "oracle", "batch", "device")

    def setup(self, name: str, case: str, batch: int, device: str) -> None:
        self.call, generator = estimator_task(name, case, batch, device)
        generator.manual_seed(0)  # every timed call has the same random numbers


class EstimatorTime(_EstimatorBase):
    # A thousand calls, or as many as fit into .3 s: medians of twenty calls of equal code differed by half.
    number, repeat, rounds, warmup_time = 1, (5, 1000, 0.3), 2, 0.1
    timer = staticmethod(clock)

    def time_gradient(self, name: str, case: str, batch: int, device: str) -> None:
        self.call()


class EstimatorMemory(_EstimatorBase):
    unit = "bytes"

    def track_peak_memory(self, name: str, case: str, batch: int, device: str) -> float:
        return max(peak_memory(self.call, device=device), 1.0)  # asv cannot compare with 0
