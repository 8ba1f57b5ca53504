"""Time of a training step on every task."""

from typing import ClassVar

from . import cases
from .tasks import clock, training_step


class TrainingStep:
    version: ClassVar[str] = "1"
    params: ClassVar[tuple[list[str | int], ...]] = (cases.chosen(cases.LEARNERS, cases.OTHER_LEARNERS), list(cases.TASKS))
    param_names: ClassVar[tuple[str, ...]] = ("estimator", "task")
    number, repeat, rounds, warmup_time = 1, (5, 20, 1.0), 2, 0.1
    timer = staticmethod(clock)

    def setup(self, name: str, task: str) -> None:
        self.step = training_step(name, task)

    def time_step(self, name: str, task: str) -> None:
        self.step()
