"""Results of a run: its rows, which are a list, a data frame, and a fragment for notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..base import Row
from ..frames import to_frame
from ..text import plural

if TYPE_CHECKING:
    import pandas as pd


class Results(list[Row]):
    """The rows of a run in the order of its grid; a plain list of `Row`, with views.

    Args:
        rows: as `run` gives them.
        sizes: of the first item of every problem and stage, such as ``n=5``, where they are known; they are no column of the table.

    Example:
        >>> from structgrad.suites.running.results import Results
        >>> Results([])
        <Results: no rows>
    """

    def __init__(self, rows: Iterable[Row] = (), *, sizes: Mapping[tuple[str, str], str] | None = None) -> None:
        super().__init__(rows)
        self.sizes = dict(sizes or {})

    def __repr__(self) -> str:
        """One line: how many rows, of what."""
        if not self:
            return "<Results: no rows>"
        counts = Counter(row.status for row in self)
        others = "".join(f", {number} {status}" for status, number in counts.items() if status != "ok")
        names = (("problem", {row.problem for row in self}), ("estimator", {row.estimator for row in self}))
        shown = " of ".join(plural(len(found), name) for name, found in reversed(names)).replace(" of ", " on ")
        return f"<Results: {len(self)} rows of {shown}{others}>"

    @property
    def frame(self) -> pd.DataFrame:
        """A row per finding with the columns of `Row`, as `results.parquet` has them.

        ``value`` is in ``unit``; ``low`` and ``high`` are the ends of its 95 % interval, made as ``interval`` says; NA where there is none.
        """
        return to_frame(self)

    def _repr_html_(self) -> str:
        from .overview import overview

        return overview(self, self.sizes)
