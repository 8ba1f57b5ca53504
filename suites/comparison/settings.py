"""Settings of a gate: level, margins, and what fails; from the defaults, a configuration, and patterns for single cells."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from ..metrics import METRICS, Rule, rule_of
from .matching import Key

Reaction = Literal["fail", "warn"]
"""What a gate does about a verdict. There is no ``pass``: what is not measured is never silently accepted."""

PATTERNS = ("suite", "problem", "stage", "instance", "estimator", "metric", "setting")
"""Columns that an override may select by."""


def selects(pattern: str, name: str) -> bool:
    """Whether a pattern is about a name, which may have brackets of its own.

    Example:
        >>> selects("subset[k=3]", "subset[k=3]"), selects("subset*", "subset[k=3]"), selects("subset", "subset[k=3]")
        (True, True, False)
    """
    return pattern == name or fnmatch.fnmatchcase(name, pattern)


@dataclass(frozen=True)
class Override:
    """Another rule for the cells that all patterns match.

    Attributes:
        patterns: by the name of a column. ``changes``: fields of the rule.
        met: the first number that it matched, so that one which matches none can be told.
    """

    patterns: Mapping[str, str]
    changes: Mapping[str, Any]
    met: list[Key] = field(default_factory=list, compare=False, repr=False)

    def matches(self, key: Key) -> bool:
        """Whether it is about a number."""
        found = all(selects(pattern, getattr(key, name)) for name, pattern in self.patterns.items())
        if found and not self.met:
            self.met.append(key)
        return found


@dataclass(frozen=True)
class Timing:
    """Of the interleaved timing of two installations.

    Attributes:
        pairs: of calls, one of each side; four times as many where these do not decide.
        minimum_change: a slowdown below it is none. ``equivalence``: one that is surely below it is none.
        problems, estimators: patterns of what is timed.
    """

    pairs: int = 40
    minimum_change: float = 0.02
    equivalence: float = 0.05
    problems: tuple[str, ...] = ("*",)
    estimators: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Settings:
    """A whole configuration.

    Attributes:
        alpha: chance of any false alarm in one gate on unchanged code, over all its tests together.
        minimum_bias: a proven bias of an estimator that claims to have none fails from this share of ‖g‖ on; an exact one always.
        on_missing, on_changed, on_inconclusive, on_incomparable: what these verdicts lead to.
        metrics: changes of the rules of metrics. ``overrides``: of single cells; the last one that matches holds.
        timing: see `Timing`.

    Example:
        >>> settings = read_settings({"gate": {"alpha": 0.05, "metric": {"gain": {"minimum_change": 0.1}}}})
        >>> settings.alpha, settings.rule(Key(*[""] * 6, "gain", *[""] * 4)).minimum_change
        (0.05, 0.1)
    """

    alpha: float = 0.01
    minimum_bias: float = 0.005
    on_missing: Reaction = "fail"
    on_changed: Reaction = "fail"
    on_inconclusive: Reaction = "warn"
    on_incomparable: Reaction = "warn"
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    timing: Timing = Timing()

    def rule(self, key: Key) -> Rule:
        """How a number is compared: the rule of its metric, with what the configuration changes."""
        rule = replace(rule_of(key.metric), **self.metrics.get(key.metric, {}))
        for override in self.overrides:
            if override.matches(key):
                rule = replace(rule, **override.changes)
        return rule


_CHANGEABLE = ("gated", "minimum_change", "floor", "equivalence", "ceiling", "tolerance")
"""Fields of a rule that a configuration may change; what is better is not a matter of taste."""

_PLAIN = ("alpha", "minimum_bias", "on_missing", "on_changed", "on_inconclusive", "on_incomparable")


def read_settings(content: Mapping[str, Any]) -> Settings:
    """Settings from the content of a TOML file; tables other than ``gate`` are somebody else's.

    Raises:
        ValueError: one sentence on the first key or value that cannot be, with the nearest known key.

    Example:
        >>> read_settings({"gate": {"alpa": 0.01}})
        Traceback (most recent call last):
        ValueError: [gate] got the key 'alpa'; did you mean alpha?
    """
    if "gate" not in content:
        raise ValueError(
            f"the configuration got {', '.join(map(repr, content)) or 'nothing'}; expected a table [gate], an empty one for the defaults"
        )
    table = content["gate"]
    if not isinstance(table, Mapping):
        raise ValueError(f"the configuration got gate = {table!r}; expected a table [gate]")
    _known("[gate]", table, (*_PLAIN, "metric", "override", "timing"))
    plain = {name: _plain("[gate]", name, table[name]) for name in _PLAIN if name in table}
    return Settings(
        **plain,
        metrics={name: _metric(name, changes) for name, changes in _table("[gate.metric]", table.get("metric", {})).items()},
        overrides=tuple(_override(number, item) for number, item in enumerate(_list(table.get("override", [])), start=1)),
        timing=_timing(_table("[gate.timing]", table.get("timing", {}))),
    )


def _known(where: str, table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in table:
        if name not in names:
            from ...oracles.registry import hint

            raise ValueError(f"{where} got the key {name!r}; {hint(name, names)}")


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} got {value!r}; expected a table")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"[gate] got override = {value!r}; expected tables [[gate.override]]")
    return value


def _plain(where: str, name: str, value: Any) -> Any:
    if name.startswith("on_"):
        if value not in get_args(Reaction):
            raise ValueError(f"{where} got {name} = {value!r}; expected 'fail' or 'warn': what is not decided is never a silent pass")
        return value
    number = _number(where, name, value)
    if name == "alpha" and not 0 < number < 1:
        raise ValueError(f"{where} got alpha = {number:g}; expected a number between 0 and 1")
    return number


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{where} got {name} = {value!r}; expected a finite number that is not negative")
    return float(value)


def _metric(name: str, changes: Any) -> dict[str, Any]:
    where = f"[gate.metric.{name}]"
    if name not in METRICS:
        from ...oracles.registry import hint

        raise ValueError(f"[gate.metric] got the metric {name!r}; {hint(name, METRICS)}")
    if METRICS[name].rule.role == "never":
        raise ValueError(f"{where} is never compared between runs; expected another metric (times are compared by --timing-base)")
    return _changes(where, _table(where, changes))


def _changes(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    _known(where, table, _CHANGEABLE)
    return {name: _gated(where, value) if name == "gated" else _number(where, name, value) for name, value in table.items()}


def _gated(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where} got gated = {value!r}; expected true or false")
    return value


def _override(number: int, item: Any) -> Override:
    where = f"[[gate.override]] number {number}"
    table = _table(where, item)
    _known(where, table, (*PATTERNS, *_CHANGEABLE))
    patterns = {name: table[name] for name in PATTERNS if name in table}
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns.values()):
        raise ValueError(f"{where} got {dict(table)!r}; expected at least one pattern, a text for one of {', '.join(PATTERNS)}")
    return Override(patterns, _changes(where, {name: value for name, value in table.items() if name not in PATTERNS}))


def _timing(table: Mapping[str, Any]) -> Timing:
    where = "[gate.timing]"
    _known(where, table, tuple(item.name for item in fields(Timing)))
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name in ("problems", "estimators"):
            if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
                raise ValueError(f"{where} got {name} = {value!r}; expected a list of patterns")
            found[name] = tuple(value)
        else:
            found[name] = _number(where, name, value)
    if found.get("pairs", 40) < 40:
        raise ValueError(f"{where} got pairs = {found['pairs']:g}; expected at least 40, which an interval of 99 % needs")
    return Timing(**{**found, "pairs": int(found.get("pairs", 40))})
