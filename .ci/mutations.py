"""Mutation testing: small faults in all layers, drawn by a rule, and the tests that find them.

Usage: ``python .ci/mutations.py draw | run | table``; `docs/results/mutations.md` explains the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from mutants import drawing
from mutants.places import Mutation
from mutants.trying import BROKEN, FOUND, Copy, Verdict

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".json")
JUDGED = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "build" / "mutations.jsonl"
SCRATCH = Path(tempfile.gettempdir()) / "structgrad-mutations"

SETS: dict[str, tuple[str, ...]] = {"default": (), "sweep": ("-m", "sweep")}
"""Options of pytest for each set of tests; the first set is a part of the second."""

SECONDS = {"default": 300, "sweep": 1200}
"""CPU seconds after which a mutation counts as found, such as an endless loop."""

ENOUGH = 0.95
"""Least share of the mutations found by the sweep that the default set must find."""

Outcomes = dict[str, dict[str, dict[str, Any]]]
"""Verdicts by mutation and set."""


def stored() -> list[Mutation]:
    """The list as it was drawn."""
    return [Mutation.of(entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))]


def draw(_: argparse.Namespace) -> int:
    """Draw the list again: the same list if the sources are the same."""
    found = drawing.drawn(ROOT)
    LIST.write_text(json.dumps([mutation.stored() for mutation in found], indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found)} mutations: {dict(Counter(mutation.file.split('/')[0] for mutation in found))}")  # noqa: T201
    return 0


def outcomes(path: Path) -> Outcomes:
    """The verdicts so far; a later line replaces an earlier one."""
    found: Outcomes = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        entry = json.loads(line)
        found.setdefault(entry["id"], {})[entry["set"]] = entry
    return found


class Run:
    """Mutations and sets to try, one per copy at a time; every verdict is a line of the results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.sets = options.out, [name for name in SETS if name in options.sets.split(",")]
        self.known, self.told = outcomes(self.out), Lock()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.copies: Queue[Copy] = Queue()
        for number in range(options.jobs):
            folder, first = options.scratch / str(number), options.scratch / "0"
            if number and not folder.exists() and first.exists():
                shutil.copytree(first, folder, ignore=shutil.ignore_patterns("path"))  # with the compiled kernels
            self.copies.put(Copy(ROOT, folder))

    def tell(self, name: str, tests: str, verdict: Verdict) -> None:
        """Write a verdict down."""
        entry = {"id": name, "set": tests, **dataclasses.asdict(verdict)}
        with self.told:
            self.known.setdefault(name, {})[tests] = entry
            with self.out.open("a") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            print(f"{name}: {verdict.outcome} by {tests}, {verdict.seconds} s, {verdict.test}", flush=True)  # noqa: T201

    def attempt(self, mutation: Mutation) -> None:
        """Try the sets on a mutation until one finds it."""
        copy = self.copies.get()
        try:
            path = copy.tree / mutation.file
            text = mutation.applied(path.read_text(encoding="utf-8")) if path.exists() else None
            if text is None:
                print(f"{mutation.id}: place not found", flush=True)  # noqa: T201
            elif any(name not in self.known.get(mutation.id, {}) for name in self.sets):
                with copy.mutated(mutation, text):
                    self._try_sets(copy, mutation)
        finally:
            self.copies.put(copy)

    def _try_sets(self, copy: Copy, mutation: Mutation) -> None:
        for name in self.sets:
            if name not in self.known.get(mutation.id, {}):
                self.tell(mutation.id, name, copy.test(mutation, SETS[name], SECONDS[name]))
            if self.known[mutation.id][name]["outcome"] == FOUND:
                return

    def confirm(self) -> None:
        """Run every test that found a mutation without it; a test that fails there has found nothing."""
        copy = self.copies.get()
        for name in self.sets:
            found = {mutation: known[name] for mutation, known in self.known.items() if known.get(name, {}).get("outcome") == FOUND}
            tests = sorted({entry["test"] for entry in found.values() if "::" in entry["test"]})
            failing = copy.not_passing(tests, SETS[name], SECONDS["sweep"]) if tests else set()
            for mutation, entry in found.items():
                if entry["test"] in failing:
                    self.tell(mutation, name, Verdict(BROKEN, f"does not pass without the mutation: {entry['test']}", 0.0, 0.0))
        self.copies.put(copy)


