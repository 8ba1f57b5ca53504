"""Answers of a large run: what is said of all structures together, gathered from one after the other."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ....suites.base import FAILED
from ....suites.frames import to_frame
from ....suites.processors import side_by_side
from ... import bibliography, results
from ...analysis import answers, tables
from ...analysis.answers import Answer
from ...results import Manifest, TableBlock
from .. import answering, content, sections
from ..cells import Table, plain_table
from ..content import Report
from ..learning import LearningSection, learning_of
from .blocks import blocks, structures

if TYPE_CHECKING:
    import pyarrow as pa

MOST_JOBS = 4
"""Processes at most: each holds the rows of a structure."""

_NOTHING = Table("", (), [])
_ODD = ("problem", "stage", "instance", "estimator", "suite", "oracle", "loss", "status", "reason", "traceback")


@dataclass(frozen=True)
class StructureLine:
    """What the page says of one structure.

    Attributes:
        name: of its scores. ``file``: of its page, in the folder beside. ``problems``: one for each loss. ``estimators``: how many.
        verdicts: of the tests for bias, how many have each. ``failed``: cells.
    """

    name: str
    file: str
    problems: tuple[str, ...]
    estimators: int
    verdicts: dict[str, int]
    failed: int


@dataclass
class Gathered:
    """What is known so far.

    Attributes:
        structures: in the order of the run. ``answers``: of all of them. ``medians``: `tables.aggregate` of each.
    """

    manifest: Manifest
    structures: list[StructureLine] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    medians: list[pa.Table] = field(default_factory=list)
    claims: list[pd.DataFrame] = field(default_factory=list)
    odd: list[pd.DataFrame] = field(default_factory=list)
    used: list[pd.DataFrame] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    estimators: set[str] = field(default_factory=set)
    instances: int = 0
    replicates: float | None = None

    def add(self, name: str, file: str, frame: pd.DataFrame) -> Report:
        """The rows of one structure; what is said of it alone."""
        import pyarrow as pa

        rows, claims, known = tables.measured(frame), tables.declared(frame), tables.spreads(frame)
        keys = claims[["problem", "stage", "estimator"]].itertuples(index=False, name=None)
        claims = claims.assign(gain=pd.Series([known.get((*key, "gain")) for key in keys], index=claims.index, dtype=object))
        found = answers.answers(frame, self.manifest.get("catalogue", {}).get("values_only"))
        counts = tables.counts(frame)
        self.answers += found
        self.claims.append(claims)
        self.medians.append(pa.Table.from_pandas(tables.aggregate(frame), preserve_index=False))
        self.odd.append(frame.loc[frame["status"].isin([*FAILED, "nonfinite", "skipped"]), list(_ODD)].astype(object))
        self.used.append(tables.distinct(frame, ["status", "family", "oracle", "estimator"]))
        self.counts.update(counts)
        self.estimators |= set(rows["estimator"].unique())
        self.instances += content.instances(rows)
        replicates = rows["replicates"].max()
        self.replicates = self.replicates if pd.isna(replicates) else max(self.replicates or 0.0, float(replicates))
        tallies = {str(word): int(number) for word, number in claims["verdict"].value_counts().items() if word}
        problems = tuple(tables.order(rows, "problem"))
        self.structures.append(StructureLine(name, file, problems, rows["estimator"].nunique(), tallies, counts["failed"]))
        grown = [sections.exponent_table(frame), sections.descent_table(frame)] if len(tables.swept(frame)) else []
        said = self._report(content.headline(frame, self.manifest), counts, claims, found)
        return replace(said, further=[table for table in grown if table.rows])

    def include(self, other: Gathered) -> None:
        """What is known of further structures."""
        self.structures += other.structures
        self.answers += other.answers
        self.medians += other.medians
        self.claims += other.claims
        self.odd += other.odd
        self.used += other.used
        self.counts.update(other.counts)
        self.estimators |= other.estimators
        self.instances += other.instances
        if other.replicates is not None:
            self.replicates = max(self.replicates or 0.0, other.replicates)

    def report(self) -> Report:
        """What is said of all structures."""
        claims = pd.concat(self.claims, ignore_index=True)
        pairs = len(claims[["problem", "stage"]].drop_duplicates())
        problems = claims["problem"].nunique()
        told = content.extent(len(self.estimators), problems, pairs, self.instances, self.replicates)
        odd = pd.concat(self.odd, ignore_index=True)
        used = pd.concat(self.used, ignore_index=True).drop_duplicates()
        counts = {name: self.counts[name] for name in ("ok", "failed", "skipped")}
        return replace(
            self._report(told, counts, claims, self.answers),
            skipped=plain_table("Skipped pairs", tables.skipped(odd), filters=(("estimator", ""), ("oracle", ""))),
            failures=content.failures(odd),
            references=bibliography.used(used, self.manifest.get("catalogue", {}).get("references")),
        )

    def _report(self, headline: str, counts: dict[str, int], claims: pd.DataFrame, found: list[Answer]) -> Report:
        """Without what grows with estimators times problems, and without what went wrong."""
        return Report(
            headline=headline,
            counts=counts,
            contradictions=content.contradictions(claims),
            claims=content.claims_sentence(claims),
            minute=answering.minute(found),
            price=answering.price(found),
            answers=answering.answer_table(found),
            overview=[],
            cost=_NOTHING,
            problems={},
            further=[],
            learning=_nothing_learnt(),
            skipped=_NOTHING,
            failures=[],
            setup=content.setup(self.manifest),
            environment=content.environment(self.manifest),
            command=str(self.manifest.get("command", "")),
            references={},
            quick=self.manifest.get("preset") == "quick",
        )


@functools.cache
def _nothing_learnt() -> LearningSection:
    return learning_of(to_frame([]))


Each = Callable[[str, pd.DataFrame, Report], None]
"""What is done with the rows of a structure and what is said of it; another process may be told to."""


def gather(source: Path, named: Callable[[str], str] = str, each: Each | None = None) -> Gathered:
    """The answers of a large table, which some processes read, each some structures at a time.

    Args:
        source: a table, or the folder of a run.
        named: the name of the page of a structure.
        each: what is done with each.

    Raises:
        ValueError: a table that is not what its schema version says, or a process that was killed.
    """
    table, manifest = results.opened(source)
    found, several = Gathered(manifest), blocks(table)
    work = functools.partial(_of_block, source, table.metadata.num_rows, named, each)
    killed = f"a process that read {source} was killed, as where memory runs out; each takes some 2 GB"
    for part in side_by_side(work, several, MOST_JOBS, killed):
        found.include(part)
    return found


def _of_block(source: Path, rows: int, named: Callable[[str], str], each: Each | None, block: TableBlock) -> Gathered:
    table, manifest = results.opened(source)
    if table.metadata.num_rows != rows:
        raise ValueError(f"{source} was written anew while it was read; do it again")
    found = Gathered(manifest)
    for name, frame in structures(table, block):
        said = found.add(name, named(name), frame)
        if each is not None:
            each(name, frame, said)
    return found
