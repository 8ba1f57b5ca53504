"""Large result tables: the rows of a real table again and again, at as many problems and for as many estimators as a lab measures.

``python -m structgrad.suites.studies.large_results OUT --like .ci/baseline.parquet --rows 10000000`` writes ``OUT/results.parquet`` and
``OUT/run.json``, to see what takes how long beside them. Names are made up, numbers are those of the table, moved by noise that follows
from ``--seed`` and the names; ``--changed 0.01`` makes the numbers of every hundredth estimator 5 % greater.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..base import SCHEMA_VERSION
from ..running.parts.columns import schema
from .simulated import LOSSES, STAGES, STRUCTURES

INSTANCES = 10
VARIANTS = 4
"""Estimators of the made table for each one of the real one."""

GREATER = 1.05
"""What an estimator that is changed has beside what it had."""

_SPREAD = 0.1
"""Of the numbers of problems and instances, beside those of the real table, on the scale of logarithms."""

Place = tuple[str, str, str]
"""Structure, loss, stage."""


@dataclass(frozen=True)
class LargeTable:
    """What is written.

    Attributes:
        like: the rows of a real table. ``rows``: about how many.
        seed: of the random numbers of the run. ``changed``: share of estimators.
    """

    like: pa.Table
    rows: int
    seed: int = 0
    changed: float = 0.0

    def write(self, folder: Path) -> int:
        """The table and its manifest, a row group at a time; how many rows there are."""
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {"schema_version": SCHEMA_VERSION, "status": "finished", "seed": self.seed, "plan": {"instances": INSTANCES}}
        words = {b"structgrad_schema_version": str(SCHEMA_VERSION).encode(), b"structgrad_manifest": json.dumps(manifest).encode()}
        written = 0
        with pq.ParquetWriter(folder / "results.parquet", schema().with_metadata(words), compression="zstd") as writer:
            for table in self.tables():
                writer.write_table(table.cast(schema()).replace_schema_metadata(words))
                written += len(table)
        (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
        return written

    def tables(self) -> Iterator[pa.Table]:
        """The rows of every suite at every place, in the order of a plan."""
        names, problems = (pc.unique(self.like[name]).to_pylist() for name in ("estimator", "problem"))
        per_place = INSTANCES * VARIANTS * len(self.like) / len(problems)
        count = max(round(self.rows / per_place), 1)
        every = [(structure, loss, stage) for structure in STRUCTURES for loss in LOSSES for stage in STAGES]
        places = [every[(number * 7919) % len(every)] for number in range(min(count, len(every)))]
        changed = set(names[:: round(1 / self.changed)]) if self.changed else set()
        for suite in pc.unique(self.like["suite"]).to_pylist():
            for place in sorted(places):
                original = problems[STRUCTURES.index(place[0]) % len(problems)]
                some = self.like.filter(pc.and_(pc.equal(self.like["problem"], original), pc.equal(self.like["suite"], suite)))
                if len(some):
                    yield self._at(place, some.sort_by("estimator"), changed)

    def _at(self, place: Place, some: pa.Table, changed: set[str]) -> pa.Table:
        """The rows of all estimators and their variants on all instances of one place."""
        structure, loss, stage = place
        problem = f"{structure}@{loss}"
        repeated = np.concatenate([np.tile(rows, VARIANTS * INSTANCES) for rows in _by_estimator(some)])
        counts = [len(rows) for rows in _by_estimator(some)]
        variants = np.concatenate([np.repeat(np.arange(VARIANTS), INSTANCES * count) for count in counts])
        items = np.concatenate([np.tile(np.repeat(np.arange(INSTANCES), count), VARIANTS) for count in counts])
        table = some.take(repeated)
        estimators = np.array(table["estimator"].to_pylist(), dtype=object)
        given = np.array([f"{name}[variant={variant}]" if variant else name for name, variant in zip(estimators, variants, strict=True)])
        greater = np.where(np.isin(estimators, list(changed)), GREATER, 1.0)
        texts = {
            "problem": np.full(len(table), problem),
            "stage": np.full(len(table), stage),
            "loss": np.full(len(table), loss),
            "estimator": given,
            "instance": np.array([f"{structure}-{item}" for item in items]),
            "cell": np.array([f"{zlib.crc32('/'.join((*place, name)).encode()):032x}" for name in given]),
        }
        numbers = self._numbers(table, place, greater)
        for name, values in {**texts, **numbers}.items():
            at = table.schema.get_field_index(name)
            found = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
            table = table.set_column(at, pa.field(name, found.type), found)
        return table

    def _numbers(self, table: pa.Table, place: Place, greater: np.ndarray) -> dict[str, Any]:
        """Values, intervals and batches, moved: by as much in every run, and by what sampling adds with this seed."""
        common = np.random.default_rng(sum(map(ord, "".join(place))))
        own = np.random.default_rng([self.seed, sum(map(ord, "".join(place)))])
        scale = greater * np.exp(_SPREAD * common.standard_normal(len(table)))
        value, low, high = (table[name].to_numpy(zero_copy_only=False).astype(float) * scale for name in ("value", "low", "high"))
        shift = np.nan_to_num((high - low) / 4) * own.standard_normal(len(table))
        batches = table["batches"].combine_chunks()
        flat, sizes = batches.values.to_numpy(), np.diff(batches.offsets.to_numpy())
        moved = flat * np.repeat(scale, sizes) + np.repeat(shift, sizes)
        return {
            "value": pa.array(value + shift, mask=np.isnan(value)),
            "low": pa.array(low + shift, mask=np.isnan(low)),
            "high": pa.array(high + shift, mask=np.isnan(high)),
            "batches": pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)), pa.array(moved)),
            "seed": np.full(len(table), self.seed),
        }


def _by_estimator(some: pa.Table) -> Sequence[np.ndarray]:
    """The positions of the rows of each, which lie together."""
    names = some["estimator"].to_pylist()
    starts = [number for number, name in enumerate(names) if number == 0 or name != names[number - 1]]
    return np.split(np.arange(len(names)), starts[1:])


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, required=True, help="a result table, whose rows are repeated")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--changed", type=float, default=0.0)
    given = parser.parse_args()
    found = pq.read_table(given.like).select(schema().names)
    words = [pa.field(one.name, pa.string() if pa.types.is_dictionary(one.type) else one.type) for one in schema()]
    like = found.cast(pa.schema(words)).replace_schema_metadata(None).combine_chunks()
    written = LargeTable(like, given.rows, given.seed, given.changed).write(given.out)
    print(f"{written} rows in {given.out}")  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
