"""Variance by time of the newest estimators beside leave-one-out: ``python -m structgrad.suites.studies.field.field_table OUT.md``.

Five problems, each undecided, half decided and decided, one instance of each. Every estimator is measured as `measure` does, exactly where
its samples can be replayed and by 4096 replicates elsewhere, and timed at 64 rows, in turns with `rloo[num_samples=2]`: what is shown is
the product of both over that of `rloo`, so that below 1 is better at equal time. Places in learning come from the folders of
``structgrad learn`` that ``--learnt`` names.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ....estimators import Estimator, make_estimator
from ...measures.bias import Sampling, measure
from ...measures.measurement import Measurement
from ...problems.named import load
from ..markdown import table
from . import field_combinations, field_neighbours

NAMES = (
    "muprop",
    "double_cv",
    "antithetic_pairs",
    "antithetic_pairs[num_pairs=1]",
    "unordered_set[num_samples=2]",
    "importance_weighted_set[num_samples=2]",
    "unordered_set[num_samples=2, limit=1]",
    "local_expectation",
    "step_local_expectation",
    "rodeo",
    "disarm_sb",
    "disarm_tree",
    "carms",
    "reinmax",
    "reinmax_cv",
    "path_quadrature",
    "path_quadrature[rule=simpson]",
    "decoupled_st_gumbel",
)
"""``limit=1`` draws the same sets from the root down in place of listing all structures."""

BASELINE = "rloo[num_samples=2]"
PROBLEMS = ("categories_regimes", "subset_regimes", "chain_regimes", "constituency_regimes", "policy_regimes")
STAGES = ("h=0.95", "h=0.5", "h=0.1")
REPLICATES, ROWS, ROUNDS = 4096, 64, 7


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--learnt", type=Path, nargs="*", default=[])
    parser.add_argument("--cells", type=Path, help="a JSON file of what was measured: read where it is there, else written")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.cells and given.cells.is_file():
        found, combined = (pd.DataFrame(part) for part in json.loads(given.cells.read_text(encoding="utf-8")))
    else:
        found = pd.DataFrame([row for name in PROBLEMS for stage in STAGES for row in measured(name, stage)])
        combined = pd.DataFrame(field_combinations.rows())
        if given.cells:
            given.cells.write_text(json.dumps([_records(found), _records(combined)]), encoding="utf-8")
    given.page.write_text(page(found, _records(combined), field_neighbours.rows(), places(given.learnt)), encoding="utf-8")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): None if pd.isna(value) else value for key, value in record.items()} for record in frame.to_dict("records")]


def measured(name: str, stage: str) -> list[dict[str, Any]]:
    """One row for each estimator that serves a problem."""
    problem = load(name, stage, instances=1, data=None)
    instance, event = problem.instances[0], tuple(problem.instances[0].scores.shape)
    sampling = Sampling(replicates=REPLICATES, key=(name, stage))
    makers = {text: make_estimator(text) for text in (BASELINE, *NAMES)}
    serving = {text: made for text, made in makers.items() if made.incompatibility(problem.oracle, event) is None}
    seen = {text: measure(made, problem.oracle, instance.loss, instance.scores, sampling=sampling) for text, made in serving.items()}
    spent = timed(serving, problem, instance)
    control = f"{BASELINE}, by replicates"
    seen[control] = measure(makers[BASELINE], problem.oracle, instance.loss, instance.scores, sampling=replace(sampling, tier="mc"))
    serving[control], spent[control] = makers[BASELINE], spent[BASELINE]
    work = {text: (seen[text].metrics["relative_variance"].value or 0.0) * spent[text] for text in serving}
    return [
        {"estimator": text, "problem": name, "stage": stage, "ratio": work[text] / work[BASELINE], "time": spent[text] / spent[BASELINE]}
        | _law(made, seen[text])
        for text, made in serving.items()
    ]


def _law(estimator: Estimator[Any], found: Measurement) -> dict[str, Any]:
    bias = found.metrics["relative_bias"].value
    return {"unbiased": estimator.unbiased, "tier": found.tier, "bias": bias, "p_value": found.p_value, "verdict": str(found.verdict)}


def timed(estimators: dict[str, Estimator[Any]], problem: Any, instance: Any) -> dict[str, float]:
    """Median CPU seconds of a gradient of 64 rows, in turns."""
    rows = instance.scores.expand(ROWS, *instance.scores.shape).contiguous()
    spent: dict[str, list[float]] = {text: [] for text in estimators}
    for turn in range(ROUNDS + 1):
        for text, made in estimators.items():
            generator = torch.Generator().manual_seed(turn)
            start = time.process_time()
            made.gradient(instance.loss, problem.oracle, rows, generator=generator)
            spent[text].append(time.process_time() - start)
    return {text: statistics.median(values[1:]) for text, values in spent.items()}


def places(folders: Sequence[Path]) -> list[tuple[str, pd.DataFrame]]:
    """Each task of the folders of ``structgrad learn``, and accuracies by estimator and seed, of all its folders."""
    rows = pd.concat([pd.read_parquet(folder / "results.parquet") for folder in folders]) if folders else pd.DataFrame(columns=["problem"])
    learnt = [(str(problem).partition(":")[2], own) for problem, own in rows.groupby("problem", sort=False)]
    return [(task, own[own["metric"] == "accuracy"].dropna(subset=["value"])) for task, own in learnt]


def page(
    found: pd.DataFrame,
    combined: Sequence[Mapping[str, Any]],
    operators: Sequence[Mapping[str, Any]],
    learnt: Sequence[tuple[str, pd.DataFrame]],
) -> str:
    """Markdown: the product by problem and state, how the law was checked, what was tried beside, places in learning."""
    parts = [HEAD.format(problems=len(PROBLEMS), states=len(STAGES)), "## Variance × time\n", table(_products(found))]
    parts += ["\n## The law, as these cells check it\n", LAW, table(_laws(found))]
    parts += ["\n## Combinations\n", COMBINED, table(combined)]
    parts += ["\n## Stein operators of structures\n", OPERATORS, table(operators)]
    for task, rows in learnt:
        parts += [f"\n## Learning `{task}`\n", LEARNT, table(_order(rows), digits=3)]
    return "\n".join(parts) + "\n"


def _products(found: pd.DataFrame) -> list[dict[str, Any]]:
    ratios = {(row["estimator"], row["problem"], row["stage"]): float(row["ratio"]) for row in _records(found)}
    lines = []
    for name in NAMES:
        cells = {}
        for problem in PROBLEMS:
            values = [ratios.get((name, problem, stage), math.nan) for stage in STAGES]
            cells[problem.removesuffix("_regimes")] = (
                None if all(map(math.isnan, values)) else " / ".join(_short(value) for value in values)
            )
        lines.append({"estimator": f"`{name}`", **cells})
    return lines


def _short(value: float) -> str:
    return "–" if math.isnan(value) else "0" if value < 5e-13 else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _laws(found: pd.DataFrame) -> list[dict[str, Any]]:
    lines = []
    for name in (text for text in (*NAMES, BASELINE, f"{BASELINE}, by replicates") if text in set(found["estimator"])):
        own = found[found["estimator"] == name]
        exact, sampled = own[own["tier"] == "exact"], own[own["tier"] != "exact"]
        least = sampled["p_value"].dropna().min()
        lines.append(
            {
                "estimator": f"`{name}`",
                "declared": "unbiased" if bool(own["unbiased"].iloc[0]) else "biased",
                "exact cells": len(exact),
                "worst relative bias there": f"{exact['bias'].max():.2g}" if len(exact) else None,
                "sampled cells": len(sampled),
                "least p-value there": f"{least:.2g}" if len(sampled) and not pd.isna(least) else None,
                "worst relative bias of these": f"{sampled['bias'].max():.2g}" if len(sampled) else None,
            }
        )
    return lines


def _order(rows: pd.DataFrame) -> list[dict[str, Any]]:
    ranked = rows.groupby("estimator")["value"].agg(["mean", "std", "count"]).sort_values("mean", ascending=False)
    return [
        {"place": place, "estimator": f"`{name}`", "accuracy": float(line["mean"]), "sd": float(line["std"]), "seeds": int(line["count"])}
        for place, (name, line) in enumerate(ranked.iterrows(), 1)
    ]


HEAD = """# The newest estimators of the field, beside leave-one-out

