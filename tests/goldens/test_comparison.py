"""Verdicts of 33 pairs of runs, and the output of ``compare`` and ``gate``, as they were on 26 November 2026.

``python -m tests.goldens.test_comparison`` writes both files again, after a change on purpose.
"""

import contextlib
import functools
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from structgrad.reports import results
from structgrad.reports.analysis.loading import load
from structgrad.reports.cli import app
from structgrad.suites.base import Row, to_frame
from structgrad.suites.comparison import KEY, GateResult, compare, gate, read_settings
from tests.suites.comparison.rows import batch_means, exact, sampled

FOLDER = Path(__file__).parent
VERDICTS, TRANSCRIPTS = FOLDER / "comparison.parquet", FOLDER / "comparison.txt"
MACHINE = {"cpu": "x", "cores": 2, "python": "3.11", "packages": {"torch": "2.8"}}
METRICS = {"relative_variance": 4.0, "relative_mse": 5.0, "relative_bias_squared": 1e-3, "null_bias": 0.3, "rho": 0.4}
GATED = {
    "other scales", "missing and new", "a failure", "odd rows", "another version of an estimator", "nothing before", "other replicates",
    "models that learn with noise, and curves", "times and bytes on another machine", "many tests", "claims", "the own baseline",
}  # fmt: skip
NUMBERS = ("base", "head", "change", "low", "high", "p_value", "p_adjusted")


@dataclass(frozen=True)
class Case:
    """Two runs, and how they are compared."""

    base: list[Row]
    head: list[Row]
    settings: dict[str, Any] = field(default_factory=dict)
    machines: tuple[dict[str, Any], dict[str, Any]] = (MACHINE, MACHINE)


def estimate(scale: float, draw: int, **about: Any) -> list[Row]:
    """The numbers of an estimator on an instance, some of which shrink with it."""
    rows = [sampled(size * scale * batch_means(draw, error=0.02), metric=name, **about) for name, size in METRICS.items()]
    rows += [sampled(scale * batch_means(draw + 1), metric="gain", **about), exact(0.0, metric="orthogonal_bias", **about)]
    claim = {"metric": "relative_bias", "unbiased": True, "objective": "expected", "verdict": "biased"}
    return [*rows, sampled(0.1 * scale * batch_means(draw + 2), p_value=1e-9 if scale > 1.5 else 0.5, **claim, **about)]


def run(scales: dict[str, float], seed: int = 0, problems: tuple[str, ...] = ("toy",)) -> list[Row]:
    """An estimator for each scale, on two instances of each problem."""
    found = []
    for problem in problems:
        for name, scale in scales.items():
            for place in range(2):
                about = {"problem": problem, "estimator": name, "instance": f"{problem}-{place}"}
                found += estimate(scale * (1 + place / 50), 10 * place + seed, seed=seed, **about)
    return found


def exactly(gain: float, spread: float, **about: Any) -> list[Row]:
    """Exact numbers of one estimator of this gain, with a variance times the spread."""
    variance = 2.0 * gain**2 * spread
    numbers = {"gain": gain, "relative_variance": variance, "relative_mse": (gain - 1) ** 2 + variance, "orthogonal_bias": 0.3 * abs(gain)}
    return [exact(value, metric=name, **about) for name, value in numbers.items()]


def bare(row: Row) -> Row:
    """A row without batches, whose error follows from its interval."""
    return replace(row, batches=())


def own_baseline(change: Callable[[int, Row], Row | None] = lambda number, row: row) -> list[Row]:
    """Some rows of the baseline of this repository, each changed or left out."""
    names = ("ste", "rloo", "st_gumbel", "sparsemap_marginalisation")
    frame = load(str(FOLDER.parents[1] / ".ci" / "baseline.parquet")).frame
    frame = frame[frame["estimator"].isin(names) & frame["problem"].eq("subset_regimes")].astype(object)
    rows = [Row(**record) for record in frame.where(frame.notna(), None).to_dict("records")]  # type: ignore[misc]
    return [found for number, row in enumerate(rows) if (found := change(number, row)) is not None]


def perturbed(number: int, row: Row) -> Row | None:
    """Every seventh value larger, every eleventh row missing, every thirteenth of another version."""
    if number % 11 == 3:
        return None
    value = row.value if row.value is None or number % 7 else 1.05 * row.value
    return replace(row, value=value, oracle_version=row.oracle_version + (number % 13 == 5))


