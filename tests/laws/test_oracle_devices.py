"""Plain torch on a device waits for it nowhere but in what is named here, and copies nothing there from the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import DERIVED
from structgrad.oracles.tensor_kinds import UnusualTensorError
from tests.helpers import GENERIC_CASES, OracleCase
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, method_of, operations_of, with_lengths
from tests.waiting import PRETENDED, Unset, WaitsError, watched

PROJECTIONS = frozenset({"project", "project_weights", "project_atoms", "project_support", "project_gap"})
TREES = frozenset({"argmax", "score", "log_prob"})
"""The last two are asked of the best structure here."""

WAIT: dict[str, frozenset[str]] = {
    "linear_chain": PROJECTIONS,
    "tied_chain": PROJECTIONS,
    "alignment": PROJECTIONS,
    "constituency": PROJECTIONS,
    "projective_tree": PROJECTIONS,
    "spanning_tree": PROJECTIONS | {"kbest"} | TREES,
    "assignment": PROJECTIONS,
    "shift_reduce": PROJECTIONS,
    **dict.fromkeys(DERIVED, PROJECTIONS),
}
"""The active set asks after every step whether it is done, and contraction after every round."""


def waits(call: Callable[[], Tensor]) -> str | None:
    """What a call waits for after the first one, which makes tables, its derivative's too; None for nothing."""
    try:
        call()
        with watched(PRETENDED):
            result = call()
            if result.requires_grad:
                result.sum().backward()
    except (WaitsError, NotImplementedError, RuntimeError, UnusualTensorError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
@pytest.mark.parametrize("ragged", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_plain_torch_waits_only_where_it_says_so(case: OracleCase, ragged: bool) -> None:
    limits = case.oracle.length_limits(case.event)
    lengths = torch.empty((2, *[len(limits)] * (len(limits) > 1)), dtype=torch.int64, device=PRETENDED)
    found = {}
    for operation in operations_of(case.oracle):
        named: dict[str, Any] = {"generator": Unset()} if operation in RANDOM else {}
        if ragged and method_of(operation) in with_lengths(type(case.oracle)):
            named["lengths"] = lengths
        scores = torch.empty((2, *case.event), device=PRETENDED, requires_grad=operation in DIFFERENTIABLE)
        found[operation] = waits(functools.partial(OPERATIONS[operation], case.oracle, scores, **named))
    structures = torch.empty((2, *case.event), device=PRETENDED)
    found["rank"] = waits(lambda: case.oracle.rank(structures))
    found["enumerate"] = waits(lambda: case.oracle.enumerate(case.event, device=PRETENDED))
    waiting = {operation: reason for operation, reason in found.items() if reason is not None}
    assert set(waiting) == WAIT.get(case.oracle.name, frozenset()), waiting


def test_what_waits_is_seen() -> None:
    values = torch.empty(3, device=PRETENDED)
    makes = (lambda: torch.tensor([1.0], device=PRETENDED), lambda: torch.ones(2).to(PRETENDED))
    reads = (lambda: bool(values.any()), values.nonzero, values.cpu, lambda: values[values > 0], *makes)
    for read in reads:
        with pytest.raises(WaitsError), watched(PRETENDED):
            read()
