"""The audit: all laws on small structures, tests under one error rate, one verdict."""

from __future__ import annotations

import contextlib
import copy
import functools
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
from .cases import Structure, structures_for
from .comparison import compare, twin_of
from .confirmation import settled
from .diagnosis import Explanation, Point, corrected, explain
from .dissection import cause_by_intervention, cause_of_noise
from .laws.batching import batch_checks
from .laws.behaviour import behaviour_checks
from .laws.declarations import declaration_checks, observed, parameter_check
from .laws.direction import jacobian_check, sign_check
from .laws.objective import expected_checks
from .laws.own_objective import relaxed_checks
from .laws.shapes import finite_checks, shape_checks
from .laws.two_samples import perturbed_checks, same_mean_checks
from .means import AuditEffort
from .remedies import to_change
from .result import SPOILING, Audit, Check, FlatComparison
from .subject import Subject, numbers, subject_of, switched, varied

QUICK: dict[str, Any] = {"first": 4096, "most": 16_384, "seconds": 1.5, "structures": 2}
"""What ``quick`` changes."""


MOSTLY = 0.5
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
    """Whether an estimator is what it says, on small structures where the answer is known.

    Means are exact where all samples can be dealt to the estimator, so that a factor of 0.999 cannot hide; else they are tested, at flat
    scores, with Holm's correction over all tests of the audit and a second opinion on fresh seeds.

    Args:
        estimator: an object or a class of the contract, a function ``(loss, oracle, scores, generator) -> estimates``, or a name as on the
            command line.
        objective: of a function; ``expected`` by default. An estimator says it itself.
        unbiased: whether a function is said to be; True by default.
        scale: the multiple of the gradient that a function is said to give; 1 by default.
        mean_of: another estimator that should have the same mean, such as ``st_gumbel`` for its Rao-Blackwellisation.
        structures: names of `STRUCTURES`; those that the estimator serves by default.
        alpha: the chance of any false violation.
        seed: of everything random.
        quick: fewer structures and replicates.
        seconds: for the means; no new structure begins after them, and what was not reached is undecided.

    Raises:
        ValueError: nothing that can be audited, or an unknown name.

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
    reference = make_estimator(mean_of) if isinstance(mean_of, str) else mean_of
    return _Work(subject, effort, chosen, reference, seconds).result()


@dataclass
class _Work:
    """One audit at work."""

    subject: Subject
    effort: AuditEffort
    structures: list[Structure]
    reference: Estimator[Any] | None
    seconds: float
    start: float = field(default_factory=time.monotonic)
    start_of_means: float = 0.0
    losses: float | None = None
    possible: tuple[str, ...] = ()
    checks: list[Check] = field(default_factory=list)
    comparisons: list[FlatComparison] = field(default_factory=list)
    points: dict[str, list[Point]] = field(default_factory=lambda: {"objective": [], "mean_of": []})

    def result(self) -> Audit:
        """Run the laws, structure by structure, and settle the tests."""
        world = torch.get_rng_state()
        try:
            for structure in self.structures:
                self._laws(structure)
            # Compilation is over now, and does not count.
            self.start_of_means = time.monotonic()
            for structure in self.structures:
                self._means(structure)
            if not self.subject.estimator.unbiased and self.reference is None:
                self.checks.append(Check("objective", "", "skipped", NO_CLAIM))
            checks, tests = settled(self.checks, self.effort.alpha)
            checks, seen = self._explained(checks)
            notes = self._notes()
        finally:
            torch.set_rng_state(world)
        return Audit(
            subject=self.subject.title,
            declared=self.subject.declared,
            checks=tuple(checks),
            comparisons=tuple(self.comparisons),
            alpha=self.effort.alpha,
            tests=tests,
            losses=self.losses,
            seed=self.effort.seed,
            seconds=time.monotonic() - self.start,
            seen=tuple(seen),
            possible=self.possible,
            notes=tuple(notes),
        )

    def _explained(self, checks: list[Check]) -> tuple[list[Check], list[str]]:
        """The causes of wrong means, and what was seen where there is none; nothing where another law already spoils them."""
        violated, seen = {check.law for check in checks if check.status == "violated"}, []
        for law, points in self.points.items():
            if law not in violated or not points or violated & set(SPOILING):
                continue
            found = explain([self._with_losses(point, self.losses) for point in points], functools.partial(self._changed, law))
            if not found.cause:
                cause, likely = self._dissected(law)
                cause = "; ".join(filter(None, (cause, self._switch(law))))
                found = Explanation(cause) if cause else replace(found, likely=(*found.likely, *likely)[:2])
            checks = [replace(check, cause=found.cause) if (check.law, check.status) == (law, "violated") else check for check in checks]
            meant = "" if found.parallel or law == "mean_of" else self._if_meant()
            seen += [found.seen + meant] if found.seen else []
            self.possible += found.likely
        return checks, seen

    def _if_meant(self) -> str:
        """What to declare where the bias is no mistake."""
        if self.subject.is_function:
            return "; if a bias is meant: --biased"
        return f"; if a bias is meant, {to_change(self.subject.estimator, 'unbiased', 'unbiased: ClassVar[bool] = False')}"

    @staticmethod
    def _with_losses(point: Point, losses: float | None) -> Point:
        return replace(point, setting=replace(point.setting, losses=losses))

    def _changed(self, law: str, option: str) -> list[Point]:
        """What the law finds on the first structure with another value of an option; nothing where there is none that it takes."""
        try:
            own, reference = varied(self._fresh(), option), self.reference
            if reference is not None and dict(numbers(reference)).get(option) == self.subject.numbers().get(option):
                reference = varied(reference, option)
        except Exception:  # another value may be out of its range
            return []
        return self._seen_with(law, own, reference)

    def _switch(self, law: str) -> str:
        """The option that is the cause: with another value of it the means of the first structure are right; empty where there is none."""

        def seen(estimator: Estimator[Any]) -> list[Point]:
            return self._seen_with(law, estimator, self.reference, replicates=65_536)

        others = switched(self._fresh())
        found = seen(self._fresh()) if others else []
        right = [text for text, estimator in others if corrected(found, seen(estimator))]
        names = " or ".join(dict.fromkeys(text.partition("=")[0] for text in right))
        return f"with {' or '.join(right)} the mean is right: what is wrong is what the option {names} does" if right else ""

    def _notes(self) -> list[str]:
        """Warnings: estimates that are mostly 0, and a mean that is not that of the registered twin."""
        zero = [(row.zero_rate or 0.0, row.where) for row in self.comparisons]
        share, where = max(zero, default=(0.0, ""))
        notes = [f"{share:.0%} of the estimates are exactly 0 ({where})"] if share > MOSTLY else []
        if not self.subject.estimator.unbiased and self.reference is None:
            with contextlib.suppress(Exception):  # the estimator may be anybody's
                notes += self._beside_twin()
        return notes

    def _beside_twin(self) -> Iterator[str]:
        """The means of both on the first structure."""
        twin = twin_of(replace(self.subject, estimator=self._random()), self.structures[0], self.effort)
        if twin is None:
            return
        name = twin.estimator.name
        work = replace(self, reference=twin.estimator, checks=[], comparisons=[], points={law: [] for law in self.points})
        checks = settled(list(work._same_mean(self.structures[0])), self.effort.alpha)[0]
        wrong = [check for check in checks if check.status == "violated"]
        if not wrong:
            if checks:
                yield f"its mean is that of {name}, the registered estimator that it resembles most ({twin.reason})"
            return
        points = [self._with_losses(point, self.losses) for point in work.points["mean_of"]]
        found = explain(points, functools.partial(work._changed, "mean_of"))
        yield (
            f"its mean is not that of {name}, the registered estimator that it resembles most ({twin.reason}): {wrong[0].detail}; "
            f"{found.cause or found.seen}; if it should be, --mean-of {name} makes that a law"
        )

    def _dissected(self, law: str) -> tuple[str, tuple[str, ...]]:
        """The cause that shows if losses are changed one by one, else the two most likely ones."""
        objective, noise = self.subject.estimator.objective, getattr(self.subject.estimator, "noise", Gumbel())
        counts = any("sample" in name for name in self.subject.numbers())
        with contextlib.suppress(Exception):  # the estimator may be anybody's
            if law == "objective" and objective == "expected":
                return cause_by_intervention(self._fresh(), self.structures[0], has_count=counts)
            if law == "objective" and objective == "perturbed" and isinstance(noise, SmoothNoise):
                return cause_of_noise(self._fresh(), self.structures[0], noise), ()
        return "", ()

    def _seen_with(self, law: str, estimator: Estimator[Any], reference: Estimator[Any] | None, replicates: int = 4096) -> list[Point]:
        """What a law finds of another estimator on the first structure; nothing where it cannot be had."""
        structure, most = self.structures[0], max(replicates, 16_384)
        effort = replace(self.effort, first=replicates, most=most, seconds=1.5)
        work = replace(self, effort=effort, structures=[structure], checks=[], comparisons=[], points={name: [] for name in self.points})
        try:
            work.subject, work.reference = replace(self.subject, estimator=estimator), reference
            losses = observed(work._fresh(), structure).loss_evaluations
            for _ in work._claims(structure) if law == "objective" else work._same_mean(structure):
                pass
        except Exception:  # another value may be out of its range, or dear
            return []
        return [self._with_losses(point, losses) for point in work.points[law]]

    def _fresh(self) -> Estimator[Any]:
        """The estimator as it was handed in: a law may have changed what the last one saw. What cannot be copied is shared."""
        try:
            return copy.deepcopy(self.subject.estimator)
        except Exception:  # the estimator may hold anything
            return self.subject.estimator

    def _laws(self, structure: Structure) -> None:
        """What needs a few calls only."""
        contract = not self.subject.is_function
        self._keep("shapes", structure, lambda: shape_checks(self._fresh, structure, has_value=contract))
        if self.checks and (self.checks[-1].law, self.checks[-1].status) == ("finite", "violated"):
            return  # nothing follows from comparing NaN
        self._keep("behaviour", structure, lambda: behaviour_checks(self._fresh, structure))
        self._keep("finite", structure, lambda: finite_checks(self._fresh, structure))
        if not self._spoilt(structure):
            self._keep("batch", structure, lambda: batch_checks(self._fresh, structure, seed=self.effort.seed, alpha=self.effort.alpha))
        self._keep("jacobian", structure, lambda: jacobian_check(self.subject, self._fresh, structure))
        self._keep("sign", structure, lambda: [sign_check(self._fresh, structure, self.effort)])
        if contract:
            self._keep("evaluations", structure, lambda: declaration_checks(self._fresh, structure))
            self._keep("parameters", structure, lambda: [parameter_check(self._fresh, structure)])
        if self.losses is None:
            self._keep("evaluations", structure, lambda: self._count(structure))

    def _spoilt(self, structure: Structure) -> bool:
        """Whether two calls of one seed differ here anyway, so that nothing follows from comparing them."""
        return any(
            check.where == structure.name and check.status == "violated" and check.law in ("global_random", "state")
            for check in self.checks
        )

    def _count(self, structure: Structure) -> Iterator[Check]:
        ledger = observed(self._fresh(), structure)
        self.losses = ledger.loss_evaluations
        yield from ()

    def _means(self, structure: Structure) -> None:
        """What takes replicates, or all samples."""
        if time.monotonic() - self.start_of_means > self.seconds:
            self.checks.append(Check("objective", structure.name, "undecided", "no time was left for it"))
            return
        self._keep("objective", structure, lambda: self._claims(structure))
        self._keep("mean_of", structure, lambda: self._same_mean(structure))
        self._keep("comparison", structure, lambda: self._compare(structure))

    def _claims(self, structure: Structure) -> Iterable[Check]:
        estimator, points = self.subject.estimator, self.points["objective"]
        if not estimator.unbiased or estimator.objective == "argmax":
            return []
        if estimator.objective == "expected":
            return expected_checks(self.subject, self._random, structure, self.effort, points)
        if estimator.objective == "perturbed":
            return perturbed_checks(self.subject, self._random, structure, self.effort, points)
        return relaxed_checks(self.subject, self._random, structure, points)

    def _same_mean(self, structure: Structure) -> Iterable[Check]:
        reference = self.reference
        if reference is None or reference.incompatibility(structure.oracle, structure.event) is not None:
            return []
        return same_mean_checks(self.subject, self._random, reference, structure, (self.effort, self.points["mean_of"], "mean_of"))

    def _random(self) -> Estimator[Any]:
        """The estimator, whose mean is not taken for a single estimate where it is only said to be deterministic."""
        estimator = self._fresh()
        if estimator is not self.subject.estimator and any(
            check.law == "deterministic" and check.status == "violated" for check in self.checks
        ):
            object.__setattr__(estimator, "deterministic", False)
        return estimator

    def _compare(self, structure: Structure) -> Iterator[Check]:
        self.comparisons.append(compare(self.subject, self._random, structure, self.effort, self.losses))
        yield from ()

    def _keep(self, law: str, structure: Structure, checks: Callable[[], Iterable[Check]]) -> None:
        """The checks of a law; an exception of the estimator is one of them."""
        try:
            for check in checks():
                self.checks.append(check)
        except NonFiniteError as error:
            self.checks.append(Check("finite", structure.name, "violated", str(error)))
        except Exception as error:  # the estimator may be anybody's
            text = " ".join(str(error).split())
            self.checks.append(Check(law, structure.name, "crashed", f"it raised {type(error).__name__}: {text}"[:300], _raised_at(error)))


def _raised_at(error: Exception) -> str:
    """The last line of the traceback, where that helps."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
