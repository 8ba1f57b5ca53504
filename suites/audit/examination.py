"""The audit: all laws on small structures, tests under one error rate, one verdict and its cause."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...estimators.noise import Gumbel, SmoothNoise
from .cases import AuditEffort, Case, Structure, structures_for
from .causes import cause_by_intervention, cause_of_noise
from .diagnosis import Explanation, Point, corrected, explain
from .laws import LAWS
from .means import compare, mean_checks, same_mean_checks
from .result import SPOILING, Audit, Check, FlatComparison, check_limits, checked, settled
from .subject import Subject, numbers, subject_of, to_change, with_neutral_options, with_other_value
from .twin import Twin, twin_of

QUICK: dict[str, Any] = {"first": 4096, "most": 16_384, "seconds": 1.5, "structures": 2}
"""Changes of ``quick``."""

MANY_ZEROS = 0.5
"""Share of estimates of exactly 0 from which a warning is given."""

NO_CLAIM = "biased by declaration: its mean is held to nothing; compare it with that of another estimator (mean_of)"


def audit(  # noqa: PLR0913 - one parameter per option of the verb
    estimator: Any,
    *,
    objective: str | None = None,
    unbiased: bool | None = None,
    scale: float | None = None,
    mean_of: str | Estimator[Any] | None = None,
    structures: tuple[str, ...] = (),
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
    subject = subject_of(estimator, objective=objective, unbiased=unbiased, scale=scale)
    effort = AuditEffort(alpha=alpha, seed=seed, **(QUICK if quick else {}))
    chosen = structures_for(subject.estimator, structures, effort.structures)
    return _Examination(subject, effort, chosen, make_estimator(mean_of) if isinstance(mean_of, str) else mean_of).result(seconds)


@dataclass
class _Examination:
    """One audit."""

    subject: Subject
    effort: AuditEffort
    structures: list[Structure]
    reference: Estimator[Any] | None
    losses: float | None = None
    checks: list[Check] = field(default_factory=list)
    comparisons: list[FlatComparison] = field(default_factory=list)
    points: dict[str, list[Point]] = field(default_factory=lambda: {"objective": [], "mean_of": []})

    def result(self, seconds: float) -> Audit:
        """Run the laws, structure by structure, decide the tests, and search causes."""
        world, start = torch.get_rng_state(), time.monotonic()
        try:
            for structure in self.structures:
                self._laws(structure)
            # Compilation is over now, and does not count.
            start_of_means = time.monotonic()
            for structure in self.structures:
                if time.monotonic() - start_of_means > seconds:
                    self.checks.append(Check("objective", structure.name, "undecided", "no time was left for it"))
                    continue
                case = self._case_of_means(structure)
                for law, points in self.points.items():
                    self._add(law, structure, functools.partial(mean_checks, case, law, self.reference, points))
                self._add("comparison", structure, functools.partial(self._compare, case))
            if not self.subject.estimator.unbiased and self.reference is None:
                self.checks.append(Check("objective", "", "skipped", NO_CLAIM))
            self.checks, tests = settled(self.checks, self.effort.alpha)
            explanations = self._explained()
            notes = tuple(self._notes())
        finally:
            torch.set_rng_state(world)
        return Audit(
            subject=self.subject.title,
            declared=self.subject.declared,
            checks=tuple(self.checks),
            comparisons=tuple(self.comparisons),
            alpha=self.effort.alpha,
            tests=tests,
            losses=self.losses,
            seed=self.effort.seed,
            seconds=time.monotonic() - start,
            seen=tuple(found.seen for found in explanations if found.seen),
            notes=notes,
            possible=tuple(cause for found in explanations for cause in found.likely),
        )

    def _add(self, law: str, structure: Structure, checks: Callable[[], Iterable[Check]]) -> None:
        self.checks.extend(checked(law, structure.name, checks))

    def _violated(self) -> list[Check]:
        return [check for check in self.checks if check.status == "violated"]

    def _case_of_means(self, structure: Structure) -> Case:
        """If an estimator is wrongly declared deterministic, its mean must not be taken from a single estimate."""
        return Case(self.subject, structure, self.effort, random=any(check.law == "deterministic" for check in self._violated()))

    def _laws(self, structure: Structure) -> None:
        """The laws that a few calls decide."""
        case = Case(self.subject, structure, self.effort)
        for name, law, of_functions in LAWS:
            here = {check.law for check in self._violated() if check.where == structure.name}
            # Calls with one seed differ anyway if a batch cannot be compared.
            if (of_functions or not self.subject.is_function) and not (name == "batch" and here & {"global_random", "state"}):
                self._add(name, structure, functools.partial(law, case))
            if name == "shapes" and (self.checks[-1].law, self.checks[-1].status) == ("finite", "violated"):
                return  # nothing follows from comparing NaN
        if self.losses is None:
            with contextlib.suppress(Exception):  # the estimator may raise anything
                self.losses = case.observed().loss_evaluations

    def _compare(self, case: Case) -> Iterable[Check]:
        self.comparisons.append(compare(case, self.losses))
        return ()

    def _explained(self) -> list[Explanation]:
        """Explain wrong means and note the causes; not if another violated law makes means wrong anyway."""
        violated, known = {check.law for check in self._violated()}, {check.law for check in self._violated() if check.cause}
        explanations = []
        for law, points in self.points.items():
            if law not in violated - known or not points or violated & set(SPOILING):
                continue
            found = self._explain(law, points, self.reference)
            if not found.cause:
                cause, likely = self._dissected(law)
                cause = "; ".join(filter(None, (cause, self._switch(law))))
                found = Explanation(cause) if cause else replace(found, likely=(*found.likely, *likely)[:2])
            if found.seen and not found.parallel and law != "mean_of":
                change = to_change(self.subject.estimator, "unbiased", "unbiased: ClassVar[bool] = False")
                meant = "; if a bias is meant: --biased" if self.subject.is_function else f"; if a bias is meant, {change}"
                found = replace(found, seen=found.seen + meant)
            self.checks = [replace(one, cause=found.cause) if (one.law, one.status) == (law, "violated") else one for one in self.checks]
            explanations.append(found)
        return explanations

    def _explain(self, law: str, points: list[Point], reference: Estimator[Any] | None) -> Explanation:
        """Explain by factors of options, parts and marginals; other values of options are measured on the first structure."""

        def ask(option: str) -> list[Point]:
            theirs = reference
            with contextlib.suppress(Exception):  # another value may be out of its range
                own = with_other_value(copy.deepcopy(self.subject.estimator), option)
                if theirs is not None and numbers(theirs).get(option) == self.subject.numbers().get(option):
                    theirs = with_other_value(theirs, option)
                return self._means(law, own, theirs)
            return []

        return explain(_with_losses(points, self.losses), ask)

    def _switch(self, law: str) -> str:
        """The option with another value of which the means on the first structure are right; empty if there is none."""
        others = with_neutral_options(self.subject.estimator)
        found = self._means(law, self.subject.estimator, self.reference, 65_536) if others else []
        right = [text for text, one in others if corrected(found, self._means(law, one, self.reference, 65_536))]
        names = " or ".join(dict.fromkeys(text.partition("=")[0] for text in right))
        return f"with {' or '.join(right)} the mean is right: what is wrong is what the option {names} does" if right else ""

    def _dissected(self, law: str) -> tuple[str, tuple[str, ...]]:
        """The cause that shows if losses are changed one by one, else the two most likely ones."""
        structure = self.structures[0]
        estimator = Case(self.subject, structure, self.effort).fresh()
        if (law, estimator.objective) == ("objective", "expected"):
            with contextlib.suppress(Exception):  # the estimator may raise anything
                has_count = any("sample" in name for name in self.subject.numbers())
                return cause_by_intervention(estimator, structure, has_count=has_count)
        noise = getattr(estimator, "noise", Gumbel())
        if (law, estimator.objective) == ("objective", "perturbed") and isinstance(noise, SmoothNoise):
            with contextlib.suppress(Exception):  # the estimator may raise anything
                return cause_of_noise(estimator, structure, noise), ()
        return "", ()

    def _means(self, law: str, estimator: Estimator[Any], reference: Estimator[Any] | None, replicates: int = 4096) -> list[Point]:
        """The means of another estimator on the first structure; nothing if it raises."""
        effort = replace(self.effort, first=replicates, most=max(replicates, 16_384), seconds=1.5)
        points: list[Point] = []
        case = Case(replace(self.subject, estimator=estimator), self.structures[0], effort)
        with contextlib.suppress(Exception):  # another value may be out of its range
            losses = case.observed().loss_evaluations
            list(mean_checks(case, law, reference, points))
            return _with_losses(points, losses)
        return []

    def _notes(self) -> Iterator[str]:
        """Warnings: estimates that are mostly 0, and another mean than that of the registered twin."""
        share, where = max(((row.zero_rate or 0.0, row.where) for row in self.comparisons), default=(0.0, ""))
        if share > MANY_ZEROS:
            yield f"{share:.0%} of the estimates are exactly 0 ({where})"
        if not self.subject.estimator.unbiased and self.reference is None:
            with contextlib.suppress(Exception):  # the estimator may raise anything
                case = self._case_of_means(self.structures[0])
                if (twin := twin_of(case)) is not None:
                    yield self._next_to(case, twin)

    def _next_to(self, case: Case, twin: Twin) -> str:
        """Compare the means of both on the first structure."""
        points: list[Point] = []
        name, resembled = twin.estimator.name, f"the registered estimator that it resembles most ({twin.reason})"
        checks = settled(list(same_mean_checks(case, twin.estimator, points)), self.effort.alpha)[0]
        wrong = next((check for check in checks if check.status == "violated"), None)
        if wrong is None:
            return f"its mean is that of {name}, {resembled}"
        found = self._explain("mean_of", points, twin.estimator)
        return (
            f"its mean is not that of {name}, {resembled}: {wrong.detail}; {found.cause or found.seen}; "
            f"if it should be, --mean-of {name} makes that a law"
        )


def _with_losses(points: list[Point], losses: float | None) -> list[Point]:
    return points if losses is None else [replace(point, numbers={**point.numbers, "": losses}) for point in points]
