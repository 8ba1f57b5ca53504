"""The page ``docs/results/costs.md``: time and memory of a step through a layer, by estimator, at sizes that people train at.

Usage: ``python .ci/costs_page.py [-p STRUCTURE]... [-e ESTIMATOR]... [--batch N]`` prints tables, and ``--to docs/results`` instead writes
the page.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from structgrad import StructuredLayer, make_estimator
from structgrad.reports.results import environment, write_whole
from structgrad.suites import problems
from structgrad.suites.measures.cost.steps import MIN_ROUNDS, interleave, load_kernels, peak_memory, single_thread
from structgrad.suites.problems.sized import sizes_at
from structgrad.suites.running.planning.presets import CORE

TREES, PROJECTIVE = "spanning_tree[n=40]", "projective_tree[n=40]"
CHAINS = "linear_chain[n=128,t=32]"
STRUCTURES = (TREES, PROJECTIVE, "constituency[n=40]", CHAINS, "subset[n=100,k=10]")
ESTIMATORS = (*CORE, "rloo[num_samples=16]", "simple", "stochastic_softmax", "unordered_set")  # those of the standard run
CHEAPEST, MARGINALS, PROJECTION, ENCODER = "ste", "structured_attention", "sparsemap", "encoder"
LEVEL, OTHER_LEVELS = "h=0.7", ("h=0.95", "h=0.1")  # entropies of scores; the cost of a projection depends on them
BATCH = 64
ROUNDS, BUDGET, MAX_SECONDS = 20, 15.0, 10.0  # repetitions, the seconds of an estimator for them, and the most of one step
Step = Callable[[], tuple[float]]


def timed(call: Callable[[], object]) -> Step:
    """The call, with the CPU seconds of this process: other programs lengthen them less than those of a clock."""

    def step() -> tuple[float]:
        start = time.process_time()
        call()
        return (time.process_time() - start,)

    return step


def layer_step(layer: StructuredLayer, scores: Tensor, target: Tensor) -> Step:
    """Surrogate and backward with a squared distance to a target per row; parts that count, such as transitions, are left out of it."""
    leaf, binary = scores.detach().requires_grad_(), layer.oracle.binary_mask(tuple(scores.shape[1:]))

    def loss(structures: Tensor) -> Tensor:
        squares = (structures - target).square()
        return (squares if binary.all() else squares * binary).flatten(-layer.oracle.event_ndim).sum(-1)

    return timed(lambda: torch.autograd.grad(layer.surrogate(loss, leaf).sum(), leaf))


def costs(name: str, estimators: Sequence[str], batch: int, level: str) -> pd.DataFrame:
    """By estimator: median seconds, ratios within rounds, peak bytes and the number of rounds; NaN if it does not fit."""
    problem = problems.load(f"{name}@squared_distance", level, instances=batch, data=None)
    scores = torch.stack([item.scores for item in problem.instances]).float()
    target = torch.stack([item.loss.target for item in problem.instances]).float()  # type: ignore[attr-defined]
    event, few = tuple(scores.shape[1:]), -(-batch // 32)
    encoder, words = nn.LSTM(256, 256, bidirectional=True), torch.randn(sizes_at(problem.oracle, event).get("n", event[0]), batch, 256)
    rows, steps = {one: dict[str, Any]() for one in (*estimators, ENCODER)}, dict[str, Step]()
    for estimator in estimators:
        if make_estimator(estimator).incompatibility(problem.oracle, event) is None:
            layer = StructuredLayer(problem.oracle, estimator, seed=0)
            probe = layer_step(layer, scores[:few], target[:few])
            probe()  # loads kernels
            if probe()[0] * batch / few > MAX_SECONDS:
                rows[estimator]["seconds"] = math.inf
            else:
                steps[estimator] = layer_step(layer, scores, target)
    steps[ENCODER] = timed(lambda: encoder(words)[0].sum().backward())
    taken, failures = interleave(steps, rounds=ROUNDS, budget=BUDGET)
    if failures:
        raise RuntimeError(f"{name}: {failures}")
    for estimator, step in steps.items():
        own = taken[estimator][:, 0]
        for base in (CHEAPEST, MARGINALS):
            if base in taken:
                rounds = min(len(own), len(taken[base]))
                rows[estimator][base] = np.median(own[:rounds] / taken[base][:rounds, 0])
        load_kernels(step)
        rows[estimator] |= {"seconds": np.median(own), "rounds": len(own), "bytes": peak_memory(step)}
    columns = ["seconds", "rounds", "bytes", CHEAPEST, MARGINALS]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("estimator").reset_index().assign(structure=name)


def measured(structures: Sequence[str], estimators: Sequence[str], batch: int) -> pd.DataFrame:
    """Costs on all structures; those of a projection at other entropy levels too."""
    frames = list[pd.DataFrame]()
    for name in structures:
        frames.append(costs(name, estimators, batch, LEVEL))
        for other in OTHER_LEVELS if PROJECTION in estimators else ():
            found = costs(name, (CHEAPEST, MARGINALS, PROJECTION), batch, other).query("estimator == @PROJECTION")
            frames.append(found.assign(estimator=f"{PROJECTION}, {other}"))
    return pd.concat(frames)


def number(value: float, limit: str = "–") -> str:
    """Two or three digits, a dash for NaN, and the limit for infinity."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else limit
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def table(frame: pd.DataFrame, text: Callable[[Any], str]) -> str:
    """A table in Markdown: estimators × structures."""
    names, estimators = (list(dict.fromkeys(frame[column])) for column in ("structure", "estimator"))
    found = {(row.structure, row.estimator): text(row) for row in frame.itertuples(index=False)}
    lines = [["estimator", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    lines += [[f"`{one}`", *(found[name, one] for name in names)] for one in estimators]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(frame: pd.DataFrame) -> tuple[str, str, str]:
    """Milliseconds, ratios and megabytes."""

    def milliseconds(row: Any) -> str:
        return number(1e3 * row.seconds, f"> {1e3 * MAX_SECONDS:,.0f}") + ("*" if row.rounds < MIN_ROUNDS else "")

    return (
        table(frame, milliseconds),
        table(frame, lambda row: f"{number(row.ste)}, {number(row.structured_attention)}" if row.ste > 0 else "–"),
        table(frame, lambda row: number(row.bytes / 1e6)),
    )


def page(frame: pd.DataFrame) -> str:
    """The text of ``costs.md``."""
    found = frame.set_index(["structure", "estimator"])["seconds"] * 1e3
    trees = found[TREES].filter(items=ESTIMATORS).dropna()
    template = Path(__file__).with_name("costs.md.j2").read_text(encoding="utf-8")
    text: str = jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(
        **dict(zip(("milliseconds", "ratios", "megabytes"), tables(frame), strict=True)),
        **{
            "trees": TREES,
            "projective": PROJECTIVE,
            "chains": CHAINS,
            "level": LEVEL.replace("=", " = "),
            "rounds": ROUNDS,
            "few": MIN_ROUNDS,
        },
        cheap=trees[trees <= 0.1 * found[TREES, ENCODER]],
        estimators=len(trees),
        number=number,
        ms=lambda structure, estimator: f"{number(found[structure, estimator], 'more than 10,000')} ms",
        about=environment(),
    )
    return text


def main(words: list[str] | None = None) -> None:
    """Measure, and write the page or print its tables."""
    parser = argparse.ArgumentParser(prog="python .ci/costs_page.py", description=__doc__)
    parser.add_argument(
        "-p", "--problem", action="append", metavar="STRUCTURE", help="a structure with its size, such as 'subset[n=20,k=5]'"
    )
    parser.add_argument("-e", "--estimator", action="append", metavar="NAME", help="an estimator, with its options")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help=f"rows of a step; {BATCH} by default")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="the folder of the page; without it, tables are printed")
    given = parser.parse_args(words)
    if given.to is not None and (given.problem or given.estimator or given.batch != BATCH):
        parser.error("got --to with other options; expected the page of all structures and estimators, or tables without --to")
    estimators = tuple(dict.fromkeys((CHEAPEST, MARGINALS, *(given.estimator or ESTIMATORS))))
    try:
        with single_thread():
            frame = measured(given.problem or STRUCTURES, estimators, given.batch)
    except ValueError as error:
        parser.error(str(error))
    if given.to is None:
        print("\n\n".join(tables(frame)))  # noqa: T201
    else:
        write_whole(given.to / "costs.md", page(frame).encode())


if __name__ == "__main__":
    main()
