"""Subjects of an audit: names on a command line, estimators of the contract, and plain functions that return gradients; and its results.

There is one check per law and structure, one error rate for all tests, and the verdict.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ...estimators import ESTIMATORS, Estimator, make_estimator
from ...estimators.base import Objective
from ...estimators.own import OWN_FORMS
from ...oracles.registry import unknown
from ..base import NonFiniteError, estimator_name
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


@dataclass(frozen=True)
class Subject:
    """An estimator under audit, and its name."""

    estimator: Estimator[Any]
    title: str

    @property
    def declared(self) -> dict[str, Any]:
        """Its declarations."""
        estimator = self.estimator
        known = {"objective": estimator.objective, "unbiased": estimator.unbiased, "scale": estimator.scale}
        if isinstance(estimator, OWN_FORMS):
            return known
        cost = {name: value for name, value in vars(estimator.evaluations()).items() if value}
        needs = [need.__name__ for need in estimator.needs]
        return known | {"deterministic": estimator.deterministic, "inside_hull": estimator.inside_hull, "needs": needs, "evaluations": cost}


def subject_of(given: Any, **options: Any) -> Subject:
    """The subject of an argument of `make_estimator`, with its options that are not None: a name, and the declarations of a function."""
    declared = {key: value for key, value in options.items() if value is not None}
    name, known = declared.get("name"), [each for each in get_args(Objective) if each != "supervised"]
    if declared.get("objective", known[0]) not in known:
        raise ValueError(f"`audit` {unknown(declared['objective'], known, 'objective')}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
    found = make_estimator(given, **declared)
    if name or isinstance(given, str):
        return Subject(found, name or given)
    title = repr(found) if dataclasses.is_dataclass(found) else type(found).__name__
    title = estimator_name(found) if ESTIMATORS.get(found.name) is type(found) else title
    return Subject(found, found.name if isinstance(found, OWN_FORMS) else title)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin has none
        return {}
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


def numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Numeric options by name, and those of parts, such as ``noise.scale``; of a function, its defaults. Wrong factors may be these."""
    if isinstance(value, OWN_FORMS):
        items = _defaults(value.function)
    elif dataclasses.is_dataclass(value):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        items = dict(getattr(value, "__dict__", {}))
    found: dict[str, float] = {}
    for name, item in items.items():
        if isinstance(item, int | float) and not isinstance(item, bool):
            found[prefix + name.rstrip("_")] = float(item)
        elif dataclasses.is_dataclass(item):
            found |= numbers(item, f"{prefix}{name}.")
    return found


def with_other_value(estimator: Any, option: str) -> Any:
    """The estimator with another value of a numeric option, such as ``num_samples`` or ``noise.scale``: one more, or a fifth less."""
    if isinstance(estimator, OWN_FORMS):
        value = _defaults(estimator.function)[option]
        other = value + 1 if isinstance(value, int) else 0.8 * value
        function: Any = functools.partial(estimator.function, **{option: other})
        return dataclasses.replace(estimator, function=function)
    name, _, rest = option.partition(".")
    known = [field.name for field in dataclasses.fields(estimator) if field.init] if dataclasses.is_dataclass(estimator) else []
    field = next(one for one in (name, f"{name}_") if one in known)
    value = getattr(estimator, field)
    other = with_other_value(value, rest) if rest else value + 1 if isinstance(value, int) else 0.8 * value
    return dataclasses.replace(estimator, **{field: other})


def with_neutral_options(estimator: Any) -> Iterator[tuple[str, Any]]:
    """``option=value`` and the estimator with each switch the other way, and with each real number at 0 and at 1.

    At these values a correction, a weight or a bound does nothing. Whole numbers are sizes, and stay.
    """
    own = dataclasses.is_dataclass(estimator) and not isinstance(estimator, OWN_FORMS)
    for field in dataclasses.fields(estimator) if own else []:
        value = getattr(estimator, field.name) if field.init else None
        others = [not value] if isinstance(value, bool) else [v for v in (0.0, 1.0) if v != value] if isinstance(value, float) else []
        for other in others:
            text = f"{field.name.rstrip('_')}={other if isinstance(other, bool) else format(other, 'g')}"
            with contextlib.suppress(ValueError, TypeError):  # out of its range
                yield text, dataclasses.replace(estimator, **{field.name: other})


def to_change(estimator: Estimator[Any], name: str, code: str) -> str:
    """The class in which to declare a property, and the right line."""
    kind = type(estimator)
    owner = next(one for one in kind.__mro__ if name in vars(one))
    return (
        f"{kind.__name__}: `{code}`" if owner is kind else f"add to {kind.__name__}, which inherits `{name}` of {owner.__name__}: `{code}`"
    )
