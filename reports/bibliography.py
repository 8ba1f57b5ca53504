"""The papers behind estimators and oracles, as BibTeX."""

import functools
import importlib.resources
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

_ENTRY = re.compile(r"@\w+\{(?P<key>[\w-]+),\n(?P<body>(?:  \w+ = \{.*\},\n)+)\}\n")
_FIELD = re.compile(r"  (\w+) = \{(.*)\},\n")
_ACCENT = re.compile(r"\{\\(['\"`^~c])\{?([A-Za-z])\}?\}")
_COMBINING = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "~": "\u0303", "c": "\u0327"}


@dataclass(frozen=True, eq=False)
class Entry:
    """One publication: its key, its entry as it stands in the file, and its fields in plain text."""

    key: str
    source: str
    fields: dict[str, str]

    def __str__(self) -> str:
        """Authors, title, venue and year: L. G. Valiant (1979). The Complexity of Computing the Permanent. Theoretical Computer Science."""
        people = (name.partition(", ") for name in self.fields["author"].split(" and "))
        names = [" ".join([*(f"{part[0]}." for part in first.split()), last]) for last, _, first in people]
        authors = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if len(names) <= 4 else f"{names[0]} et al."
        title = self.fields["title"]
        places = ("booktitle", "journal", "howpublished", "publisher", "institution")
        venue = next((f" {self.fields[name]}." for name in places if name in self.fields), "")
        return f"{authors} ({self.fields['year']}). {title}{'' if title[-1] in '!?' else '.'}{venue}"

    @property
    def short(self) -> str:
        """Authors and year: Valiant 1979."""
        names = [name.partition(", ")[0] for name in self.fields["author"].split(" and ")]
        return f"{' & '.join(names) if len(names) <= 2 else f'{names[0]} et al.'} {self.fields['year']}"


@functools.cache
def entries() -> dict[str, Entry]:
    """Every entry of the file, by its key."""
    text = importlib.resources.files(__package__).joinpath("references.bib").read_text(encoding="utf-8")
    found = ((one, {name: plain(value) for name, value in _FIELD.findall(one["body"])}) for one in _ENTRY.finditer(text))
    return {one["key"]: Entry(one["key"], one[0].rstrip(), fields) for one, fields in found}


def used(frame: pd.DataFrame, known: Mapping[str, Sequence[str]] | None = None) -> dict[Entry, list[str]]:
    """The publications behind a result table, each with the names that refer to it; names with keys may be `known` from `cited`."""
    rows = frame[frame["status"] != "skipped"]
    families, oracles = (map(str, rows[column].astype(object).unique()) for column in ("family", "oracle"))
    names = cited(families, oracles) if known is None else known
    keys = sorted({key for found in names.values() for key in found} & entries().keys())
    return {entries()[key]: [name for name, found in names.items() if key in found] for key in keys}


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
    """A BibTeX value without its braces and accents in TeX."""
    composed = _ACCENT.sub(lambda found: unicodedata.normalize("NFC", found[2] + _COMBINING[found[1]]), text)
    return composed.replace("{", "").replace("}", "").replace("--", "–")