@functools.cache
def cases() -> dict[str, Case]:
    """All pairs by name."""
    same = run({"rloo": 1.0, "imle": 1.0, "ste": 0.5})
    failure = replace(same[0], metric="", value=None, batches=(), low=None, high=None, status="error", reason="it broke", tier="")
    one, other = sampled(batch_means(0)), sampled(batch_means(3, mean=1.06), seed=1)
    odd = [
        *(replace(row, estimator="gone") for row in same[:9]),
        replace(same[1], value=None, batches=()),
        replace(same[3], batches=(math.inf, *same[3].batches[1:])),
        replace(same[5], low=None, high=None, batches=()),
        replace(same[8], value=None, reason="rare events: fewer than 30 replicates carry the variance"),
        replace(same[10], status="nonfinite", value=None, batches=(), reason="the value is nan"),
    ]
    task = ("c", "learning", "task:toy", "training", "", "categorical", "cross_entropy")
    random = np.random.default_rng(0).standard_normal((3, 8))
    learnt = [
        [Row(*task, name, name, instance=f"seed={seed}", metric="accuracy", value=float(value)) for seed, value in enumerate(values)]
        for name, values in (
            ("ste", 0.8 + 0.03 * random[0]),
            ("ste", 0.75 + 0.03 * random[0] + 0.002 * random[1]),
            ("ste", 0.79 + 0.03 * random[0] + 0.02 * random[2]),
        )
    ]
    curves = [
        Row(*task, name, name, instance=f"seed={seed}", metric="curve_accuracy", setting=f"step={step}", size=step, value=0.001 * step)
        for name in ("reinforce", "rloo")
        for seed in range(2)
        for step in (0, 50, 100)
    ]
    cheap = [
        [
            exact(gain, metric="gain", estimator=name, problem=problem)
            if metric == "gain"
            else exact(parts, metric=metric, suite="sparsity", estimator=name, problem=problem, unit="count")
            for name, gain, parts in rows
            for problem in ("toy", "play")
            for metric in ("gain", "support")
            if problem == "toy" or metric == "support"
        ]
        for rows in ([("rloo", 1.0, 4.0), ("ste", 1.0, 4.0)], [("rloo", 0.5, 2.0), ("ste", 1.0, 2.0)])
    ]
    times = [replace(bare(sampled(size * batch_means(5))), metric="time_ratio", unit="1") for size in (1.0, 1.5)]
    memory = [exact(size, metric="peak_memory", tier="", unit="B", instance=f"i{place}") for place, size in enumerate((1e6, 1e6, 1e6))]
    larger = [replace(row, value=size) for row, size in zip(memory, (1e6, 1.03e6, 1.2e6), strict=True)]
    overrides = [{"estimator": "im*", "minimum_change": 0.5}, {"metric": "gain", "gated": False}, {"estimator": "none", "floor": 1.0}]
    nothing, thrice = sampled(1e-31 * batch_means(0)), sampled(1e-31 * batch_means(1) + 4.0 * np.eye(32)[[3, 8, 20]].sum(0), seed=1)
    crowd = [[sampled(batch_means(seed), seed=seed, instance=f"i{number}") for number in range(60)] for seed in (0, 5)]
    claim = {"metric": "relative_bias", "unbiased": True, "objective": "expected"}
    claims = [
        exact(1e-6, instance="a", verdict="biased", **claim),
        exact(1e-4, instance="b", verdict="biased", dtype="float32", **claim),
        exact(0.1, instance="c", tier="mc", verdict="biased", p_value=1e-6, low=0.05, high=0.2, **claim),
        exact(0.001, instance="d", tier="mc", verdict="biased", p_value=1e-6, low=0.0, high=0.2, **claim),
        exact(0.97, instance="d", tier="mc", metric="gain", low=0.96, high=0.98),
        exact(None, instance="e", tier="mc", verdict="biased", p_value=1e-9, **claim),
        exact(0.1, instance="f", tier="mc", verdict="biased", p_value=0.004, low=0.0, high=0.2, **claim),
        exact(None, instance="g", verdict="broken", status="error", reason="returned NaN in 1 of 9 draws", **{**claim, "metric": ""}),
    ]
    signs = [(3.0, 2.94), (2.94, 3.0), (0.0, 5e-13), (0.0, 1e-9), (-1.0, 2.0), (1e-17, 0.2), (1.0, 999.0), (1.0, 1001.0)]
    small = [[exact(pair[side], metric="relative_variance", instance=f"i{n}") for n, pair in enumerate(signs)] for side in (0, 1)]
    return {
        "the same": Case(same, same),
        "other scales": Case(same, run({"rloo": 1.0, "imle": 1.3, "ste": 0.7})),
        "two problems, reseeded": Case(run({"rloo": 1.0}, 0, ("toy", "play")), run({"rloo": 1.0}, 1, ("toy", "play"))),
        "reseeded and other scales": Case(same, run({"rloo": 1.0, "imle": 2.0, "ste": 0.5}, seed=1)),
        "perturbed values": Case(same, [replace(row, value=(row.value or 0) * (1 + n / 400)) for n, row in enumerate(same)]),
        "missing and new": Case(same, run({"rloo": 1.0, "sfe": 1.0})),
        "a failure": Case(same, [failure, *same[20:]]),
        "a failure mended": Case([failure, *same[20:]], same),
        "a failure before alone": Case([replace(failure, estimator="lost"), *same[:8]], same[:8]),
        "odd rows": Case([*same, *learnt[0]], [*same[9:], *odd, *(replace(row, value=0.1) for row in learnt[0])]),
        "odd rows before": Case([*same[9:], *odd], same),
        "another version of an estimator": Case(
            same, [replace(row, estimator_version=2) if row.estimator == "imle" else row for row in same]
        ),
        "another version of the suite": Case(same[:9], [replace(row, suite_version=3, oracle_version=2) for row in same[:9]]),
        "another dtype": Case(same[:20], [replace(row, dtype="float32") for row in same[:20]]),
        "other scores": Case(same, [replace(row, seed=5, entropy=2.0) for row in same]),
        "nothing before": Case([], same),
        "one line": Case([one], [other]),
        "other replicates": Case(same, [replace(row, replicates=8192) if row.tier == "mc" else row for row in same]),
        "without batches": Case(list(map(bare, same)), list(map(bare, run({"rloo": 1.0, "imle": 1.05, "ste": 0.7}, seed=2)))),
        "exact numbers": Case(*small),
        "exact gains": Case(
            [row for n in range(6) for row in exactly(1.0, 1.0, instance=f"i{n}")],
            [
                row
                for n, change in enumerate([(0.5, 1.0), (2.0, 0.3), (-1.0, 1.0), (1e-9, 1.0), (1.0, 1.5), (0.5, 1.5)])
                for row in exactly(*change, instance=f"i{n}")
            ],
        ),
        "a cheaper wrong gradient": Case(*cheap),
        "rare events": Case([nothing], [thrice]),
        "models that learn worse": Case(learnt[0], learnt[1]),
        "models that learn with noise, and curves": Case([*learnt[0], *curves], [*learnt[2][:6], *curves]),
        "times on this machine": Case(times[:1], times[1:]),
        "times and bytes on another machine": Case(
            [*times[:1], *memory], [*times[1:], *larger], machines=(MACHINE, {**MACHINE, "cpu": "y", "packages": {"torch": "2.9"}})
        ),
        "overrides": Case(same, run({"rloo": 1.0, "imle": 1.3, "ste": 0.7}), {"override": overrides, "metric": {"rho": {"gated": True}}}),
        "a level and reactions": Case(same, run({"rloo": 1.01, "sfe": 1.3}), {"alpha": 0.2, "on_missing": "warn", "on_changed": "warn"}),
        "many tests": Case([*crowd[0], one], [*crowd[1], other]),
        "claims": Case(claims, claims),
        "parts of the replicates, skipped pairs": Case(
            [replace(one, setting="replicates=1024"), exact(None, status="skipped", reason="no"), exact(metric="forward_time")], [one]
        ),
        "the own baseline": Case(own_baseline(), own_baseline(perturbed)),
    }


