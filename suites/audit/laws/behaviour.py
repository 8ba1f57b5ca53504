"""Laws of behaviour: the seed decides everything, nothing is left behind, and nothing that was handed in is changed."""

from __future__ import annotations

import hashlib
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...base import check_finite
from ..cases import FLAT, USUAL, AuditLoss, Structure, random_scores, seeded
from ..remedies import to_change
from ..result import Check

ROWS = 6
_DEPTH = 6

_SAME = (False, True, True, False, True, True, True, False, True, True)
"""Which calls repeat the first one. What is wrong in every second, third, fourth or fifth call is seen among them."""

_STALE_ROWS, _STALE_CALLS, _STALE_LEAST = 64, 5, 8
"""Rows and seeds of calls that must not repeat each other, and rows that must differ from the first for that to mean something."""


def behaviour_checks(fresh: Callable[[], Estimator[Any]], structure: Structure) -> Iterator[Check]:
    """The laws ``seeds``, ``global_random``, ``state`` and ``inputs``."""
    estimator, loss = fresh(), AuditLoss(structure)
    scores, others = random_scores(structure, USUAL, ROWS), random_scores(structure, USUAL, ROWS, "others")

    def call(rows: Tensor, seed: int) -> Tensor:
        return check_finite(estimator.gradient(loss, structure.oracle, rows, generator=seeded(seed, "behaviour")), estimator.name)

    before, handed, world = snapshot(estimator), scores.clone(), world_state()
    first = call(scores, 1)
    yield _check("global_random", structure, world_state() == world, "torch's, numpy's and Python's global generators are left alone")
    quiet, changed = world_state() == world, _difference(before, snapshot(estimator))
    estimates = [call(scores, 1) if same else call(others, 2) for same in _SAME]
    odd = [number for number, (same, one) in enumerate(zip(_SAME, estimates, strict=True), start=2) if same and not torch.equal(first, one)]
    if quiet:
        yield _state(structure, changed, odd, stale=not estimator.deterministic and _stale(fresh(), structure))
    yield _check("inputs", structure, torch.equal(handed, scores) and scores.grad is None, "scores are not modified")
    yield from _seeds(fresh(), structure, (loss, scores))


def _seeds(estimator: Estimator[Any], structure: Structure, where: tuple[AuditLoss, Tensor]) -> Iterator[Check]:
    loss, scores = where
    stream = seeded(1, "behaviour")
    before = stream.get_state()
    first = estimator.gradient(loss, structure.oracle, scores, generator=stream)
    if not estimator.deterministic:
        return
    untouched = torch.equal(before, stream.get_state())
    second = estimator.gradient(loss, structure.oracle, scores, generator=seeded(2, "behaviour"))
    fine = untouched and torch.equal(first, second)
    if fine:
        yield Check("deterministic", structure.name, "holds", "two seeds give one estimate, and the generator is not touched")
    else:
        remedy = to_change(estimator, "deterministic", "deterministic: ClassVar[bool] = False")
        yield Check("deterministic", structure.name, "violated", "it declares to be deterministic, and draws", remedy=remedy)


def _state(structure: Structure, changed: str, odd: list[int], *, stale: bool) -> Check:
    if changed:
        detail = f"a call changed {changed}"
        cause = "state that a call updates in place; return a new estimator instead, as `observed` of reinforce_running_mean does"
        return Check("state", structure.name, "violated", detail, cause)
    if odd:
        calls = f"call{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))} of {len(_SAME) + 1}"
        detail = f"{calls} gave other numbers than the first, with its seed and its scores"
        return Check("state", structure.name, "violated", detail, "state that is kept between calls, outside of the estimator")
    if stale:
        detail = f"{_STALE_CALLS} seeds gave one estimate, and rows of the same scores differ"
        cause = "noise that is kept from an earlier call, outside of the estimator, or comes from a generator that is seeded again"
        return Check("state", structure.name, "violated", detail, cause)
    return Check("state", structure.name, "holds", "the same call gives the same numbers, whatever came between")


def _stale(estimator: Estimator[Any], structure: Structure) -> bool:
    """Whether rows of the same scores differ, so that something is drawn, and the seed of a call decides nothing."""
    scores, loss = random_scores(structure, FLAT, 1, "stale").repeat(_STALE_ROWS, *[1] * structure.ndim), AuditLoss(structure)

    def call(seed: int) -> Tensor:
        return estimator.gradient(loss, structure.oracle, scores, generator=seeded(seed, "stale"))

    first = call(0)
    if any(not torch.equal(first, call(seed)) for seed in range(1, _STALE_CALLS)):
        return False
    differ = ~torch.isclose(first, first[:1], rtol=1e-6, atol=1e-9).flatten(1).all(-1)
    return int(differ.sum()) >= _STALE_LEAST


def _check(law: str, structure: Structure, holds: bool, text: str) -> Check:
    broken = {
        "global_random": "a global generator was used: results depend on what else runs",
        "inputs": "the scores that were handed in were modified",
    }
    causes = {"global_random": "a draw without generator=", "inputs": "an operation in place"}
    return Check(law, structure.name, "holds", text) if holds else Check(law, structure.name, "violated", broken[law], causes[law])


def world_state() -> tuple[Any, ...]:
    """The global generators, as something that compares."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - somebody may use it
    return bytes(torch.get_rng_state().numpy()), str(kind), bytes(np.asarray(keys)), tuple(map(str, rest)), random.getstate()


def snapshot(value: Any, depth: int = _DEPTH) -> Any:
    """What an object holds, as plain values that compare; what a function encloses, too."""
    if isinstance(value, Tensor | np.ndarray):
        return _digest(torch.as_tensor(value))
    if value is None or depth == 0 or isinstance(value, int | float | str | bytes | bool | complex | type | types.ModuleType):
        return repr(value) if depth else type(value).__name__
    if isinstance(value, list | tuple | set | frozenset):
        return [snapshot(item, depth - 1) for item in value]
    held = value if isinstance(value, dict) else _enclosed(value) | getattr(value, "__dict__", {})
    return {str(key): snapshot(item, depth - 1) for key, item in held.items()}


def _digest(values: Tensor) -> tuple[Any, ...]:
    """Shape, type and bytes of a tensor: it may be large."""
    content = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(values.shape), str(values.dtype), hashlib.blake2b(content).hexdigest()


def _enclosed(value: Any) -> dict[str, Any]:
    """The variables that a function closes over."""
    if not isinstance(value, types.FunctionType):
        return {}
    return dict(zip(value.__code__.co_freevars, map(_contents, value.__closure__ or ()), strict=True))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set yet
        return None


def _difference(before: Any, after: Any) -> str:
    """The names of the fields that differ; empty where none does."""
    if before == after:
        return ""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return ", ".join(sorted(names))
    return "what it holds"
