"""Laws of declarations: what one estimate takes, which capabilities it uses, where the loss is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ....oracles.capabilities import Oracle
from ..cases import FLAT, AuditLoss, Structure, off_structures, random_scores, seeded
from ..counting import COUNTED, Ledger, counting_loss, counting_oracle
from ..remedies import to_change
from ..result import Check

ROWS = 4
_PASSES = ("enumerations", "listings", "support_losses", "completions", "swap_losses", "alternatives")
"""Passes of a size that depends on the structure: where one is declared, only the gradients of the loss are counted."""


def observed(estimator: Estimator[Any], structure: Structure) -> Ledger:
    """One estimate per row, with everything that it asks for counted."""
    ledger = Ledger(rows=ROWS)
    loss = counting_loss(AuditLoss(structure), ledger, structure.ndim)
    oracle = counting_oracle(structure.oracle, ledger)
    estimator.gradient(loss, oracle, random_scores(structure, FLAT, ROWS), generator=seeded(1, "declarations"))
    return ledger


def declaration_checks(fresh: Callable[[], Estimator[Any]], structure: Structure) -> Iterator[Check]:
    """The laws ``evaluations``, ``needs`` and ``hull``."""
    estimator = fresh()
    ledger = observed(estimator, structure)
    yield _evaluations(estimator, structure, ledger)
    undeclared = [
        kind.__name__ for kind in ledger.used if kind is not Oracle and not any(issubclass(need, kind) for need in estimator.needs)
    ]
    if undeclared:
        detail = f"it uses {', '.join(sorted(undeclared))}, which it does not name in `needs`: it would fail deep inside without"
        needed = ", ".join(dict.fromkeys([*(need.__name__ for need in estimator.needs if need is not Oracle), *sorted(undeclared)]))
        remedy = to_change(estimator, "needs", f"needs: ClassVar[tuple[type[Oracle], ...]] = ({needed}{'' if ',' in needed else ','})")
        yield Check("needs", structure.name, "violated", detail, remedy=remedy)
    else:
        yield Check("needs", structure.name, "holds", "it uses what it names")
    inside = any(off_structures(point, structure) for point in ledger.points)
    if inside and not estimator.inside_hull:
        detail = "the loss is evaluated where no structure is, and inside_hull is declared False"
        remedy = to_change(estimator, "inside_hull", "inside_hull: ClassVar[bool] = True")
        yield Check("hull", structure.name, "violated", detail, remedy=remedy)
    else:
        yield Check("hull", structure.name, "holds", "the loss is evaluated where it is declared to be")


def _evaluations(estimator: Estimator[Any], structure: Structure, ledger: Ledger) -> Check:
    declared, count = estimator.evaluations(), structure.oracle.count(structure.event)
    passes = any(getattr(declared, name) for name in _PASSES)
    wanted = {name: getattr(declared, name) for name in (("loss_gradients",) if passes else COUNTED)}
    wanted |= {"kbest": min(wanted["kbest"], count)} if "kbest" in wanted else {}
    wrong = [
        (name, f"{name} {ledger.counts[name]:g} (declared {value})")
        for name, value in wanted.items()
        if abs(ledger.counts[name] - value) > 1e-9
    ]
    if wrong:
        detail = "one estimate took " + ", ".join(detail for _, detail in wrong)
        remedy = _remedy(estimator, {name: ledger.counts[name] for name in wanted}, [name for name, _ in wrong])
        return Check("evaluations", structure.name, "violated", detail, remedy=remedy)
    return Check("evaluations", structure.name, "holds", "one estimate takes what it declares")


def _remedy(estimator: Estimator[Any], counted: dict[str, float], wrong: list[str]) -> str:
    """The line to change, and what counts as each cost that is wrong in it."""
    costs = {**vars(estimator.evaluations()), **counted}
    code = ", ".join(f"{name}={value:g}" for name, value in costs.items() if value)
    meaning = "; ".join(f"{name}: {COUNTED[name]}" for name in wrong)
    change = to_change(estimator, "evaluations", f"return Evaluations({code})")
    return f"{change}, with these options; what counts, per row of the batch: {meaning}"


def parameter_check(fresh: Callable[[], Estimator[Any]], structure: Structure) -> Check:
    """The law ``parameters``: the surrogate passes the gradient of its value on to the parameters of the loss."""
    scores = random_scores(structure, FLAT, ROWS)

    def value(weight: Tensor) -> Tensor:
        loss = AuditLoss(structure, weight=weight)
        return fresh().surrogate(loss, structure.oracle, scores, generator=seeded(1, "parameters")).sum()

    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    total = value(weight)
    found = torch.autograd.grad(total, weight, allow_unused=True)[0] if total.requires_grad else None
    step = 1e-4
    # With gradients enabled: an estimator may need that of the loss for its value.
    near, far = ((value(weight + size) - value(weight - size)).detach() / (2 * size) for size in (step, 2 * step))
    wanted, doubt = float(4 * near - far) / 3, abs(float(near - far))
    got = 0.0 if found is None else float(found)
    if abs(got - wanted) <= 1e-5 * abs(wanted) + 1e-6 + 10 * doubt:
        return Check("parameters", structure.name, "holds", "a parameter of the loss gets the gradient of the surrogate's value")
    cause = "the value is detached from the loss: a decoder would not learn" if got == 0 else ""
    return Check("parameters", structure.name, "violated", f"a parameter of the loss gets {got:.4g}; the derivative is {wanted:.4g}", cause)
