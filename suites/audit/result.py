"""Results of an audit: one check per law and structure, one error rate for all tests, and the verdict."""

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..base import NonFiniteError
from ..measures.bias_tests import CONFIRMATION
from ..statistics.selection import holm

Status = Literal["holds", "violated", "undecided", "crashed", "skipped"]
"""``violated`` is proven: exactly, or by a test at the error rate of the audit."""

Verdict = Literal["right", "wrong", "misdeclared", "crashed", "undecided", "consistent"]

DECLARATIONS = ("evaluations", "needs", "hull", "deterministic", "parameters")  # estimates of scores may be right if these are violated
SPOILING = ("global_random", "inputs", "state", "rows", "batch", "jacobian")  # laws whose violation makes others fail too, in this order


@dataclass(frozen=True)
class Check:
    """One law on one structure, or on all if ``where`` is empty; with a p-value if it is a test."""

    law: str
    where: str
    status: Status
    detail: str = ""
    cause: str = ""
    p_value: float | None = None
    remedy: str = ""  # the line to change of a declaration
    unproven: str = ""  # the end of the detail if the test does not reject

    @property
    def sentence(self) -> str:
        """One line."""
        place = f" [{self.where}]" if self.where else ""
        more = f"; likely cause: {self.cause}" if self.cause else f"; to change: {self.remedy}" if self.remedy else ""
        return f"{self.law}{place}: {self.detail}{more}"


Bounded = tuple[float | None, float | None, float | None]  # a value and its interval; the bounds are None if the value is exact


@dataclass(frozen=True)
class FlatComparison:
    """Estimates on one structure at flat scores, relative to the gradient of the expected loss, with the share that is exactly 0."""

    where: str
    tier: Literal["exact", "mc"]
    gain: Bounded
    relative_bias: Bounded
    cosine: Bounded
    relative_variance: float | None
    zero_rate: float | None


class Judged:
    """Properties that audits of estimators and of oracles share."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """``wrong`` for any violation, else ``crashed``, ``undecided`` or ``right``."""
        statuses = {check.status for check in self.checks}
        found: dict[Status, Verdict] = {"violated": "wrong", "crashed": "crashed", "undecided": "undecided"}
        return next((verdict for status, verdict in found.items() if status in statuses), "right")

    @property
    def violations(self) -> tuple[Check, ...]:
        """The violated checks."""
        return tuple(check for check in self.checks if check.status == "violated")

    def exit_code(self, *, strict: bool = False) -> int:
        """0 no violation, 1 a violation, 3 it raised; with ``strict``, 4 undecided."""
        return {"wrong": 1, "misdeclared": 1, "crashed": 3, "undecided": 4 * strict}.get(self.verdict, 0)

    def raise_if_wrong(self) -> None:
        """AssertionError with every violation and every exception: one line for a unit test."""
        bad = [check.sentence for check in self.checks if check.status in ("violated", "crashed")]
        if bad:
            raise AssertionError(f"{self.subject} is {self.verdict}:\n" + "\n".join(bad))


@dataclass(frozen=True)
class Audit(Judged):
    """The result of testing an estimator."""

    subject: str
    declared: dict[str, Any]
    checks: tuple[Check, ...]
    comparisons: tuple[FlatComparison, ...]
    alpha: float  # the chance of any false violation among the ``tests``
    tests: int
    losses: float | None  # evaluations of the loss in one estimate; a gradient counts as two more
    seed: int
    seconds: float
    seen: tuple[str, ...] = ()  # symptoms that no cause explains
    notes: tuple[str, ...] = ()  # warnings, such as estimates that are mostly 0

    @property
    def verdict(self) -> Verdict:
        """``misdeclared`` if only declarations are violated; ``consistent`` if a bias is declared, so that no law tests the mean."""
        found = super().verdict
        if found == "wrong" and all(check.law in DECLARATIONS for check in self.violations):
            return "misdeclared"
        tested = self.declared["unbiased"] or any(check.law == "mean_of" for check in self.checks)
        return "consistent" if found == "right" and not tested else found

    @property
    def causes(self) -> tuple[str, ...]:
        """The likely causes of all violations, each once: those that spoil other laws first, then the most frequent."""
        known = [check for check in self.violations if check.cause]

        def rank(cause: str) -> tuple[int, int]:
            laws = [check.law for check in known if check.cause == cause]
            return min(SPOILING.index(law) if law in SPOILING else len(SPOILING) for law in laws), -len(laws)

        return tuple(sorted(dict.fromkeys(check.cause for check in known), key=rank))

    @property
    def remedies(self) -> tuple[str, ...]:
        """The lines to change of all wrong declarations, each once."""
        return tuple(dict.fromkeys(check.remedy for check in self.violations if check.remedy))


def check_limits(call: str, alpha: float, seed: int) -> None:
    """ValueError for a level or a seed out of range."""
    if not 0 < alpha < 1:
        raise ValueError(f"`{call}` got alpha={alpha}; expected a number between 0 and 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"`{call}` got seed={seed}; expected an integer from 0 to 2^63 - 1")


class DisagreementError(Exception):
    """A result of an operation and the expected one, in one sentence."""


def checked(law: str, where: str, checks: Callable[[], Iterable[Check]], until: float = math.inf) -> Iterator[Check]:
    """The checks of a law. An exception of the tested code is one of them, and so is the end of the time."""
    if time.monotonic() > until:
        yield Check(law, where, "undecided", "no time was left; give it more with --time")
        return
    try:
        yield from checks()
    except NonFiniteError as error:
        yield Check("finite", where, "violated", str(error))
    except DisagreementError as error:
        yield Check(law, where, "violated", str(error))
    except Exception as error:  # the tested code may raise anything
        text = f"it raised {type(error).__name__}: {' '.join(str(error).split())}"[:300]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        yield Check(law, where, "crashed", text, f"{frame.filename.rsplit('/', 1)[-1]}, line {frame.lineno}: {frame.line}")


def confirmed(test: Callable[[str, int], float], alpha: float) -> float:
    """A p-value below α must repeat with four times the replicates: ``max(p, p')²`` is below x with probability at most x.

    ``test(slot, times)`` gives the p-value on the stream of a name, with a multiple of the replicates.
    """
    first = test("first", 1)
    return max(first, test("confirmation", CONFIRMATION)) ** 2 if first < alpha else first


def settled(checks: Sequence[Check], alpha: float) -> tuple[list[Check], int]:
    """Holm's correction over all tests among some checks, and their number: those that reject are violations, others have no cause."""
    adjusted = holm({number: check.p_value for number, check in enumerate(checks) if check.p_value is not None})
    result = list(checks)
    for number, p_value in adjusted.items():
        check = checks[number]
        detail = f"{check.detail}; the test rejects, adjusted p {f'= {p_value:.1g}' if p_value else '< 1e-300'}"
        if p_value < alpha:
            result[number] = replace(check, status="violated", detail=detail, unproven="")
        else:
            result[number] = replace(check, cause="", detail=check.detail + check.unproven, unproven="")
    return result, len(adjusted)
