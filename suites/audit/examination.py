"""The audit: all laws on small structures, tests under one error rate, one verdict."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from .comparison import compare
from .confirmation import settled
from .laws.batching import batch_checks
from .laws.behaviour import behaviour_checks
from .laws.declarations import declaration_checks, observed, parameter_check
from .laws.direction import jacobian_check, sign_check
from .laws.objective import expected_checks
from .laws.own_objective import relaxed_checks
from .laws.shapes import finite_checks, shape_checks
from .laws.two_samples import perturbed_checks, same_mean_checks
from .means import AuditEffort
from .places import Structure, structures_for
from .result import Audit, Check, Comparison
from .subject import Subject, subject_of

QUICK: dict[str, Any] = {"first": 4096, "most": 16_384, "seconds": 1.5, "structures": 2}
"""What ``quick`` changes."""


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
    checks: list[Check] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

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
        finally:
            torch.set_rng_state(world)
        if not self.subject.estimator.unbiased and self.reference is None:
            self.checks.append(Check("objective", "", "skipped", NO_CLAIM))
        checks, tests = settled(self.checks, self.effort.alpha)
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
        )

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
        self.losses = observed(self._fresh(), structure).loss_evaluations
        yield from ()

    def _means(self, structure: Structure) -> None:
        """What takes replicates, or all samples."""
        if time.monotonic() - self.start_of_means > self.seconds:
            self.checks.append(Check("objective", structure.name, "undecided", "no time was left for it"))
            return
        self._keep("objective", structure, lambda: self._objective(structure))
        reference = self.reference
        if reference is not None and reference.incompatibility(structure.oracle, structure.event) is None:
            how = (self.effort, self.losses, "mean_of")
            self._keep("mean_of", structure, lambda: same_mean_checks(self.subject, self._fresh, reference, structure, how))
        self._keep("comparison", structure, lambda: self._compare(structure))

    def _objective(self, structure: Structure) -> Iterable[Check]:
        estimator = self.subject.estimator
        if not estimator.unbiased or estimator.objective == "argmax":
            return []
        if estimator.objective == "expected":
            return expected_checks(self.subject, self._fresh, structure, self.effort, self.losses)
        if estimator.objective == "perturbed":
            return perturbed_checks(self.subject, self._fresh, structure, self.effort, self.losses)
        return relaxed_checks(self.subject, self._fresh, structure, self.losses)

    def _compare(self, structure: Structure) -> Iterator[Check]:
        self.comparisons.append(compare(self.subject, self._fresh, structure, self.effort, self.losses))
        yield from ()

    def _keep(self, law: str, structure: Structure, checks: Callable[[], Iterable[Check]]) -> None:
        """The checks of a law; an exception of the estimator is one of them."""
        try:
            for check in checks():
                self.checks.append(check)
        except Exception as error:  # the estimator may be anybody's
            text = " ".join(str(error).split())
            self.checks.append(Check(law, structure.name, "crashed", f"it raised {type(error).__name__}: {text}"[:300], _raised_at(error)))


def _raised_at(error: Exception) -> str:
    """The last line of the traceback, where that helps."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
