"""The rule by which the list was drawn.

Folders are strata, each with a number of mutations. In each, the files are shuffled and taken in turn. In a file, the operator is the one
that was drawn least often so far among those with a place there. The place is random. A mutation that leaves the source as it is, or is no
valid source, is drawn again. The random numbers depend on the seed and the stratum alone.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from mutants.operators import differs, mutated, sites
from mutants.places import Mutation, Origin, mutation
from mutants.selection import tests_of

SEED = 1
STRATA = {
    "oracles": 3,
    "oracles/active_set": 1,
    "oracles/alignment": 1,
    "oracles/assignment": 3,
    "oracles/capabilities": 4,
    "oracles/constituency": 1,
    "oracles/derivations": 8,
    "oracles/derived": 4,
    "oracles/kernels": 5,
    "oracles/linear_chain": 2,
    "oracles/projective_tree": 1,
    "oracles/shift_reduce": 1,
    "oracles/simplex": 2,
    "oracles/softmax": 1,
    "oracles/spanning_tree": 3,
    "oracles/spanning_tree/cpu": 4,
    "oracles/subset": 2,
    "oracles/tied_chain": 1,
    "estimators": 26,
    "suites": 3,
    "suites/audit": 6,
    "suites/comparison": 3,
    "suites/learning": 3,
    "suites/measures": 4,
    "suites/measures/cost": 2,
    "suites/problems": 4,
    "suites/running": 3,
    "suites/running/engines": 1,
    "suites/running/planning": 1,
    "suites/statistics": 6,
    "suites/tasks": 2,
    "suites/tasks/language": 2,
    "suites/truth": 7,
    "reports": 3,
    "reports/analysis": 1,
    "reports/comparison": 1,
    "reports/page": 2,
    "reports/published": 1,
    "reports/verbs": 3,
    "reports/verbs/run": 2,
}
"""Folders, without their subfolders, each with its number of mutations."""


def drawn(root: Path) -> list[Mutation]:
    """The list of mutations."""
    counts: Counter[str] = Counter()
    return [mutation for folder, number in STRATA.items() for mutation in Stratum(root, folder, counts).drawn(number)]


class Stratum:
    """A folder, its random numbers, and how often each operator was drawn so far in all folders."""

    def __init__(self, root: Path, folder: str, counts: Counter[str]) -> None:
        self.root, self.folder, self.counts = root, folder, counts
        self.draw = random.Random(f"{SEED} {folder}")

    def drawn(self, number: int) -> list[Mutation]:
        """This number of mutations, from all files in turn."""
        files = sorted(str(path.relative_to(self.root)) for path in (self.root / self.folder).glob("*.py") if path.name != "__main__.py")
        self.draw.shuffle(files)
        found: dict[str, Mutation] = {}
        for file in files * number:
            one = self._from(file) if len(found) < number else None
            if one is not None and one.id not in found:
                found[one.id] = one
                self.counts[one.operator] += 1
        return list(found.values())

    def _from(self, file: str) -> Mutation | None:
        text = (self.root / file).read_text(encoding="utf-8")
        places = sites(text)
        while places:
            fewest = min(self.counts[site.operator] for site in places)
            site = self.draw.choice([site for site in places if self.counts[site.operator] == fewest])
            if differs(text, mutated(text, site)):
                tests, choose = tests_of(self.root, file, site.scope)
                return mutation(text, site, Origin(self.folder, file, tests, choose))
            places.remove(site)
        return None