Variance × time of a gradient of 64 rows, over that of `rloo[num_samples=2]`, on {problems} problems at {states} states each
(h = .95 / .5 / .1, from undecided to decided; one instance). Below 1 is better at equal time, 0 is no variance. Biased
estimators have less variance for another mean: see the second table before the first. Times are medians in turns on one
shared core, and ratios of single cells carry some 10 per cent of it; variances by 4096 replicates carry some 5, more where
the law is heavy-tailed. This page is written by

    python -m structgrad.suites.studies.field.field_table docs/results/field.md --learnt RUN [RUN ...]
"""

LAW = """Exact: over every sample that could be dealt. Sampled: 4096 replicates against the exact gradient; of so many tests the least
p-value is small by itself. `rloo`, exact everywhere, is the control, by replicates too. The laws themselves are held exactly in the
tests, by enumeration and quadrature.
"""

COMBINED = """Variance × time over that of the best published estimator of the cell, of sizes from 1 to 32 samples (`python -m
structgrad.suites.studies.field.field_combinations`; one instance, 2048 replicates). A combination would be registered at 1/1.3 = .77,
with an interval on fresh seeds; none came near. "Support" is that of the SparseMAP projection; "shared completions" are the rollouts
of every other action by the uniforms of the sample that they leave, and serve policies alone.
"""

OPERATORS = """RODEO controls leave-one-out by functions of mean 0, differences along a chain that keeps the law. It is published for
bits, where a move flips one; here a move exchanges a member, a head or a span, changes a tag, or swaps neighbouring rows. By the law
of all pairs of samples (`python -m structgrad.suites.studies.field.field_neighbours`): which chains keep the mean, and the variance
over that of leave-one-out with the best sizes of both controls, at h = .95 / .5 / .1 with squared distances.

Two answers. A proposal from among the neighbours must weigh how many there are on either side, or trees are biased; Barker's rates
need no such count. And no neighbourhood beats, but for chains and permutations in some states, the operator over *all* structures,
whose controls have closed forms by marginals and their covariance, without a loss or a neighbour more: `double_cv` is leave-one-out
with these, both of one size, for every oracle. So none is registered.
"""

LEARNT = """`structgrad learn`, 5 seeds, rate and option chosen on the validation split; means of the test split.
Differences below a standard deviation tell nothing; estimators whose runs did not finish are left out.
"""

if __name__ == "__main__":
    main()
