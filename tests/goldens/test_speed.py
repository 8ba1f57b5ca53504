"""Statistics, names of benchmarks, frozen from earlier code; run this file as a script to write them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.goldens.comparing import differences

GOLDEN = Path(__file__).with_name("speed.json")


def statistics_of_draws() -> dict[str, Any]:
    """Metrics, intervals and bounds of seeded replicates: of 10 parts, of 60 with zeros and Fisher information, and of 300."""
    from structgrad.suites.measures.bias_tests import bias_bound
    from structgrad.suites.statistics.adaptive import looks, sample_until
    from structgrad.suites.statistics.metrics import Geometry, estimated_metrics, without_each_batch
    from structgrad.suites.statistics.moments import Moments

    found: dict[str, Any] = {}
    for size, density, scale in ((10, 1.0, 1.0), (60, 0.3, 2.0), (300, 0.8, 1.0)):
        stream = torch.Generator().manual_seed(size)
        gradient = torch.randn(size, generator=stream, dtype=torch.float64)
        gradient[size // 2] = 0.0
        root = torch.randn(size, 5, generator=stream, dtype=torch.float64)
        geometry = Geometry.of(root @ root.mT, root @ root.mT, root @ (root.mT @ gradient))
        information = None if size == 10 else geometry.information
        moments = Moments.empty(gradient, information)
        noise = torch.randn(4096, size, generator=stream, dtype=torch.float64)
        rows = (gradient + scale * noise) * (torch.rand(4096, size, generator=stream) < density)
        rows[::7] = 0.0
        rows[:, size // 2] = 0.0
        moments.add_blocks(rows[:2048], [(128 * i, 128 * (i + 1), i) for i in range(16)])
        for place in range(16):
            moments.add(rows[2048 + 128 * place : 2048 + 128 * (place + 1)], batch=16 + place)
        half = Moments.empty(gradient, information)
        half.add_blocks(rows[:256], [(0, 100, 3), (100, 256, 4)])
        moments = Moments.from_state(moments.merged(half).state(), gradient, information)
        metrics = estimated_metrics(moments, None if information is None else geometry)
        found[str(size)] = {
            "metrics": {name: [each.value, each.low, each.high, each.method] for name, each in metrics.items()},
            "without": {name: values[:3] for name, values in without_each_batch(moments).items()},
            "bound": bias_bound(moments),
            "sums": [float(getattr(moments, name).abs().sum()) for name in _SUMS],
            "comoment": None if moments.comoment is None else float(moments.comoment.square().sum()),
        }

        def extend(so_far: Moments, number: int, rows: torch.Tensor = rows) -> None:
            first = so_far.total
            so_far.add_blocks(rows[first:number], [(i - first, i - first + 128, i // 128 % 32) for i in range(first, number, 128)])

        empty = Moments.empty(gradient, information)
        sampled, status = sample_until(empty, extend, estimated_metrics, looks(1024, 4096))
        found[str(size)]["sampled"] = [sampled.total, status]
    return found


_SUMS = ["count", "mean", "square", "along", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed", "total_mean"]


def exact_statistics() -> dict[str, Any]:
    """Exact moments of weighted outcomes, and biases against another reference."""
    from structgrad.suites.statistics.metrics import Geometry, NoisyGradient, exact_against, exact_metrics, single, summarise
    from structgrad.suites.statistics.moments import Moments

    found: dict[str, Any] = {}
    for size in (5, 40, 300):
        stream = torch.Generator().manual_seed(size)
        weights = torch.rand(700, generator=stream, dtype=torch.float64)
        outcomes = torch.randn(700, size, generator=stream, dtype=torch.float64)
        outcomes[::3] = 0.0
        outcomes[:, 0] = 0.0
        gradient = (weights / weights.sum()) @ outcomes + 0.01
        root = torch.randn(size, 4, generator=stream, dtype=torch.float64)
        geometry = Geometry.of(root @ root.mT, root @ root.mT, root @ (root.mT @ gradient))
        exact = Moments.empty(gradient, geometry.information, batches=1)
        exact.add(outcomes[:300], weights=weights[:300])
        exact.add(outcomes[300:], weights=weights[300:])
        summary, one = summarise(exact, exact=True), single(outcomes[1], gradient, geometry.information)
        found[str(size)] = {
            "metrics": {name: each.value for name, each in exact_metrics(summary, geometry).items()},
            "covariance": None if exact.comoment is None else float((exact.comoment / exact.count).square().sum()),
            "single": {name: each.value for name, each in exact_metrics(one, geometry).items()},
            "against": {
                name: [each.value, each.low, each.high]
                for name, each in exact_against(summary, NoisyGradient(gradient + 0.1, 0.01)).items()
            },
        }
    return found


def statistics_of_numbers() -> dict[str, Any]:
    """Selections, budgets, many tests at once, medians and exponents."""
    from structgrad.suites.statistics.selection import Worth, best, holm, student_mean

    random = np.random.default_rng(0)
    scores = random.standard_normal((6, 12)) + np.linspace(0, 2, 6)[:, None]
    chosen = best(scores, np.full(6, 0.1))
    random.lognormal(size=15), random.random(30)  # numbers that an earlier part drew
    p_values = {str(i): float(p) for i, p in enumerate(random.uniform(0, 0.1, 9) ** 2)}
    worth = Worth(np.array([0.0, 0.1]), np.array([3.0, 1.0]), np.array([1.0, 0.9]))
    return {
        "best": [chosen.winner, chosen.score.value, chosen.score.low, chosen.score.high, *chosen.tied],
        "student": _bounds(student_mean(scores[0])),
        "holm": holm(p_values),
        "worth": [*worth.rho(np.array([2.0, 5.0])), *worth.squared_error(np.array([2.0, 5.0]))],
    }


def costs() -> dict[str, Any]:
    """Medians and exponents."""
    from structgrad.suites.measures.cost.scaling import exponent
    from structgrad.suites.statistics.intervals import median_interval

    random = np.random.default_rng(1)
    sizes = [4.0, 8.0, 16.0, 32.0, 64.0]
    rounds = np.array(sizes) ** 1.5 * random.lognormal(0, 0.05, (20, 5))
    return {
        "median": [_bounds(median_interval(random.lognormal(size=size))) for size in (3, 6, 30, 161)],
        "rounds": _bounds(exponent(sizes, rounds)),
    }


def benchmarks() -> dict[str, Any]:
    """The benchmarks that asv discovers: names, parameters and versions."""
    from tests.asv_benchmarks import estimators, learning, oracles

    found = {}
    for module in (estimators, learning, oracles):
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and not kind.__name__.startswith("_"):
                names = [name for name in dir(kind) if name.startswith(("time_", "track_", "peakmem_", "mem_"))]
                given: Any = kind
                found[f"{module.__name__.rpartition('.')[2]}.{kind.__name__}"] = [names, given.version, given.param_names, given.params]
    return found


def _bounds(interval: Any) -> list[float | None]:
    return [interval.value, interval.low, interval.high]


PARTS = (statistics_of_draws, exact_statistics, statistics_of_numbers, costs, benchmarks)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_equals_the_golden(part: Any) -> None:
    torch.set_num_threads(1)
    old, new = json.loads(GOLDEN.read_text(encoding="utf-8"))[part.__name__], json.loads(json.dumps(part()))
    assert not list(differences(old, new))


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.write_text(json.dumps({part.__name__: part() for part in PARTS}, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
