"""Laws of shapes and numbers: what the loss is shown, what comes back, and that it is finite wherever scores may lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...base import check_finite
from ..cases import EXTREME, SINGLE, USUAL, AuditLoss, Structure, masked_scores, random_scores, seeded
from ..counting import Ledger, counting_loss
from ..result import Check

ROWS = 6


def shape_checks(fresh: Callable[[], Estimator[Any]], structure: Structure, *, has_value: bool) -> Iterator[Check]:
    """The laws ``shapes`` and ``dtypes``: estimates like the scores, one value per row, a loss that is shown ``[..., *batch, *event]``."""
    yield _shapes(fresh(), structure, has_value)
    yield _dtypes(fresh(), structure)


def _shapes(estimator: Estimator[Any], structure: Structure, has_value: bool) -> Check:
    for batch in ((ROWS,), (2, 3), ()):
        ledger = Ledger(rows=math.prod(batch))
        loss = counting_loss(AuditLoss(structure), ledger, structure.ndim)
        scores = random_scores(structure, USUAL, ROWS)[: math.prod(batch)].reshape(*batch, *structure.event)
        estimate = estimator.gradient(loss, structure.oracle, scores, generator=seeded(1, "shapes"))
        if estimate.shape != scores.shape:
            return Check("shapes", structure.name, "violated", f"estimates {tuple(estimate.shape)} for scores {tuple(scores.shape)}")
        check_finite(estimate.reshape(-1, *structure.event), estimator.name)
        tail = (*batch, *structure.event)
        wrong = [shape for shape in ledger.shapes if shape[len(shape) - len(tail) :] != tail]
        if wrong:
            detail = f"the loss was shown {wrong[0]} for scores {tail}; expected [..., *batch, *event]"
            cause = "rows that are flattened: a loss with data for each row cannot tell them apart"
            return Check("shapes", structure.name, "violated", detail, cause)
        if has_value:
            value = estimator.surrogate(AuditLoss(structure), structure.oracle, scores, generator=seeded(1, "shapes"))
            if tuple(value.shape) != batch:
                return Check(
                    "shapes", structure.name, "violated", f"the surrogate is {tuple(value.shape)} for a batch {batch}; expected one per row"
                )
            if not bool(value.isfinite().all()):
                return Check(
                    "finite", structure.name, "violated", f"the surrogate is {float(value[~value.isfinite()][0])} at scores of {USUAL:g}"
                )
    return Check("shapes", structure.name, "holds", "one estimate per row, in any batch shape")


def _dtypes(estimator: Estimator[Any], structure: Structure) -> Check:
    ledger = Ledger(rows=ROWS)
    scores = random_scores(structure, USUAL, ROWS).float()
    loss = counting_loss(AuditLoss(structure), ledger, structure.ndim)
    estimate = estimator.gradient(loss, structure.oracle, scores, generator=seeded(1, "dtypes"))
    if estimate.dtype != scores.dtype or estimate.device != scores.device:
        detail = f"scores of {scores.dtype} on {scores.device} gave estimates of {estimate.dtype} on {estimate.device}"
        return Check("dtypes", structure.name, "violated", detail)
    if ledger.dtypes - {scores.dtype}:
        shown = ", ".join(map(str, ledger.dtypes))
        return Check("dtypes", structure.name, "violated", f"scores of {scores.dtype}, and the loss was shown structures of {shown}")
    return Check("dtypes", structure.name, "holds", "float32 stays float32, on the device of the scores")


def finite_checks(fresh: Callable[[], Estimator[Any]], structure: Structure) -> Iterator[Check]:
    """The laws ``finite``, ``forbidden`` and ``single``: no NaN at peaked, tied and masked scores, and nothing where nothing can move."""
    estimator, masked = fresh(), masked_scores(structure, 8)
    finite = {
        "scores of 50": random_scores(structure, EXTREME, 16),
        "ties": random_scores(structure, USUAL, 8, "ties").round(),
        "equal scores": torch.zeros(4, *structure.event, dtype=torch.float64),
        "-inf masks": masked,
        "-inf masks at scores of 50": torch.where(masked.isfinite(), EXTREME * masked, masked),
    }
    found = {name: _estimate(estimator, structure, scores) for name, scores in finite.items()}
    bad = [name for name, estimate in found.items() if not bool(estimate.isfinite().all())]
    if bad:
        yield Check("finite", structure.name, "violated", f"NaN or infinite estimates at {', '.join(bad)}")
    else:
        yield Check("finite", structure.name, "holds", "finite at " + ", ".join(finite))
    yield _forbidden(structure, masked, found["-inf masks"])
    single = SINGLE.get(structure.name)
    if single is not None and estimator.incompatibility(single.oracle, single.event) is None:
        estimate = _estimate(estimator, single, random_scores(single, USUAL, 3))
        holds = bool(estimate.isfinite().all())
        text = "finite where there is one structure only" if holds else "NaN where there is one structure only"
        yield Check("single", structure.name, "holds" if holds else "violated", text)


def _forbidden(structure: Structure, masked: Tensor, estimate: Tensor) -> Check:
    read = structure.oracle.read_mask(structure.event)
    moved = (masked == -math.inf) & (estimate != 0) | ~read & (estimate != 0)
    if bool(moved.any()):
        size = float(estimate[moved].abs().max())
        detail = f"forbidden or ignored parts get a gradient, up to {size:.3g}; `Oracle.free_parts` tells which may have one"
        return Check("forbidden", structure.name, "violated", detail)
    return Check("forbidden", structure.name, "holds", "parts that cannot be chosen get 0")


def _estimate(estimator: Estimator[Any], structure: Structure, scores: Tensor) -> Tensor:
    return estimator.gradient(AuditLoss(structure), structure.oracle, scores, generator=seeded(1, "finite"))
