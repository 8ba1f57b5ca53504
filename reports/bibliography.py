"""The papers behind estimators and oracles, as BibTeX."""

from __future__ import annotations

import functools
import importlib.resources
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_ENTRY = re.compile(r"@(?P<kind>\w+)\{(?P<key>[\w-]+),\n(?P<body>(?:  \w+ = \{.*\},\n)+)\}\n")
_FIELD = re.compile(r"  (\w+) = \{(.*)\},\n")
_ACCENT = re.compile(r"\{\\(['\"`^~c])\{?([A-Za-z])\}?\}")
_VENUES = ("booktitle", "journal", "howpublished", "publisher", "institution")
_COMBINING = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "~": "\u0303", "c": "\u0327"}


@dataclass(frozen=True, eq=False)
class Entry:
    """One publication.

    Attributes:
        key: of BibTeX. ``source``: the entry as it stands in the file. ``fields``: by name, as in the file.
    """

    key: str
    source: str
    fields: dict[str, str]

    @property
    def authors(self) -> list[tuple[str, str]]:
        """The last and the first names of each author."""
        names = (name.partition(", ") for name in plain(self.fields["author"]).split(" and "))
        return [(last, first) for last, _, first in names]

    def __str__(self) -> str:
        """Authors, title, venue and year, for people.

        Example:
            >>> str(entries()["valiant1979complexity"])
            'L. G. Valiant (1979). The Complexity of Computing the Permanent. Theoretical Computer Science.'
        """
        names = [" ".join([*(f"{part[0]}." for part in first.split()), last]) for last, first in self.authors]
        authors = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 4 else f"{names[0]} et al."
        title = plain(self.fields["title"])
        venue = next((plain(self.fields[name]) for name in _VENUES if name in self.fields), "")
        return f"{authors} ({self.fields['year']}). {title}{'' if title[-1] in '!?' else '.'}" + (f" {venue}." if venue else "")

    @property
    def short(self) -> str:
        """Authors and year.

        Example:
            >>> entries()["valiant1979complexity"].short
            'Valiant 1979'
        """
        names = [last for last, _ in self.authors]
        return f"{' & '.join(names) if len(names) <= 2 else f'{names[0]} et al.'} {self.fields['year']}"


@functools.cache
def entries() -> dict[str, Entry]:
    """Every entry of the file, by its key."""
    text = importlib.resources.files(__package__).joinpath("references.bib").read_text(encoding="utf-8")
    return {found["key"]: Entry(found["key"], found[0].rstrip(), dict(_FIELD.findall(found["body"]))) for found in _ENTRY.finditer(text)}


Cited = Mapping[str, Sequence[str]]
"""The keys of publications by the names of estimators and oracles."""


def used(frame: pd.DataFrame, known: Cited | None = None) -> dict[Entry, list[str]]:
    """The publications behind the estimators and oracles of a result table, each with the names that refer to it, by key.

    Args:
        frame: the result table.
        known: the result of `cited`, if it is known.
    """
    rows = frame[frame["status"] != "skipped"]
    families, oracles = (map(str, rows[column].astype(object).unique()) for column in ("family", "oracle"))
    names = cited(families, oracles) if known is None else known
    keys = sorted({key for found in names.values() for key in found})
    return {entries()[key]: [name for name, found in names.items() if key in found] for key in keys if key in entries()}


def cited(families: Iterable[str], oracles: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The references of the classes of families and of oracles, named with or without options."""
    from ..estimators import ESTIMATORS, SUPERVISED
    from ..oracles import ORACLES

    known, heads = set(families), (name.partition("[")[0] for name in oracles)
    return {
        **{name: kind.references for name, kind in {**ESTIMATORS, **SUPERVISED}.items() if name in known},
        **{name: ORACLES[name].references for name in heads if name in ORACLES},
    }


def explained(families: Iterable[str]) -> dict[str, str]:
    """The first line of the documentation of each registered estimator: its name in words, its formula, whether it is biased."""
    from ..estimators import ESTIMATORS, SUPERVISED

    known = {**ESTIMATORS, **SUPERVISED}
    return {name: str(known[name].__doc__).partition("\n")[0].replace("`", "") for name in families if name in known}


def plain(text: str) -> str:
    r"""A BibTeX value without its braces and accents in TeX.

    Example:
        >>> plain(r"{SparseMAP} by Andr{\'e} and Gon{\c{c}}alo")
        'SparseMAP by André and Gonçalo'
    """
    composed = _ACCENT.sub(lambda found: unicodedata.normalize("NFC", found[2] + _COMBINING[found[1]]), text)
    return composed.replace("{", "").replace("}", "").replace("--", "–")
