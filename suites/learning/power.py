"""Power of a study of learning: how often it confirms a predictor of a given rank correlation.

Usage: ``python -m structgrad.suites.learning.power docs/results/learning.md``, a page of a study whose variances the simulation takes.

Numbers of an estimator on a task are sums of normal parts: of its family, of its own (both the same on all tasks), and of the pair. A part
of the outcome correlates with the same part of the predictor. That correlation differs between families of tasks, and between tasks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from .arrays import REFERENCES, idea_of
from .finding import pooled, rank_correlations

Array = np.ndarray

PREDICTOR = np.array([0.2, 0.5, 0.3])  # shares of the parts; pages hold none, and these give the widths of the stored intervals
BETWEEN_TASKS = 0.2  # standard deviation of the correlation; it gives the spread of the stored correlations of single tasks
LEAST_COMMON = 0.05  # share of a family in the outcome; its estimate is negative in the stored study, and is not trusted to be 0
LISTED, LEVEL, REPETITIONS = 8, 0.05, 1000  # predictors that are tested, with their family-wise error rate; simulated studies

FEW, SOME = (4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1), (6, 5, 5, 4, 3, 3, 2, 2, 2, 2, 1, 1)  # estimators of each family
FAMILIES = (8, 7, 6, 6, 4, 4, 3, 3, 2, 2, 1, 1)  # by module, of all that fit most structures
IDEAS = (9, 5, 4, 3, 3, 3, 2, 2)  # of the stored study, by idea


@dataclass(frozen=True)
class Design:
    """A study: families of tasks with so many tasks each, families of estimators, and seeds."""

    families: int
    tasks: int
    estimators: Sequence[int]
    seeds: int = 3

    @property
    def labels(self) -> tuple[Array, Array]:
        """The families of all tasks and of all estimators."""
        return np.repeat(np.arange(self.families), self.tasks), np.repeat(np.arange(len(self.estimators)), self.estimators)

    def drawn(self, random: np.random.Generator, rank_correlation: float, shares: Array, noise: float) -> tuple[Array, Array, Array]:
        """Predictors, outcomes ``[repetition, T, E]``, and the noise of single seeds ``[seed, repetition, T, E]``."""
        families, estimators = self.labels
        size = (REPETITIONS, len(families), len(estimators))
        of_families = random.standard_normal((2, REPETITIONS, 1, len(self.estimators)))[..., estimators]
        parts = [of_families, random.standard_normal((2, REPETITIONS, 1, size[-1])), random.standard_normal((2, *size))]
        apart = random.standard_normal((REPETITIONS, self.families))[:, families] + random.standard_normal(size[:2])
        mean = 2 * np.sin(np.pi * rank_correlation / 6) * np.sqrt(shares.sum()) / np.sqrt(PREDICTOR * shares).sum()
        correlation = np.clip(mean + BETWEEN_TASKS / np.sqrt(2) * apart, -1, 1)[..., None]
        x = sum(np.sqrt(share) * own for share, (own, _) in zip(PREDICTOR, parts, strict=True))
        other = np.sqrt(1 - correlation**2)
        y = sum(np.sqrt(share) * (correlation * own + other * rest) for share, (own, rest) in zip(shares, parts, strict=True))
        return np.asarray(x), np.asarray(y), np.sqrt(noise) * random.standard_normal((self.seeds, *size))


def of_list(design: Design, numbers: tuple[Array, ...], listed: int) -> float:
    """How often one predictor of a list is confirmed if no other is: at Holm's first step, over all tasks, estimators and seeds."""
    x, y, noise = numbers
    found = pooled(x, y + noise.mean(0), *design.labels)
    return float(((found.p_value < LEVEL / listed) & (found.z > 0)).mean())


