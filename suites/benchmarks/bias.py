"""Relative bias and variance of every estimator, and the support of its forward pass.

asv has no intervals: it shows drift here. Verdicts come from `structgrad.suites.measures.bias` and ``structgrad gate``.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from . import cases, commit
from .tasks import Quadratic, normal, pair, prepare_device, tracked

REPLICATES = 1024
"""Replicates of sampled metrics. The seed is fixed, so that numbers change only with the code."""


class EstimatorBias:
    version: ClassVar[str] = "2"
    unit = "1"
    params: ClassVar[tuple[list[str | int], ...]] = (
        list(cases.ESTIMATORS),
        cases.chosen((cases.HOME,), cases.SMALL),
        cases.chosen(cases.DEVICE, cases.OTHER_DEVICES),
    )
    param_names: ClassVar[tuple[str, ...]] = ("estimator", "oracle", "device")

    def setup(self, name: str, case: str, device: str) -> None:
        prepare_device(device)
        self.estimator, self.oracle, event = pair(name, case)
        self.scores = normal(*event, seed=0, device=device, dtype=torch.float64)
        self.loss = Quadratic(normal(*event, seed=1, device=device, dtype=torch.float64))

    def metric(self, name: str) -> float:
        measure, sampling = (commit.of_commit("suites.measures.bias", part) for part in ("measure", "Sampling"))
        found = measure(self.estimator, self.oracle, self.loss, self.scores, sampling=sampling(replicates=REPLICATES))
        return tracked(found.metrics[name].value)

    def track_relative_bias(self, name: str, case: str, device: str) -> float:
        return self.metric("relative_bias")

    def track_relative_variance(self, name: str, case: str, device: str) -> float:
        return self.metric("relative_variance")

    def track_support(self, name: str, case: str, device: str) -> float:
        truth = commit.of_commit("suites.truth", "exact_truth")(self.loss, self.oracle, self.scores)
        sparsity = commit.of_commit("suites.measures.sparsity", "forward_sparsity")
        return tracked(sparsity(self.estimator, self.oracle, self.scores, truth=truth)["support"])
