"""Mutation testing with cosmic-ray: small faults in one file or folder, and the tests that find them.

Usage: ``python .ci/mutations.py estimators/spigot.py --count 40 --seed 1``, after ``pip install cosmic-ray``. The faults are drawn evenly
over operators and made in a clone of the last commit. Those that the default tests miss are tried again by the sweep.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENOUGH = 0.95
"""Least share of the faults found by the sweep that the default tests must find."""

TESTS = {
    "oracles": "tests/oracles tests/laws/test_oracle_*.py",
    "estimators": "tests/laws/test_estimator_*.py tests/laws/test_*options.py tests/laws/test_layer_noise.py tests/estimators",
    "suites": "tests/suites tests/goldens",
    "reports": "tests/reports tests/goldens",
}
COMMAND = """
stale() { git diff --quiet -- 'oracles/*cpu*' oracles/kernels || find oracles -name '*.nb?' -delete; }
# Compiled kernels may have inlined a fault, or the sound function. One file has the error messages of all layers.
stale; python -m pytest -q -x -p no:cacheprovider $@ tests/test_wrong_inputs.py; status=$?; stale; exit $status
"""
CONFIG = """
[cosmic-ray]
module-path = "{path}"
timeout = 1800.0
excluded-modules = []
test-command = "bash build/tests.sh {options}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [
    "core/ReplaceBinaryOperator_(?!Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul).*",
    "core/ReplaceUnaryOperator_(?!Delete).*",
    "core/ReplaceComparisonOperator_(?!Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is).*",
]
"""
"""Without the operators whose faults every test finds, such as << in place of +."""


def kept(session: Path, count: int, seed: int) -> int:
    """Leave a number of the faults in a session, evenly over operators, and return how many there are."""
    with sqlite3.connect(session) as base:
        query = "SELECT job_id, operator_name FROM mutation_specs WHERE job_id NOT IN (SELECT job_id FROM work_results) ORDER BY job_id"
        queues = defaultdict[str, list[str]](list)
        for job, operator in base.execute(query).fetchall():
            queues[operator].append(job)
        chance = random.Random(seed)
        for queue in queues.values():
            chance.shuffle(queue)
        chosen = sorted((place, chance.random(), job) for queue in queues.values() for place, job in enumerate(queue))[:count]
        only(base, [job for _, _, job in chosen])
    return len(chosen)


def only(base: sqlite3.Connection, jobs: list[str]) -> None:
    """Forget all other faults and all results."""
    base.execute("DELETE FROM work_results")
    for table in ("mutation_specs", "work_items"):
        base.execute(f"DELETE FROM {table} WHERE job_id NOT IN ({','.join('?' * len(jobs))})", jobs)


def main() -> int:
    """Draw, try, and print the faults that no default test finds; fail if the sweep finds too many of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="a file or folder of a layer, such as estimators/spigot.py")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        drawn, *missed = tried(Path(folder), given.path, given.count, given.seed)
    found, possible = drawn - missed[0], drawn - missed[-1]
    print(f"the default tests find {found} of the {possible} faults that the sweep finds; {missed[-1]} are found by neither")  # noqa: T201
    return int(found < ENOUGH * possible)


def tried(tree: Path, path: str, count: int, seed: int) -> list[int]:
    """The number of faults, that of those that the default tests miss, and that of those that the sweep misses too."""
    links, session = tree / "build/links/structgrad", tree / "build/session.sqlite"
    links.mkdir(parents=True)
    for file in (*(tree / "reports/package").iterdir(), *(tree / layer for layer in TESTS)):
        (links / file.name).symlink_to(file)
    (tree / "build/tests.sh").write_text(COMMAND)
    programs = Path(sys.executable).parent
    environment = os.environ | {"PYTHONPATH": str(links.parent), "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(program: str, *words: object) -> str:
        return subprocess.run(
            [str(programs / program), *map(str, words)], cwd=tree, env=environment, check=True, capture_output=True, text=True
        ).stdout

    missed: list[int] = []
    for options in ("", "-m sweep "):
        config = tree / "build/mutations.toml"
        config.write_text(CONFIG.format(path=path, options=options + TESTS[path.partition("/")[0]]))
        if not options:
            run("cosmic-ray", "init", config, session)
            run("cr-filter-operators", session, config)
            count = kept(session, count, seed)
        run("cosmic-ray", "exec", config, session)
        print(run("cr-report", "--show-diff", "--surviving-only", session))  # noqa: T201
        with sqlite3.connect(session) as base:
            survivors = [job for (job,) in base.execute("SELECT job_id FROM work_results WHERE test_outcome = 'SURVIVED'")]
            missed.append(len(survivors))
            only(base, survivors)
        if not survivors:
            break
    return [count, *missed]


if __name__ == "__main__":
    sys.exit(main())