def of_halves(design: Design, real: tuple[Array, ...], null: tuple[Array, ...]) -> tuple[float, float]:
    """How often one half chooses the real one of `LISTED` predictors and the other confirms it, and how often any one if none is real.

    A half chooses the largest correlation whose interval excludes 0. Halves share no family of tasks, no estimator and no seed.
    """
    families, estimators = design.labels

    def half(which: int, x: Array, y: Array, noise: Array) -> Array:
        """Fisher's z of a half, 0 where its interval does not exclude 0."""
        rows, columns = families % 2 == which, np.arange(len(estimators)) % 2 == which
        x, y = (side[:, rows][..., columns] for side in (x, y + noise[which % len(noise) :: 2].mean(0)))
        found = pooled(x, y, families[rows], estimators[columns])
        return np.where(found.p_value < LEVEL, found.z, 0.0)

    first, others = ([half(which, *numbers) for which in (0, 1)] for numbers in (real, null))
    rivals, confirmed = np.random.default_rng(1).integers(REPETITIONS, size=(LISTED - 1, REPETITIONS)), []
    for mine in (first, others):
        choice, confirmation = (np.concatenate([one[None], other[rivals]]) for one, other in zip(mine, others, strict=True))
        chosen = np.abs(choice).argmax(0)
        both = np.take_along_axis(choice * confirmation > 0, chosen[None], 0)[0]
        confirmed.append(float((both & ((chosen == 0) | (mine is others))).mean()))
    return confirmed[0], confirmed[1]


def variances(page: Path) -> tuple[Array, float]:
    """Shares of the parts of normalised accuracy, as ranks within tasks, and of the noise of one seed, from the table of all tasks."""
    table = page.read_text(encoding="utf-8").replace("\\", "").partition("## All tasks")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")][2:]
    cells = {row[0]: [re.fullmatch(r"(\S+)(?: \[(\S+), (\S+)\])?", cell) for cell in row[4:]] for row in rows}
    names = [name for name, found in cells.items() if all(found) and name not in REFERENCES]
    numbers = np.array([[[float(number or cell[1]) for number in cell.groups()] for cell in cells[name] if cell] for name in names])
    value, low, high = numbers.transpose(2, 1, 0)
    ideas, diagonal = np.array([idea_of(name.partition("[")[0]) for name in names]), np.eye(len(names)) > 0
    ranks = scipy.stats.norm.ppf((scipy.stats.rankdata(value, axis=-1) - 0.5) / len(names))
    products = (np.einsum("te,uf->tuef", ranks, ranks) / np.square(ranks).mean())[~np.eye(len(value), dtype=bool)]
    alike = np.equal.outer(ideas, ideas)
    # Ranks of a task sum to 0, so those of two estimators have a negative covariance, which is taken off.
    common, own, unlike = (products[:, pairs].mean() for pairs in (alike & ~diagonal, diagonal, ~alike))
    common, own = max(common - unlike, LEAST_COMMON), own - unlike
    seed = (high - low) / 2 * np.sqrt(3) / scipy.special.stdtrit(2, 0.975)  # of pages with three seeds
    noise = float(np.median(np.square(seed).mean(-1) / value.var(-1)))
    return np.array([common, own - common, 1 - own - noise / 3]), noise


def main() -> None:
    """Print the table of power, and the stored study as the simulation has it."""
    shares, noise = variances(Path(sys.argv[1]))
    stored, random = Design(9, 1, IDEAS), np.random.default_rng(0)
    x, y, seeds = stored.drawn(random, 0.4, shares, noise)
    found, within = pooled(x, y + seeds.mean(0), *stored.labels), rank_correlations(x, y + seeds.mean(0))
    lines = [f"Shares of family, estimator and pair in the outcome: {shares.round(2)}; variance of one seed: {noise:.2f}."]
    lines += [
        f"Nine tasks: standard error over estimators {np.sqrt(np.median(found.of_estimators)):.3f}, standard deviation between tasks "
    ]
    lines[-1] += f"{within.std(-1, ddof=1).mean():.2f}."
    designs = [stored, *(Design(12, 2, estimators) for estimators in (FEW, SOME, FAMILIES))]
    designs += [Design(12, 2, FAMILIES, seeds) for seeds in (1, 5)] + [Design(*tasks, FAMILIES) for tasks in ((6, 2), (8, 3), (12, 4))]
    for design in designs:
        real, null = (design.drawn(random, correlation, shares, noise) for correlation in (0.4, 0.0))
        halves, falsely = of_halves(design, real, null), 1 - (1 - of_list(design, null, LISTED)) ** LISTED
        powers = [*(of_list(design, real, listed) for listed in (LISTED, 4, 1)), halves[0], falsely, halves[1]]
        counts = f"{design.families * design.tasks} | {design.families} | {sum(design.estimators)} | {len(design.estimators)}"
        lines.append(f"| {counts} | {design.seeds} | {' | '.join(f'{power:.2f}' for power in powers)} |")
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
