"""The page of a large run, and the folder beside it: a page for each structure, and all medians."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from ....suites.processors import is_running
from ....suites.text import whole
from ... import results
from ...analysis.answers import MAIN_BUDGET, QUESTIONS, Answer
from ...results import Manifest
from .. import dataset
from ..answering import SCORES, answer_cell, price
from ..content import Report
from ..page import MANY_ROWS, environment, rendered
from .fitting import Cut, Matrix, fitted, told
from .gathered import Gathered, gather

MEDIANS = "medians.parquet"
MOST = 100
"""Contradicted claims, reasons of failure and places of each that the page names; of the rest it says how many there are."""


def write(source: Path, place: str, path: Path) -> Path:
    """The page at ``path``, and beside it ``<name>-structures``: first the folder, then the page, each as a whole.

    Args:
        source: a table, or the folder of a run.
        place: what commands call the run.
        path: of the page; an earlier one and its folder are replaced.

    Returns:
        The folder.

    Raises:
        ValueError: in the place of the folder lies something else, or the table is not what it says.
    """
    folder = path.with_name(f"{path.stem}-structures")
    _put_right(folder)
    _check_own(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        _, manifest = results.opened(source)
        found = gather(source, file_of, _Pages(made, {**manifest, "folder": place}, quote(path.name)))
        (made / MEDIANS).write_bytes(medians(found))
        text = page(found, folder.name)
        _replaced(folder, made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    results.write_whole(path, text.encode())
    return folder


@dataclass(frozen=True)
class _Pages:
    """Writes the page of each structure into a folder.

    Attributes:
        folder: that is made. ``manifest``: of the run. ``back``: the address of the page of all, from there.
    """

    folder: Path
    manifest: Manifest
    back: str

    def __call__(self, name: str, frame: pd.DataFrame, said: Report) -> None:
        beside = f"Charts and answers are of this structure alone; {MEDIANS}, next to this page, has all medians, quartiles and intervals."
        text = rendered(frame, self.manifest, said, {}, beside=beside, structure=name, back=self.back)
        (self.folder / file_of(name)).write_text(text, encoding="utf-8")


def file_of(structure: str) -> str:
    """The file of a structure: its name as far as any file system takes it, and a digest, so that no two share one.

    Example:
        >>> file_of("subset[n=10,k=2]")
        'subset-n-10-k-2-b6aa2f59.html'
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", structure)[:60].strip("-")
    digest = hashlib.blake2b(structure.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{plain or 'structure'}-{digest}.html"


def medians(found: Gathered) -> bytes:
    """`tables.aggregate` of all structures, as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.concat_tables(found.medians, promote_options="permissive"), buffer, compression="zstd")
    return buffer.getvalue()


def page(found: Gathered, folder: str) -> str:
    """Answers for every problem at every stage, with a link to the page of each structure; cut where it would be too large.

    Args:
        found: what was gathered.
        folder: beside the page, with the pages of structures.
    """
    said, shown = found.report(), matrices(found.answers)
    longest = max(len(said.answers.rows), len(said.skipped.rows), len(found.structures), *(len(rows) for *_, rows in shown), 1)
    return fitted(lambda cut: _rendered(found, folder, said, shown, cut), longest)


def _rendered(found: Gathered, folder: str, said: Report, shown: list[Matrix], cut: Cut | None) -> str:
    links = {problem: f"{folder}/{one.file}" for one in found.structures for problem in one.problems}
    return (
        environment()
        .get_template("large.html.j2")
        .render(
            report=cut.report(said) if cut else said,
            structures=found.structures[: cut.rows] if cut else found.structures,
            matrices=cut.matrices(shown) if cut else shown,
            cut=told(cut, len(links), len(found.structures), folder) if cut else "",
            words=cut.words if cut else str,
            links=links,
            folder=folder,
            medians=f"{folder}/{MEDIANS}",
            number_of_medians=whole(sum(map(len, found.medians))),
            bibtex="\n\n".join(entry.source for entry in said.references),
            most=min(MOST, cut.rows) if cut else MOST,
            many=MANY_ROWS,
            data=dataset.packed({}),
        )
    )


def matrices(found: list[Answer]) -> list[Matrix]:
    """By question: what it asks, by what the best is found, the stages, and a row of answers for each problem."""
    stages = sorted(dict.fromkeys(answer.stage for answer in found))
    made = []
    for question in QUESTIONS:
        asked = {(one.problem, one.stage): one for one in found if one.question.name == question.name and one.budget == MAIN_BUDGET}
        problems = dict.fromkeys(problem for problem, _ in asked)
        criterion = f"The best by {question.criterion}"
        criterion += f", {price(found)}" if question.score != "variance_seconds" else ""
        rows = {problem: [answer_cell(asked.get((problem, stage))) for stage in stages] for problem in problems}
        if rows:
            made.append(
                (
                    question.asks,
                    f"{criterion}; brackets are 95 % intervals over instances. {SCORES[question.score].meaning}",
                    stages,
                    rows,
                )
            )
    return made


def _check_own(folder: Path) -> None:
    """Refuse to replace a folder that no report has written."""
    if not folder.exists() and not folder.is_symlink():
        return
    own = folder.is_dir() and not folder.is_symlink() and (folder / MEDIANS).is_file()
    if not own or any(entry.is_dir() or entry.suffix not in (".html", ".parquet") for entry in folder.iterdir()):
        raise ValueError(f"`report` writes pages into {folder}, which holds something else; move it, or name another file with --output")


def _replaced(folder: Path, made: Path) -> None:
    """The folder with what was made in the place of what it was. A report that is killed here is put right by the next one."""
    old = made.with_suffix(".old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(made, folder)
    shutil.rmtree(old, ignore_errors=True)


def _put_right(folder: Path) -> None:
    """After a report that was killed: the folder in its place, where it was about to be replaced, and nothing else of it left."""
    beside = f".{glob.escape(folder.name)}.*"
    for left in sorted(folder.parent.glob(f"{beside}.old")):
        if not folder.exists() and _is_left(left):
            os.replace(left, folder)
    for left in [*folder.parent.glob(f"{beside}.old"), *folder.parent.glob(f"{beside}.tmp")]:
        if _is_left(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_left(made: Path) -> bool:
    """Whether the process that a folder was made by, which its name says, is no more."""
    number = made.name.split(".")[-2]
    return number.isdecimal() and not is_running(int(number))
