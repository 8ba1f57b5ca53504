"""A finished figure of training, and the kinds of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .canvas import Picture
from .facets import Sheet


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: for files and ids. ``kind``: of which there is one per problem. ``problem``: empty for all of them.
        title, caption: what it shows, and how to read it. ``svg``: for a page. ``picture``: the same as shapes, for pixels.
    """

    name: str
    kind: str
    problem: str
    title: str
    caption: str
    svg: str
    picture: Picture = field(compare=False, repr=False)


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