def table(found: pd.DataFrame) -> pd.DataFrame:
    """All comparisons, in the order of their keys."""
    found = found[[*KEY, "verdict", "scale", "method", "reason", *NUMBERS]].astype(dict.fromkeys([*KEY, "verdict"], str))
    return found.astype(dict.fromkeys(NUMBERS, float)).sort_values([*KEY, "verdict", "reason"], ignore_index=True)


def summary(result: GateResult) -> str:
    """A gate: its outcome, counts, claims, and overrides that match nothing."""
    broken = result.claims[result.claims["broken"]]
    found = {
        "outcome": result.outcome,
        "fail": result.count("fail"),
        "warn": result.count("warn"),
        "verdicts": dict(sorted(Counter(result.comparisons["verdict"]).items())),
        "checked": dict(sorted(Counter(result.claims["estimator"]).items())),
        "broken": sorted(f"{'/'.join(claim[:11])}: {claim.reason}" for claim in broken.itertuples(index=False)),
        "idle": result.idle,
    }
    return json.dumps(found, ensure_ascii=False)


def verdicts() -> pd.DataFrame:
    """The comparisons of all pairs, and a row for the gate of some, which compares the gated metrics again."""
    parts = []
    for name, case in cases().items():
        settings = read_settings({"gate": case.settings})
        runs = to_frame(case.base), to_frame(case.head)
        found = [table(compare(*runs, case.machines, settings))]
        if case.settings or name in GATED:
            found.append(pd.DataFrame([{"metric": "gate", "reason": summary(gate(*runs, case.machines, settings))}]))
        for part in found:
            part.insert(0, "pair", name)
        parts += found
    return pd.concat(parts, ignore_index=True)


