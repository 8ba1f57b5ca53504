"""Results of problems in a fresh process: ``python -m tests.fresh_process subset_regimes …``, results and measured numbers by name."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from structgrad.suites.base import Problem
from structgrad.suites.measures.bias import Bias
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.problems.named import load

SCALES = (1.0, 30.0)
ESTIMATORS = ("reinforce", "rloo", "ste_marginals", "structured_attention", "sparsemap", "st_gumbel", "perturb_and_map", "imle")
CONTEXT = Context(effort=Effort(replicates=256, most_replicates=256))


def found(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        problem = load(name, "h=0.7", instances=1, data=None)
        for what, values in computed(problem):
            yield f"{name} {what}", hashlib.sha256(np.ascontiguousarray(values.detach().numpy()).tobytes()).hexdigest()
        fitting = {
            name: estimator
            for name, estimator in zip(ESTIMATORS, map(make_estimator, ESTIMATORS), strict=True)
            if estimator.incompatibility(problem.oracle) is None
        }
        for finding in Bias().findings(problem, fitting, CONTEXT):
            yield f"{name} {finding.estimator} {finding.metric} {finding.setting} {finding.reference}", repr(finding)


def computed(problem: Problem) -> Iterator[tuple[str, Tensor]]:
    """Results of every operation for single rows of scores and for batches."""
    oracle, scores = problem.oracle, problem.instances[0].scores
    noise = torch.randn(16, *scores.shape, generator=torch.Generator().manual_seed(0), dtype=scores.dtype)
    for scale in SCALES:
        for rows in (scale * (scores + noise), scale * scores.unsqueeze(0)):
            at, leaf = f"scale {scale}, rows {len(rows)}", rows.clone().requires_grad_()
            marginals = oracle.marginals(leaf)
            yield f"marginals, {at}", marginals
            yield f"derivatives, {at}", torch.autograd.grad(marginals, leaf, noise[: len(rows)])[0]
            yield f"log-partition, {at}", oracle.log_partition(rows)
            yield f"entropy, {at}", oracle.entropy(rows)
            yield f"argmax, {at}", oracle.argmax(rows)
            yield f"k best, {at}", oracle.kbest(rows, 3)
            yield f"samples, {at}", oracle.sample(rows, 4, generator=torch.Generator().manual_seed(0))
            yield f"projection, {at}", oracle.project(rows).mean


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(dict(found(sys.argv[1:]))))  # noqa: T201