def run(options: argparse.Namespace) -> int:
    """Try mutations in scratch copies: first the default set, then the sweep. Continues an interrupted run."""
    chosen = [mutation for mutation in stored() if options.ids is None or mutation.id in options.ids.split(",")]
    trial = Run(options)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(trial.attempt, chosen))
    trial.confirm()
    return 0


def table(options: argparse.Namespace) -> int:
    """Print the verdicts as Markdown; fails if the default set finds less than 95 % of those that the sweep finds."""
    known, judged = outcomes(options.out), tomllib.loads(JUDGED.read_text(encoding="utf-8")) if JUDGED.exists() else {}
    mutations = [mutation for mutation in stored() if mutation.id in known]
    groups: dict[str, list[Mutation]] = {"default": [], "sweep": [], "neither": [], "error": []}
    for mutation in mutations:
        groups[_finder(known[mutation.id])].append(mutation)
    by_default, by_any = len(groups["default"]), len(groups["default"]) + len(groups["sweep"])
    print(_counts(groups))  # noqa: T201
    share = by_default / by_any if by_any else 1.0
    seconds = sum(entry["cpu_seconds"] for sets in known.values() for entry in sets.values())
    print(f"\nThe default set finds {by_default} of the {by_any} that the sweep finds, {share:.1%}; {ENOUGH:.0%} are enough.")  # noqa: T201
    print(f"{len(mutations)} of {len(stored())} mutations were tried, in {seconds / 60:.0f} minutes of one core.")  # noqa: T201
    for group, title in (("sweep", "Found by the sweep alone"), ("neither", "Found by neither"), ("error", "Without a verdict")):
        print(f"\n## {title}\n\n{_listed(groups[group], known, judged) or 'None.'}")  # noqa: T201
    return int(share < ENOUGH)


def _finder(sets: dict[str, dict[str, Any]]) -> str:
    """The first set that finds a mutation; ``neither`` only if all were tried."""
    found = {name: entry["outcome"] for name, entry in sets.items()}
    first = next((name for name in SETS if found.get(name) == FOUND), None)
    if first is not None:
        return first
    return "neither" if set(found) == set(SETS) and BROKEN not in found.values() else "error"


def _counts(groups: dict[str, list[Mutation]]) -> str:
    counts = {name: Counter(mutation.stratum for mutation in group) for name, group in groups.items()}
    strata = [stratum for stratum in drawing.STRATA if any(stratum in count for count in counts.values())]
    heading = "| folder | mutations | found by default | by the sweep alone | by neither | no verdict |\n|---|--:|--:|--:|--:|--:|"
    cells = [(f"`{stratum}/`", [counts[name][stratum] for name in groups]) for stratum in strata]
    cells.append(("all", [len(group) for group in groups.values()]))
    return "\n".join([heading, *(f"| {name} | {sum(numbers)} | {' | '.join(map(str, numbers))} |" for name, numbers in cells)])


def _listed(group: list[Mutation], known: Outcomes, judged: dict[str, str]) -> str:
    if not group:
        return ""
    rows = ["| mutation | line | change | by | judged |", "|---|--:|---|---|---|"]
    for mutation in group:
        last = list(known[mutation.id].values())[-1]
        change = f"{_code(mutation.before)} → {_code(mutation.after)}"
        rows.append(f"| `{mutation.id}` | {mutation.line} | {change} | {_code(last['test'])} | {judged.get(mutation.id, '')} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"`{flat[:97]}...`" if len(flat) > 100 else f"`{flat}`" if flat else ""


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    added = {command: commands.add_parser(command.__name__, help=command.__doc__) for command in (draw, run, table)}
    for command, options in added.items():
        options.set_defaults(command=command)
    for command in (run, table):
        added[command].add_argument("--out", type=Path, default=RESULTS, help="where the verdicts are, a JSON line each")
    added[run].add_argument("--ids", help="these mutations alone, with commas between them")
    added[run].add_argument("--sets", default=",".join(SETS), help="the sets of tests to try, with commas between them")
    added[run].add_argument("--jobs", type=int, default=1, help="how many mutations at a time, each in a copy of its own")
    added[run].add_argument("--scratch", type=Path, default=SCRATCH, help="where the copies are kept, outside the repository")
    chosen = parser.parse_args()
    status: int = chosen.command(chosen)
    return status


if __name__ == "__main__":
    sys.exit(main())
