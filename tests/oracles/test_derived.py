"""A structure that states its derivations is one file: problems and benchmarks find it."""

import json
import subprocess
import sys
from pathlib import Path

from structgrad.oracles import DERIVED, DerivedOracle
from structgrad.oracles.derivations import Examples
from tests.asv_benchmarks import cases
from tests.oracle_cases import TABLE

FILE = '''
"""Tilings."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, Examples


@dataclass(frozen=True)
class Tiles(DerivedOracle):
    """Tilings of a row: event ``[n, w]``."""

    name: ClassVar[str] = "NAME"
    axes: ClassVar[tuple[str, ...]] = ("length", "width")
    examples: ClassVar[Examples] = Examples(EXAMPLES)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        length, width = event_shape
        parts = torch.arange(length * width).reshape(event_shape)
        builder, ends = Builder(length * width), [torch.tensor([UNIT])]
        for i in range(length):
            before = [ends[i - w] if w <= i else torch.tensor([DEAD]) for w in range(width)]
            ends.append(builder.add(torch.stack(before, 1), parts[i : i + 1]))
        return builder.finish(ends[-1])
'''
DECLARED = 'small=((4, 2), (5, 2)), usual=(40, 3), like="linear_chain", counted="places"'

SEEN = """
import importlib.machinery, json, sys

class Beside:
    '''Another folder whose files are among those of the package.'''

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "structgrad.oracles.derived" else None
        if spec is not None:
            spec.submodule_search_locations.append(sys.argv[1])
        return spec

sys.meta_path.insert(0, Beside())
from structgrad.oracles import ORACLES, make_oracle
from structgrad.suites.problems import BUILT_IN_PROBLEMS, load
from structgrad.suites.problems.score_files import counted_by
from structgrad.suites.problems.regimes import REGIMES
from structgrad.suites.problems.sized import sized_name, sized_regime
from structgrad.suites.running.planning.presets import plan_of

print(json.dumps([
    {
        "registry": name in ORACLES,
        "problem": [list(each.scores.shape) for each in load(f"{name}_regimes", "h=0.95", instances=3, data=None).instances],
        "summary": BUILT_IN_PROBLEMS[f"{name}_regimes"],
        "entropies": REGIMES[f"{name}_regimes"].entropies,
        "standard": f"{name}_regimes" in plan_of("standard").problems,
        "counted": counted_by(make_oracle(name)),
        "sized": [sized_name(f"{name}[w=2,n=6]"), sized_regime(f"{name}[n=6,w=2]").entropies],
    } for name in ("toy_tiles", "toy_plain")
] + [REGIMES["chain_regimes"].entropies]))
"""


def test_one_file_is_a_problem_and_a_benchmark(tmp_path: Path) -> None:
    """In a process of its own, with one file that declares sizes and one whose sizes follow from its axes."""
    for name, declared in (("toy_tiles", DECLARED), ("toy_plain", "")):
        (tmp_path / f"{name}.py").write_text(FILE.replace("EXAMPLES", declared).replace("NAME", name))
    told = subprocess.run([sys.executable, "-c", SEEN, str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    *found, chains = json.loads(told.stdout)
    named = "random scores of {0}[length={1},width=2] to {0}[length={2},width=2]".format
    assert found == [
        {
            "registry": True,
            "problem": [[4, 2], [5, 2], [4, 2]],
            "summary": f"{named('toy_tiles', 4, 5)}, as peaked as those of linear_chain",
            "entropies": chains,
            "standard": True,
            "counted": "places",
            "sized": ["toy_tiles[n=6,w=2]", chains],
        },
        {
            "registry": True,
            "problem": [[6, 2], [7, 2], [8, 2]],
            "summary": named("toy_plain", 6, 8),
            "entropies": [0.95, 0.7, 0.1],
            "standard": True,
            "counted": "parts along the first axis",
            "sized": ["toy_plain[n=6,w=2]", [0.95, 0.7, 0.1]],
        },
    ]
    assert cases.declared(tmp_path) == ({"toy_tiles 4x2": ("toy_tiles", (4, 2))}, {"toy_tiles 40x3": ("toy_tiles", (40, 3))})


def test_a_file_without_a_class_of_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("")
    told = subprocess.run([sys.executable, "-c", SEEN, str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "oracles/derived/nothing.py has 0 subclasses of DerivedOracle with name = 'nothing'; expected one" in told.stderr


def test_every_file_has_a_row_in_the_table_of_tests_that_fits() -> None:
    rows = {row.oracle.name: row for row in TABLE if row.derived}
    assert rows.keys() == DERIVED.keys()
    for name, kind in DERIVED.items():
        row = rows[name]
        for event in (*row.events, row.paired, row.ragged, *map(kind.event_of, kind.examples.small)):
            row.oracle.check_event("test", event)
        assert row.oracle.count(kind.event_of(kind.examples.usual)) >= 2


def test_defaults_fill_what_is_not_declared() -> None:
    assert Examples(usual=(7, 3)).filled(("length", "tags")) == Examples(((6, 2), (7, 2), (8, 2)), (7, 3))
    assert Examples().filled(("length",)) == Examples(((6,), (7,), (8,)), (32,))
    kind = type("Bare", (DerivedOracle,), {"event_ndim": 1})
    assert kind.examples == Examples()
