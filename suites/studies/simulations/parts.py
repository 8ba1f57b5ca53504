"""All simulations, by name."""

from __future__ import annotations

from typing import Any

from .coverage import ADAPTIVE, FIXED
from .false_alarms import FALSE_ALARMS, SEQUENTIAL
from .lines import Part
from .peaked import PEAKED
from .power import EQUIVALENCE, POWER
from .simple import MEDIANS, REPLAY

PARTS: dict[str, Part] = {
    "replay": REPLAY,
    "coverage": FIXED,
    "adaptive": ADAPTIVE,
    "peaked": PEAKED,
    "medians": MEDIANS,
    "equivalence": EQUIVALENCE,
    "false_alarms": FALSE_ALARMS,
    "looks": SEQUENTIAL,
    "power": POWER,
}
"""By the names that ``--only`` takes."""


def simulate_cell(task: tuple[str, int, int]) -> Any:
    """The result of a cell: the name of its part, its number, and the repetitions."""
    name, number, repetitions = task
    return PARTS[name].simulate(PARTS[name].cells[number], repetitions)
