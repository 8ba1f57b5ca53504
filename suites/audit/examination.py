"""The audit: all laws on small structures, tests under one error rate, one verdict and its cause."""

import contextlib
import copy
import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...estimators.own import OWN_FORMS, FunctionEstimator
from .cases import AuditEffort, Case, Structure, structures_for, with_loss
from .causes import SIGN, Explanation, Point, corrected, explain
from .interventions import cause_by_intervention
from .laws import LAWS
from .means import compare, mean_checks, same_mean_checks, twin_of

from .result import (  # isort: skip
    SPOILING, Audit, Check, FlatComparison, Subject, check_limits, checked, numbers, settled, subject_of, with_neutral_options,
    with_other_value,
)  # fmt: skip

QUICK: dict[str, Any] = {"most_replicates": 16_384, "seconds": 1.5, "structures": 2}  # changes of ``quick``
MANY_ZEROS = 0.5  # share of estimates of exactly 0 from which a warning is given

NO_CLAIM = "biased by declaration: its mean is held to nothing; compare it with that of another estimator (mean_of)"


def audit(  # noqa: PLR0913 - one parameter per option of the verb
    estimator: Any,
    *,
    objective: str | None = None,
    unbiased: bool | None = None,
    scale: float | None = None,
    mean_of: str | Estimator[Any] | None = None,
    structures: tuple[str, ...] = (),
    loss: str | None = None,
    name: str | None = None,
    alpha: float = 1e-3,
    seed: int = 0,
    quick: bool = False,
    seconds: float = 60.0,
) -> Audit:
    """Test an estimator on small structures: shapes, randomness, batching, and whether its mean equals the exact gradient.

    Means are exact if all samples can be dealt to the estimator, so that a factor of 0.999 cannot hide. Else they are tested, with Holm's
    correction over all tests of the audit and a confirmation on fresh seeds.

    Args:
        estimator: an `Estimator` or its class, a function ``(loss, oracle, scores, generator) -> estimates``, or a name as on the command
            line. Only for a function you may declare ``objective``, ``unbiased`` and ``scale``.
        objective: ``expected`` by default.
        unbiased: True by default.
        scale: ratio of the mean to the gradient; 1 by default.
        mean_of: another estimator that must have an equal mean, such as ``st_gumbel`` for its Rao-Blackwellisation.
        structures: names of `STRUCTURES`; all supported ones by default.
        loss: your own, such as ``./mine.py:loss``, in place of the one with which mistakes show best.
        name: of the estimator in the result.
        alpha: the chance of any false violation.
        seed: seed of everything random.
        quick: fewer structures and replicates.
        seconds: time for the means. Structures that are not reached by then are undecided.

    Raises:
        ValueError: an unknown name, or an object that is neither an estimator nor a function.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> found = audit(Reinforce(), quick=True, structures=("categorical",))
        >>> found.verdict, found.causes
        ('right', ())
    """
    check_limits("audit", alpha, seed)
    subject = subject_of(estimator, objective=objective, unbiased=unbiased, scale=scale, name=name)
    effort = AuditEffort(alpha=alpha, seed=seed, **(QUICK if quick else {}))
    chosen = structures_for(subject.estimator, structures, effort.structures)
    chosen = [with_loss(structure, loss, subject.estimator) for structure in chosen] if loss else chosen
    examination = _Examination(subject, effort, chosen, make_estimator(mean_of) if isinstance(mean_of, str) else mean_of)
    world, start = torch.get_rng_state(), time.monotonic()
    try:
        tests, explanations, notes = examination.run(seconds)
    finally:
        torch.set_rng_state(world)
    return Audit(
        subject=subject.title,
        declared=subject.declared,
        checks=tuple(examination.checks),
        comparisons=tuple(examination.comparisons),
        alpha=alpha,
        tests=tests,
        losses=examination.losses,
        seed=seed,
        seconds=time.monotonic() - start,
        seen=tuple(found.seen for found in explanations if found.seen),
        notes=notes,
    )


