"""An estimator computes where its scores lie, and of itself makes the host wait for nothing."""

import traceback
from pathlib import Path

import torch
from torch import Tensor

import structgrad
from structgrad.estimators import make_estimator
from structgrad.oracles.tensor_kinds import UnusualTensorError
from tests.estimator_cases import NAMES, pairs_of
from tests.helpers import OracleCase
from tests.waiting import PRETENDED, Unset, WaitsError, watched

PACKAGE = tuple(str(Path(structgrad.oracles.__file__).parents[1] / room) for room in ("oracles", "estimators"))

ORACLES_WAIT = ("kernels/__init__.py", "derivations/oracle.py", "projection.py", "solution.py", "atoms.py")
"""Files that copy to the CPU, because the operation has compiled code only; see `test_oracle_devices`."""

WAIT = ("sparsemax_marginalisation", "top_k_sparsemax")
"""They ask how many structures have weight, so that the loss sees no others."""


@pairs_of(NAMES)
def test_it_computes_where_its_scores_lie(name: str, case: OracleCase) -> None:
    """On a device beside the CPU, whose tensors have no numbers: torch refuses to compute with those of two devices."""
    scores = torch.empty((3, *case.event), dtype=torch.float64, device=PRETENDED)

    def loss(z: Tensor) -> Tensor:
        return (0.7 * z).sin().flatten(z.ndim - case.oracle.event_ndim).sum(-1)

    def estimate() -> Tensor:
        return make_estimator(name).gradient(loss, case.oracle, scores, generator=Unset())

    try:
        assert estimate().device.type == PRETENDED.type  # makes tables
        with watched(PRETENDED):
            estimate()
    except (WaitsError, RuntimeError, UnusualTensorError) as failure:
        error: BaseException = failure
        while isinstance(error, UnusualTensorError) and error.__cause__ is not None:
            error = error.__cause__
        *_, last = (frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE))
        if not last.endswith(ORACLES_WAIT) and name.partition("[")[0] not in WAIT:
            raise
