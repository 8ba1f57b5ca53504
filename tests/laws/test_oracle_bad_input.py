"""Bad input gets one sentence that names the call, what it got and what it expects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, make_scores, seeded, structures

CALLS: dict[str, Callable[[OracleCase, Any], Any]] = {
    "argmax": lambda case, scores: case.oracle.argmax(scores),
    "log_partition": lambda case, scores: case.oracle.log_partition(scores),
    "marginals": lambda case, scores: case.oracle.marginals(scores),
    "entropy": lambda case, scores: case.oracle.entropy(scores),
    "log_prob": lambda case, scores: case.oracle.log_prob(structures(case)[0], scores),
    "sample": lambda case, scores: case.oracle.sample(scores, generator=seeded()),
    "project": lambda case, scores: case.oracle.project(scores),
}
law = pytest.mark.parametrize(("call", "case"), [(call, case) for call in CALLS for case in GENERIC_CASES], ids=str)


@law
def test_scores_must_be_a_floating_point_tensor(call: str, case: OracleCase) -> None:
    with pytest.raises(ValueError, match=f"`{call}` got scores of list; expected a floating-point torch.Tensor"):
        CALLS[call](case, [0.0, 1.0])
    with pytest.raises(ValueError, match=f"`{call}` got scores of dtype torch.int64; expected a floating-point"):
        CALLS[call](case, torch.zeros(case.event, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"`{call}` got scores of dtype torch.float8_e4m3fn; expected a floating-point"):
        CALLS[call](case, torch.zeros(case.event, dtype=torch.float8_e4m3fn))


@law
def test_scores_must_have_every_event_dimension(call: str, case: OracleCase) -> None:
    with pytest.raises(
        ValueError, match=rf"`{call}` got scores of shape \(.*\); expected \[\*batch, \*event\] with {len(case.event)} event"
    ):
        CALLS[call](case, torch.zeros(case.event)[0])


@law
def test_scores_must_have_a_part(call: str, case: OracleCase) -> None:
    with pytest.raises(ValueError, match=rf"`{call}` got event shape \(0,.*\); expected at least one part in every dimension"):
        CALLS[call](case, torch.zeros(3, 0, *case.event[1:]))


@law
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_must_be_finite_or_forbidden(call: str, case: OracleCase, bad: float) -> None:
    scores = make_scores(case, 1.0)
    last = structures(case).sum(0).flatten().nonzero()[-1]
    scores[-1].view(-1)[last] = bad
    with pytest.raises(ValueError, match=rf"`{call}` got scores with NaN or \+inf; expected finite scores, or -inf for a forbidden part"):
        CALLS[call](case, scores)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_structure_must_have_the_event_shape(case: OracleCase) -> None:
    with pytest.raises(ValueError, match=r"`log_prob` got a structure of shape \(.*\) for scores of shape \(.*\); expected the same last"):
        case.oracle.log_prob(torch.zeros(*case.event[:-1], case.event[-1] + 1), torch.zeros(case.event))


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_structure_must_have_a_batch_that_broadcasts(case: OracleCase) -> None:
    scores, best = make_scores(case, 1.0, rows=3), case.oracle.argmax(make_scores(case, 1.0, rows=2))
    for name, call in (("score", case.oracle.score), ("log_prob", case.oracle.log_prob)):
        with pytest.raises(ValueError, match=rf"`{name}` got a structure with the batch \(2,\) for scores with the batch \(3,\); expected"):
            call(best, scores)
        with pytest.raises(ValueError, match=rf"`{name}` got indices with the batch \(2,\) for scores with the batch \(3,\); expected"):
            call(torch.zeros(2, *case.oracle.index_shape(case.event), dtype=torch.long), scores, as_indices=True)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_at_least_one_sample(case: OracleCase) -> None:
    with pytest.raises(ValueError, match="`sample` got num_samples=0; expected at least 1, or None for one sample without that dimension"):
        case.oracle.sample(torch.zeros(case.event), 0, generator=seeded())


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_nothing_to_enumerate(case: OracleCase) -> None:
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(0,.*\); expected at least one part in every dimension"):
        case.oracle.enumerate((0, *case.event[1:]))
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(.*\); expected \((n|length|rows)"):
        case.oracle.enumerate((*case.event, 2))