@dataclass
class _Examination:
    subject: Subject
    effort: AuditEffort
    structures: list[Structure]
    reference: Estimator[Any] | None
    losses: float | None = None
    checks: list[Check] = field(default_factory=list)
    comparisons: list[FlatComparison] = field(default_factory=list)

    def run(self, seconds: float) -> tuple[int, list[Explanation], tuple[str, ...]]:
        for structure in self.structures:
            self._laws(structure)
        points: dict[str, list[Point]] = {"objective": [], "mean_of": []}
        until = time.monotonic() + seconds  # compilation is over now, and does not count
        for structure in self.structures:
            if time.monotonic() > until:
                self.checks.append(Check("objective", structure.name, "undecided", "no time was left for it"))
                continue
            case = self._case_of_means(structure)
            for law, known in points.items():
                self.checks += checked(law, structure.name, functools.partial(mean_checks, case, law, self.reference, known))
            self.checks += checked("comparison", structure.name, functools.partial(self._compare, case))
        biased = not self.subject.estimator.unbiased and self.reference is None
        if biased:
            self.checks.append(Check("objective", "", "skipped", NO_CLAIM))
        self.checks, tests = settled(self.checks, self.effort.alpha)
        explanations = [found for law, known in points.items() for found in self._explained(law, known)]
        if biased and {check.law for check in self._violated()} == {"sign"}:
            self._blame("sign", SIGN + " Is a straight-through sample written hard − soft + soft.detach()?")
        return tests, explanations, tuple(self._notes(biased=biased))

    def _violated(self) -> list[Check]:
        return [check for check in self.checks if check.status == "violated"]

    def _blame(self, law: str, cause: str) -> None:
        self.checks = [replace(one, cause=cause) if (one.law, one.status) == (law, "violated") else one for one in self.checks]

    def _case_of_means(self, structure: Structure) -> Case:
        """If an estimator is wrongly declared deterministic, its mean must not be taken from a single estimate."""
        return Case(self.subject, structure, self.effort, random=any(check.law == "deterministic" for check in self._violated()))

    def _laws(self, structure: Structure) -> None:
        case, is_function = Case(self.subject, structure, self.effort), isinstance(self.subject.estimator, FunctionEstimator)
        for name, law, of_functions in LAWS:
            here = {check.law for check in self._violated() if check.where == structure.name}
            # Calls with one seed differ anyway if a batch cannot be compared.
            if (of_functions or not is_function) and not (name == "batch" and here & {"global_random", "state"}):
                self.checks += checked(name, structure.name, functools.partial(law, case))
            if name == "shapes" and (self.checks[-1].law, self.checks[-1].status) == ("finite", "violated"):
                return  # nothing follows from comparing NaN
        if self.losses is None:
            with contextlib.suppress(Exception):  # the estimator may raise anything
                self.losses = case.observed().loss_evaluations

    def _compare(self, case: Case) -> Iterator[Check]:
        self.comparisons.append(compare(case))
        yield from ()

    def _explained(self, law: str, points: list[Point]) -> Iterator[Explanation]:
        """Explain wrong means and note the cause; not if another violated law makes means wrong anyway."""
        violated = self._violated()
        causes = [check.cause for check in violated if check.law == law]
        if not points or not causes or any(causes) or {check.law for check in violated} & set(SPOILING):
            return
        found = self._explain(law, points, self.reference)
        if not found.cause:
            proven = self._by_intervention(law)
            if found.factor is None and proven.startswith("gain"):
                proven = ""  # that of one structure; others have other gains
            cause = "; ".join(filter(None, (proven, self._switch(law))))
            found = Explanation(cause) if cause else found
        if found.seen and found.factor is None and law != "mean_of":
            meant = "--biased" if isinstance(self.subject.estimator, OWN_FORMS) else "declare `unbiased: ClassVar[bool] = False`"
            found = replace(found, seen=f"{found.seen}; if a bias is meant: {meant}")
        self._blame(law, found.cause)
        yield found

    def _explain(self, law: str, points: list[Point], reference: Estimator[Any] | None) -> Explanation:
        """Explain by factors of options, parts and marginals; other values of options are measured on the first structure."""

        def ask(option: str) -> list[Point]:
            theirs, value = reference, numbers(self.subject.estimator)[option]
            with contextlib.suppress(Exception):  # another value may be out of its range
                own = with_other_value(copy.deepcopy(self.subject.estimator), option)
                for name, other in numbers(theirs).items():
                    theirs = with_other_value(theirs, name) if other == value else theirs
                return self._means(law, own, theirs)
            return []

        known = {} if self.losses is None else {"": self.losses}
        return explain([replace(point, numbers={**point.numbers, **known}) for point in points], ask)

    def _switch(self, law: str) -> str:
        """The option with another value of which the means on the first structure are right; empty if there is none."""
        others = list(with_neutral_options(self.subject.estimator))
        found = self._means(law, self.subject.estimator, self.reference, 65_536) if others else []
        right = [text for text, one in others if corrected(found, self._means(law, one, self.reference, 65_536))]
        names = " or ".join(dict.fromkeys(text.partition("=")[0] for text in right))
        return f"with {' or '.join(right)} the mean is right: what is wrong is what the option {names} does" if right else ""

    def _by_intervention(self, law: str) -> str:
        structure = self.structures[0]
        estimator = Case(self.subject, structure, self.effort).fresh()
        with contextlib.suppress(Exception):  # the estimator may raise anything
            if (law, estimator.objective) == ("objective", "expected"):
                has_count = any("sample" in name for name in numbers(self.subject.estimator))
                return cause_by_intervention(estimator, structure, has_count=has_count)
        return ""

    def _means(self, law: str, estimator: Estimator[Any], reference: Estimator[Any] | None, replicates: int = 4096) -> list[Point]:
        """The means of another estimator on the first structure; nothing if it raises."""
        effort = replace(self.effort, replicates=replicates, most_replicates=max(replicates, 16_384), seconds=1.5)
        points: list[Point] = []
        case = Case(replace(self.subject, estimator=estimator), self.structures[0], effort)
        with contextlib.suppress(Exception):  # another value may be out of its range
            numbers_of_losses = {"": case.observed().loss_evaluations}
            list(mean_checks(case, law, reference, points))
            return [replace(point, numbers={**point.numbers, **numbers_of_losses}) for point in points]
        return []

    def _notes(self, *, biased: bool) -> Iterator[str]:
        """Warnings: estimates that are mostly 0, and another mean than that of the registered twin."""
        share, where = max(((row.zero_rate or 0.0, row.where) for row in self.comparisons), default=(0.0, ""))
        if share > MANY_ZEROS:
            yield f"{share:.0%} of the estimates are exactly 0 ({where})"
        with contextlib.suppress(Exception):  # the estimator may raise anything
            case = self._case_of_means(self.structures[0])
            if not biased or (twin := twin_of(case)) is None:
                return
            (other, reason), points = twin, list[Point]()
            resembled = f"{other.name}, the registered estimator that it resembles most ({reason})"
            checks = settled(list(same_mean_checks(case, other, points)), self.effort.alpha)[0]
            wrong = next((check.detail for check in checks if check.status == "violated"), "")
            if not wrong:
                yield f"its mean is that of {resembled}"
                return
            found = self._explain("mean_of", points, other)
            law = f"if it should be, --mean-of {other.name} makes that a law"
            yield f"its mean is not that of {resembled}: {wrong}; {found.cause or found.seen}; {law}"