def transcripts(folder: Path) -> str:
    """The output of commands on some of the pairs, run in the folder, with exit codes."""
    chosen = (
        "other scales", "missing and new", "a failure", "another version of an estimator", "claims", "one line", "own", "seeds", "nothing"
    )  # fmt: skip
    known = cases() | {
        "own": cases()["the own baseline"],
        "seeds": cases()["two problems, reseeded"],
        "nothing": Case(run({"rloo": 1.0}), run({"rloo": 1.0}, 0, ("play",))),
    }
    commands = [["compare", "base", "head"], ["gate", "head", "--baseline", "base"]]
    more = [
        ["compare", "base", "head", "--format", "md"],
        ["compare", "base", "head", "--only", "changed", "-e", "i*"],
        ["compare", "base", "head", "--format", "csv", "--only", "changed", "-m", "gain"],
        ["gate", "head", "--baseline", "base", "--github"],
    ]
    lines = []
    with contextlib.chdir(folder):
        for name in chosen:
            for side, rows in (("base", known[name].base), ("head", known[name].head)):
                results.write(rows, Path(side), {"seed": 0, "environment": MACHINE, "command": "structgrad run"})
            some = [*commands, *(more if name == "missing and new" else [])]
            if name == "one line":
                some += [["compare", "base", "head", "--format", "json"], ["gate", "head", "--baseline", "base", "--json"]]
            if name == "another version of an estimator":
                some += [["gate", "head", "--baseline", "base", "--strict"]]
            for words in some:
                result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
                text = "" if "--strict" in words else result.output
                lines += [f"# {name}: {' '.join(words)} (exit code {result.exit_code})", text]
        return "\n".join(lines)


def test_the_verdicts_are_those_of_the_golden_table() -> None:
    expected, found = pd.read_parquet(VERDICTS), verdicts()
    pd.testing.assert_frame_equal(found.drop(columns=[*NUMBERS]), expected.drop(columns=[*NUMBERS]), check_dtype=False)
    for name in NUMBERS:
        rounding = 1e-280 if name.startswith("p_") else 1e-14  # a bias of 1e-16 in the own baseline is rounding
        np.testing.assert_allclose(found[name].to_numpy(float), expected[name].to_numpy(float), rtol=1e-9, atol=rounding, err_msg=name)


def test_the_transcripts_are_those_of_the_golden_file(tmp_path: Path) -> None:
    assert transcripts(tmp_path).splitlines() == TRANSCRIPTS.read_text().splitlines()


if __name__ == "__main__":
    verdicts().to_parquet(VERDICTS, compression="zstd")
    with tempfile.TemporaryDirectory() as scratch:
        TRANSCRIPTS.write_text(transcripts(Path(scratch)))
