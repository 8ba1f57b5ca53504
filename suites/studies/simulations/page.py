"""The page of results, and how it is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .lines import Part, SimulationLine

INTRODUCTION = """# Simulations

Whether the intervals cover and the tests keep their levels, on instances whose every estimate is known. This page is written by

    python -m structgrad.suites.studies.simulations

Every estimate of an estimator that draws structures through its oracle alone comes from the shipped code, dealt every tuple of samples;
replicates are then multinomial draws. Instances: `trees5` (dependency trees of 5 words, 1296), `categorical10` (10), `subset10` (3 of 10,
120), `assignment5` (permutations of 5, 120), scores independent normal of the standard deviation `sd`, the loss a tanh network of no
degree in the parts. The seed is 0; every cell has a stream of its own. The fourth column holds 95 % binomial intervals. A line whose
number lies outside of what is required makes the command fail; `(99.9 %)` marks lines that fail only if their 99.9 % binomial interval
lies outside.
"""


def section(part: Part, lines: Sequence[SimulationLine], repetitions: int) -> str:
    """One part as a heading, a sentence and a table."""
    head = f"## {part.title}\n\n{part.text} Repetitions per cell: {repetitions}.\n\n| what | where | value | interval | required |\n"
    return head + "|---|---|---|---|---|\n" + "".join(f"| {' | '.join(line.cells())} |\n" for line in lines)


def page(sections: Mapping[str, str]) -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *sections.values()])


def write(text: str, path: Path) -> None:
    """Replace a file at once: whoever reads it finds the old page or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)
