"""Facts of an estimator: its declarations, its options, its cost, and which structures it serves."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from typing import Any

from .listing import Record, estimator_record

_BITS = "categories[n=4,t=2]"
"""Some estimators serve bits alone, which no named problem has."""


def estimator(name: str) -> Record:
    """An estimator, or one with options, or a class of one's own.

    Raises:
        ValueError: a name or an option that is unknown.
    """
    from ....estimators import CONTENDERS, SUPERVISED, make_estimator
    from ....oracles.registry import imported, parse

    head, options = parse(name)
    kind: Any = imported(head, "estimator") if ":" in head else CONTENDERS[head]
    required = [field.name for field in dataclasses.fields(kind) if _is_required(field) and field.name not in options]
    made = None if required else make_estimator(name)
    fits = _fits(made) if made is not None else {}
    serving = [problem for problem, reason in fits.items() if reason is None]
    return {
        **estimator_record(head, kind),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "inside_hull": kind.inside_hull,
        "options": option_records(kind),
        "scale": None if made is None else made.scale,
        "evaluations": {} if made is None else {key: value for key, value in vars(made.evaluations()).items() if value},
        "fits": serving,
        "does_not_fit": {problem: reason for problem, reason in fits.items() if reason is not None},
        "documentation": inspect.cleandoc(kind.__doc__ or ""),
        "example": shlex.join(
            ["structgrad", "learn", "parsing", "-e", name]
            if head in SUPERVISED
            else ["structgrad", "run", "bias", "-e", name, *(["-p", serving[0]] if serving else [])]
        ),
    }


def option_records(kind: Any) -> list[Record]:
    """The options of a dataclass as the command line takes them: name, default, and type and range in words."""
    from ....oracles.options import declared

    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    kinds = declared(kind) if fields else {}
    return [
        {
            "name": field.name.rstrip("_"),
            "default": None if _is_required(field) else repr(_default(field)),
            "required": _is_required(field),
            "expected": str(kinds[field.name]),
        }
        for field in fields
        if field.init
    ]


def _is_required(field: Any) -> bool:
    return bool(field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)


def _default(field: Any) -> Any:
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()


def _fits(estimator: Any) -> dict[str, str | None]:
    """For every built-in problem, and for bits: why the estimator cannot be measured there, None where it can."""
    from ....suites.base import pairing
    from ....suites.problems import LOSSES
    from ....suites.problems.regimes import REGIMES, regime_items
    from ....suites.problems.sized import sized_regime

    reasons: dict[str, str | None] = {}
    for name, regime in {**REGIMES, _BITS: sized_regime(_BITS)}.items():
        shape = tuple(regime_items(name, 0, regime).direction("h=0.95", 0).shape)
        claims: Any = LOSSES[regime.loss]  # a loss itself would need an item
        skip = pairing(estimator, regime.oracle, claims, shape)
        reasons[name] = None if skip is None else skip.reason
    return reasons
