"""The audit: all laws on small structures, tests under one error rate, one verdict and its cause."""

from __future__ import annotations

import contextlib
import copy
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...estimators.noise import Gumbel, SmoothNoise
from ..base import NonFiniteError
from .cases import AuditEffort, Structure, structures_for
from .comparison import compare, twin_of
from .diagnosis import Explanation, Point, corrected, explain
from .dissection import cause_by_intervention, cause_of_noise
from .laws import LAWS, Case
from .means import expected_checks, perturbed_checks, relaxed_checks, same_mean_checks
from .result import SPOILING, Audit, Check, FlatComparison, settled
from .subject import Subject, numbers, subject_of, to_change, with_neutral_options, with_other_value

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
    if not 0 < alpha < 1:
        raise ValueError(f"`audit` got alpha={alpha}; expected a number between 0 and 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"`audit` got seed={seed}; expected an integer from 0 to 2^63 - 1")
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
        estimator = self.subject.estimator
        try:
            for structure in self.structures:
                self._laws(self._case(structure))
            # Compilation is over now, and does not count.
            start_of_means = time.monotonic()
            for structure in self.structures:
                if time.monotonic() - start_of_means > seconds:
                    self.checks.append(Check("objective", structure.name, "undecided", "no time was left for it"))
                    continue
                case = self._case(structure, keeps_declaration=False)
                self._keep("objective", structure, lambda case=case: self._own_claims(case))  # type: ignore[misc]
                self._keep("mean_of", structure, lambda case=case: self._same_mean(case))  # type: ignore[misc]
                self._keep("comparison", structure, lambda case=case: self.comparisons.append(compare(case, self.losses)) or ())  # type: ignore[misc, func-returns-value]
            if not estimator.unbiased and self.reference is None:
                self.checks.append(Check("objective", "", "skipped", NO_CLAIM))
            self.checks, tests = settled(self.checks, self.effort.alpha)
            explanations = self._explained()
            notes = self._notes()
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
            notes=tuple(notes),
            possible=tuple(cause for found in explanations for cause in found.likely),
        )

    def _case(self, structure: Structure, *, keeps_declaration: bool = True) -> Case:
        """One structure, with copies of the estimator: a law may change the one that it gets. Some objects cannot be copied.

        If an estimator is wrongly declared deterministic, its mean must not be taken from a single estimate.
        """
        own = self.subject.estimator
        random = any(check.law == "deterministic" and check.status == "violated" for check in self.checks) and not keeps_declaration

        def fresh() -> Estimator[Any]:
            try:
                estimator = copy.deepcopy(own)
            except Exception:  # the estimator may hold anything
                return own
            if random:
                object.__setattr__(estimator, "deterministic", False)
            return estimator

        return Case(self.subject, fresh, structure, self.effort)

    def _laws(self, case: Case) -> None:
        """The laws that a few calls decide."""
        structure = case.structure
        for name, law, of_functions in LAWS:
            if case.subject.is_function and not of_functions:
                continue
            here = [check for check in self.checks if check.where == structure.name and check.status == "violated"]
            if name == "batch" and any(check.law in ("global_random", "state") for check in here):
                continue  # calls with one seed differ anyway
            self._keep(name, structure, lambda law=law: law(case))  # type: ignore[misc]
            if name == "shapes" and self.checks[-1].law == "finite" and self.checks[-1].status == "violated":
                return  # nothing follows from comparing NaN
        if self.losses is None:

            def count() -> Iterable[Check]:
                self.losses = case.observed().loss_evaluations
                return ()

            self._keep("evaluations", structure, count)

    def _own_claims(self, case: Case) -> Iterable[Check]:
        estimator, points = self.subject.estimator, self.points["objective"]
        if not estimator.unbiased or estimator.objective == "argmax":
            return ()
        laws = {"expected": expected_checks, "perturbed": perturbed_checks}
        return laws.get(estimator.objective, relaxed_checks)(case, points)

    def _same_mean(self, case: Case) -> Iterable[Check]:
        reference = self.reference
        if reference is None or reference.incompatibility(case.structure.oracle, case.structure.event) is not None:
            return ()
        return same_mean_checks(case, reference, self.points["mean_of"])

    def _keep(self, law: str, structure: Structure, checks: Callable[[], Iterable[Check]]) -> None:
        """The checks of a law; an exception of the estimator is one of them."""
        try:
            for check in checks():
                self.checks.append(check)
        except NonFiniteError as error:
            self.checks.append(Check("finite", structure.name, "violated", str(error)))
        except Exception as error:  # the estimator may raise anything
            text = f"it raised {type(error).__name__}: {' '.join(str(error).split())}"[:300]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rsplit('/', 1)[-1]}, line {frame.lineno}: {frame.line}"
            self.checks.append(Check(law, structure.name, "crashed", text, where))

    def _explained(self) -> list[Explanation]:
        """Explain wrong means and note the causes; not if another violated law makes means wrong anyway."""
        violated = {check.law for check in self.checks if check.status == "violated"}
        known = {check.law for check in self.checks if check.status == "violated" and check.cause}
        explanations = []
        for law, points in self.points.items():
            if law not in violated - known or not points or violated & set(SPOILING):
                continue
            found = self._explain(law, points)
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

    def _explain(self, law: str, points: list[Point]) -> Explanation:
        """Explain by factors of options, parts and marginals; other values of options are measured on the first structure."""

        def ask(option: str) -> list[Point]:
            reference = self.reference
            with contextlib.suppress(Exception):  # another value may be out of its range
                own = with_other_value(copy.deepcopy(self.subject.estimator), option)
                if reference is not None and dict(numbers(reference)).get(option) == self.subject.numbers().get(option):
                    reference = with_other_value(reference, option)
                return self._seen_with(law, own, reference)
            return []

        return explain([replace(point, setting=replace(point.setting, losses=self.losses)) for point in points], ask)

    def _switch(self, law: str) -> str:
        """The option with another value of which the means on the first structure are right; empty if there is none."""
        others = with_neutral_options(self.subject.estimator)
        found = self._seen_with(law, self.subject.estimator, self.reference, replicates=65_536) if others else []
        right = [text for text, one in others if corrected(found, self._seen_with(law, one, self.reference, replicates=65_536))]
        names = " or ".join(dict.fromkeys(text.partition("=")[0] for text in right))
        return f"with {' or '.join(right)} the mean is right: what is wrong is what the option {names} does" if right else ""

    def _dissected(self, law: str) -> tuple[str, tuple[str, ...]]:
        """The cause that shows if losses are changed one by one, else the two most likely ones."""
        estimator, structure = self._case(self.structures[0]).fresh(), self.structures[0]
        noise, has_count = getattr(estimator, "noise", Gumbel()), any("sample" in name for name in self.subject.numbers())
        with contextlib.suppress(Exception):  # the estimator may raise anything
            if (law, estimator.objective) == ("objective", "expected"):
                return cause_by_intervention(estimator, structure, has_count=has_count)
            if (law, estimator.objective) == ("objective", "perturbed") and isinstance(noise, SmoothNoise):
                return cause_of_noise(estimator, structure, noise), ()
        return "", ()

    def _seen_with(self, law: str, estimator: Estimator[Any], reference: Estimator[Any] | None, replicates: int = 4096) -> list[Point]:
        """The means of another estimator on the first structure; nothing if it raises."""
        effort = replace(self.effort, first=replicates, most=max(replicates, 16_384), seconds=1.5)
        work = _Examination(replace(self.subject, estimator=estimator), effort, self.structures[:1], reference)
        try:
            case = work._case(self.structures[0])
            losses = case.observed().loss_evaluations
            for _ in work._own_claims(case) if law == "objective" else work._same_mean(case):
                pass
        except Exception:  # another value may be out of its range
            return []
        return [replace(point, setting=replace(point.setting, losses=losses)) for point in work.points[law]]

    def _notes(self) -> list[str]:
        """Warnings: estimates that are mostly 0, and another mean than that of the registered twin."""
        share, where = max(((row.zero_rate or 0.0, row.where) for row in self.comparisons), default=(0.0, ""))
        notes = [f"{share:.0%} of the estimates are exactly 0 ({where})"] if share > MANY_ZEROS else []
        if not self.subject.estimator.unbiased and self.reference is None:
            with contextlib.suppress(Exception):  # the estimator may raise anything
                notes += self._next_to_twin()
        return notes

    def _next_to_twin(self) -> Iterator[str]:
        """The means of both on the first structure."""
        case = self._case(self.structures[0], keeps_declaration=False)
        twin = twin_of(replace(case, subject=replace(self.subject, estimator=case.fresh())))
        if twin is None:
            return
        name = twin.estimator.name
        work = _Examination(self.subject, self.effort, self.structures, twin.estimator, self.losses)
        checks = settled(list(work._same_mean(case)), self.effort.alpha)[0]
        wrong = [check for check in checks if check.status == "violated"]
        if wrong:
            found = work._explain("mean_of", work.points["mean_of"])
            yield (
                f"its mean is not that of {name}, the registered estimator that it resembles most ({twin.reason}): {wrong[0].detail}; "
                f"{found.cause or found.seen}; if it should be, --mean-of {name} makes that a law"
            )
        elif checks:
            yield f"its mean is that of {name}, the registered estimator that it resembles most ({twin.reason})"
