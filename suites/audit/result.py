"""Results of an audit: one check per law and structure, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["holds", "violated", "undecided", "crashed", "skipped"]
"""Of one check. ``violated`` is proven: exactly, or by a test at the error rate of the audit."""

Verdict = Literal["right", "wrong", "misdeclared", "crashed", "undecided", "consistent"]

EXIT_CODES: dict[Verdict, int] = {"right": 0, "consistent": 0, "wrong": 1, "misdeclared": 1, "crashed": 3, "undecided": 0}
"""Of ``structgrad audit``; ``--strict`` makes ``undecided`` 4."""

DECLARATIONS = ("evaluations", "needs", "hull", "deterministic")
"""Laws of what an estimator says of itself; its estimates may be right all the same."""


@dataclass(frozen=True)
class Check:
    """One law on one structure; ``skipped`` where the law does not apply to what is declared.

    Attributes:
        law: its name. ``where``: the structure and the scores; empty where a law is about all.
        status: what came out. ``detail``: one sentence with the numbers.
        cause: what most likely explains a violation; empty where nothing fits. ``remedy``: the line to change, of a declaration.
        tier: ``exact`` has no error rate; ``test`` shares that of the audit.
        p_value: of a test, before the correction for their number.
        unproven: the end of the detail where the test does not reject.
    """

    law: str
    where: str
    status: Status
    detail: str = ""
    cause: str = ""
    tier: Literal["exact", "test"] = "exact"
    p_value: float | None = None
    remedy: str = ""
    unproven: str = ""


@dataclass(frozen=True)
class FlatComparison:
    """Estimates on one structure at flat scores, beside the target and beside REINFORCE and leave-one-out for the same number of losses.

    Attributes:
        where: the structure. ``tier``: ``exact`` or ``mc``. ``reference``: whose gradient the numbers are about.
        gain, relative_bias, cosine: of the mean, each ``(value, low, high)``; bounds are None where the value is exact.
        relative_variance: trace of the covariance over the squared norm of the target.
        to_reinforce, to_leave_one_out: ratios of variances at equal gain and as many losses; None where there is nothing to compare.
        per_second: the second of these at equal seconds, as far as one moment on this machine tells.
        zero_rate: share of estimates that are exactly 0.
    """

    where: str
    tier: Literal["exact", "mc"]
    reference: str
    gain: tuple[float | None, float | None, float | None]
    relative_bias: tuple[float | None, float | None, float | None]
    cosine: tuple[float | None, float | None, float | None]
    relative_variance: float | None
    to_reinforce: float | None
    to_leave_one_out: float | None
    per_second: float | None
    zero_rate: float | None


@dataclass(frozen=True)
class Audit:
    """The answer to "is this estimator what it says?".

    Attributes:
        subject: its name. ``declared``: what it says of itself.
        checks: one per law and structure. ``comparisons``: one per structure.
        alpha: the chance, for an estimator without a fault, of any false violation. ``tests``: how many tests share it.
        losses: evaluations of the loss that one estimate was seen to take; a gradient counts as two more.
        seed, seconds: of the audit.
        seen: what is known of wrong means that no cause explains.
        possible: the two most likely causes, if none is certain.
        notes: warnings that are no violations: estimates that are mostly 0, a mean that is not that of the registered twin.
    """

    subject: str
    declared: dict[str, Any]
    checks: tuple[Check, ...]
    comparisons: tuple[FlatComparison, ...]
    alpha: float
    tests: int
    losses: float | None
    seed: int
    seconds: float
    seen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``wrong`` where any law is violated, ``misdeclared`` where only those of its declarations are.

        ``crashed`` where the estimator raised, ``undecided`` where a test could not tell. ``consistent`` where a bias is declared, so that
        no law holds the mean to anything; ``right`` where one does.
        """
        statuses = {check.status for check in self.checks}
        if "violated" in statuses:
            return "misdeclared" if all(check.law in DECLARATIONS for check in self.violations) else "wrong"
        if "crashed" in statuses:
            return "crashed"
        if "undecided" in statuses:
            return "undecided"
        held = self.declared["unbiased"] or any(check.law == "mean_of" for check in self.checks)
        return "right" if held else "consistent"

    @property
    def violations(self) -> tuple[Check, ...]:
        """The checks that speak against the estimator."""
        return tuple(check for check in self.checks if check.status == "violated")

    @property
    def causes(self) -> tuple[str, ...]:
        """The likely causes of all violations, each once: what spoils other laws comes first, then the most frequent."""
        found = [(check.law, check.cause) for check in self.violations if check.cause]
        causes = [cause for _, cause in found]
        laws = {cause: min(_place(law) for law, other in found if other == cause) for cause in causes}
        return tuple(sorted(dict.fromkeys(causes), key=lambda cause: (laws[cause], -causes.count(cause))))

    @property
    def remedies(self) -> tuple[str, ...]:
        """The lines to change of all wrong declarations, each once."""
        return tuple(dict.fromkeys(check.remedy for check in self.violations if check.remedy))

    def exit_code(self, *, strict: bool = False) -> int:
        """0 right or consistent (or undecided), 1 wrong or misdeclared, 3 it raised; with ``strict``, 4 undecided."""
        return 4 if strict and self.verdict == "undecided" else EXIT_CODES[self.verdict]

    def raise_if_wrong(self) -> None:
        """AssertionError with every violation and every exception: one line for a test of one's own."""
        bad = [check for check in self.checks if check.status in ("violated", "crashed")]
        if bad:
            raise AssertionError(f"{self.subject} is {self.verdict}:\n" + "\n".join(sentence(check) for check in bad))


SPOILING = ("global_random", "inputs", "state", "rows", "batch", "jacobian")
"""Laws whose violation makes others fail too, in this order."""


def _place(law: str) -> int:
    return SPOILING.index(law) if law in SPOILING else len(SPOILING)


def sentence(check: Check) -> str:
    """A check in one line.

    Example:
        >>> sentence(Check("seeds", "categorical", "violated", "two calls with one seed differ", "an unseeded draw"))
        'seeds [categorical]: two calls with one seed differ; likely cause: an unseeded draw'
    """
    place = f" [{check.where}]" if check.where else ""
    more = f"; likely cause: {check.cause}" if check.cause else f"; to change: {check.remedy}" if check.remedy else ""
    return f"{check.law}{place}: {check.detail}{more}"


def worst(checks: Iterable[Check]) -> Status:
    """The status of several checks of one law: the worst of them; ``skipped`` where there is none."""
    order: tuple[Status, ...] = ("violated", "crashed", "undecided", "holds", "skipped")
    found = {check.status for check in checks}
    return next((status for status in order if status in found), "skipped")
