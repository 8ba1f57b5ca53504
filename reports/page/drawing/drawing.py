"""A finished figure, and what figures are drawn from."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ... import results
from ...analysis import answers, tables
from .canvas import Picture
from .facets import Sheet
from .styles import Style, styles

FILES = ("svg", "png")
"""The formats in which a figure is saved."""

_DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: for files and ids. ``kind``: of which there is one per problem. ``problem``: empty for all of them.
        title, caption: what it shows, and how to read it. ``svg``: for a page.
    """

    name: str
    kind: str
    problem: str
    title: str
    caption: str
    svg: str
    picture: Picture = field(compare=False, repr=False)

    def save(self, directory: Path) -> list[Path]:
        """Write ``<name>.svg`` and ``<name>.png`` into a folder."""
        return [self._save(directory / f"{self.name}.{ending}") for ending in FILES]

    def _save(self, path: Path) -> Path:
        results.write_whole(path, self.svg.encode() if path.suffix == ".svg" else self.picture.png(_DOTS_PER_INCH))
        return path


@dataclass(frozen=True, eq=False)
class Material:
    """A result table with what several figures need of it, computed once."""

    frame: pd.DataFrame

    @functools.cached_property
    def rows(self) -> pd.DataFrame:
        """What was measured; see `tables.measured`."""
        return tables.measured(self.frame)

    @functools.cached_property
    def aggregates(self) -> pd.DataFrame:
        """Every metric over instances; see `tables.aggregate`."""
        return tables.aggregate(self.frame)

    @functools.cached_property
    def problems(self) -> list[str]:
        """In the order of the run."""
        return list(dict.fromkeys([*tables.order(self.rows, "problem"), *tables.order(self.swept, "problem")]))

    @functools.cached_property
    def styles(self) -> dict[str, Style]:
        """Of every estimator."""
        return styles(self.frame)

    @functools.cached_property
    def swept(self) -> pd.DataFrame:
        """The points of sweeps: measured rows that have a setting."""
        return tables.swept(self.frame)

    @functools.cached_property
    def ranks(self) -> pd.DataFrame:
        """Of estimators on every instance; see `answers.ranks`."""
        return answers.ranks(self.frame)


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure: its name, title and caption."""

    name: str
    title: str
    caption: str

    def drawn(self, sheet: Sheet, problem: str) -> Drawing:
        """The figure of one problem, finished."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{self.name}-{problem}".lower()).strip("-")
        picture = sheet.picture()
        svg = picture.svg(f"{self.title}, {problem}" if problem else self.title)
        return Drawing(name, self.name, problem, self.title, self.caption, svg, picture)
