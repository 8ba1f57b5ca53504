"""Results of a run: its rows, as a list and as a data frame."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..base import Row, to_frame
from ..text import plural

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ["problem", "stage", "estimator", "instance", "metric", "setting", "value", "low", "high", "unit", "verdict", "status"]


class Results(list[Row]):
    """The rows of a run in the order of its grid: a plain list of `Row` with views.

    Example:
        >>> from structgrad.suites.running.results import Results
        >>> Results([])
        <Results: no rows>
    """

    def __repr__(self) -> str:
        """One line: how many rows, of how many estimators and problems."""
        if not self:
            return "<Results: no rows>"
        counts = Counter(row.status for row in self)
        others = "".join(f", {number} {status}" for status, number in counts.items() if status != "ok")
        estimators, problems = (len({getattr(row, name) for row in self}) for name in ("estimator", "problem"))
        return f"<Results: {len(self)} rows of {plural(estimators, 'estimator')} on {plural(problems, 'problem')}{others}>"

    @property
    def frame(self) -> pd.DataFrame:
        """A row per finding with the columns of `Row`, as `results.parquet` has them.

        ``value`` is in ``unit``; ``low`` and ``high`` are the ends of its 95 % interval by the method ``interval``; NA if there is none.
        """
        return to_frame(self)

    def _repr_html_(self) -> str:
        return self.frame[_SHOWN].to_html(max_rows=60, show_dimensions=True, notebook=True)
