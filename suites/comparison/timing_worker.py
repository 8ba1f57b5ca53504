"""One side of an interleaved timing: a process that times calls of one installed structgrad.

The interpreter of either side runs this file, possibly with an older structgrad. So it imports only long-standing names of that, and none
of its own package. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable


def main() -> None:
    """Answer requests until the input ends."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr  # measured code may print
    step: Callable[[], object] = list
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                step = prepared(**request["prepare"])
                answer: dict[str, object] = {"seconds": min(seconds_of(step, 1) for _ in range(3))}
            else:
                answer = {"seconds": seconds_of(step, request["repeats"])}
        except Exception as error:  # any user-supplied code may run here
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def prepared(problem: str, stage: str, estimator: str, seed: int) -> Callable[[], object]:
    """A call of one cell, whose kernels are compiled."""
    import torch

    from structgrad import estimators
    from structgrad.suites.problems import load

    torch.set_num_threads(1)
    found = load(problem, stage, instances=1, data=os.environ.get("STRUCTGRAD_DATA"), seed=seed)
    item, contender = found.instances[0], estimators.make_estimator(estimator)
    noise = torch.randn((32, *item.scores.shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = item.scores + 1e-3 * noise

    def step() -> object:
        return contender.gradient(item.loss, found.oracle, scores, generator=torch.Generator().manual_seed(0))

    step()
    gc.collect()
    gc.disable()  # a collection takes longer than a call, and would hit one side of a pair by chance
    return step


def seconds_of(step: Callable[[], object], repeats: int) -> float:
    """Mean seconds of some calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main()
