"""Shards of a plan: the parts of an array job, which several machines measure without knowing of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from ..progress import CostModel
from ..work import Grid
from .plan import Plan


@dataclass(frozen=True)
class Shard:
    """The part with a number, counted from 1, of so many.

    Example:
        >>> Shard.parsed("3/40")
        Shard(number=3, of=40)
        >>> str(Shard(3, 40))
        '3/40'
    """

    number: int
    of: int

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """From ``3/40``.

        Raises:
            ValueError: anything else.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        shard = cls(int(found[1]), int(found[2])) if found else None
        if shard is None or not 1 <= shard.number <= shard.of:
            raise ValueError(f"--shard got {text!r}; expected a part of a whole such as 3/40, counted from 1")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def of_plan(self, plan: Plan, work: Grid) -> Grid:
        """The cells of this part, in a row and of about as many seconds as each of the others.

        Cells beside each other share exact gradients. The seconds are guessed from the plan alone, so that every machine cuts alike.
        """
        costs = CostModel(plan)
        seconds = [costs.seconds(cell) for cell in work.cells]
        before, total = accumulate(seconds, initial=0.0), sum(seconds)
        middles = [start + length / 2 for start, length in zip(before, seconds, strict=False)]
        numbers = [min(int(self.of * middle / total), self.of - 1) + 1 if total else 1 for middle in middles]
        places = tuple(place for place, number in enumerate(numbers) if number == self.number)
        return Grid(tuple(work.cells[place] for place in places), work.skips, work.limits, places)
