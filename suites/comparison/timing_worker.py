"""One side of an interleaved timing: a process that holds one installed structgrad, and times what it is told to.

This file is run by the interpreter of either side, and may meet an older structgrad: it imports nothing of its own package, and of the
installed one only what has been there from the start. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr  # what measured code prints is no answer
    worker: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _prepare(worker, **request["prepare"]) if "prepare" in request else _time(worker, request["repeats"])
        except Exception as error:  # any user-supplied code may run here
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _prepare(worker: dict[str, Any], problem: str, stage: str, estimator: str, seed: int) -> dict[str, Any]:
    """Build one cell and compile what it needs; says where structgrad was found and how long a call takes."""
    import torch

    from structgrad import estimators
    from structgrad.suites.problems import load

    torch.set_num_threads(1)
    found = load(problem, stage, instances=1, data=os.environ.get("STRUCTGRAD_DATA"), seed=seed)
    item, contender = found.instances[0], estimators.make_estimator(estimator)
    noise = torch.randn((32, *item.scores.shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = item.scores + 1e-3 * noise

    def step() -> None:
        contender.gradient(item.loss, found.oracle, scores, generator=torch.Generator().manual_seed(0))

    worker["step"] = step
    step()
    gc.collect()
    gc.disable()  # a collection would hit one side of a pair by chance, and takes longer than a call
    return {"where": estimators.__file__, "seconds": min(_time(worker, 1)["seconds"] for _ in range(3))}


def _time(worker: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Mean seconds of some calls."""
    step = worker["step"]
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return {"seconds": (time.perf_counter() - start) / repeats}


if __name__ == "__main__":
    main()
