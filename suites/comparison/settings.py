"""Settings of a gate: level, margins and reactions, from a TOML file."""

from collections.abc import Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..metrics import METRICS, Rule, rule_of
from ..trust import toml_of

Reaction = Literal["fail", "warn"]  # to a verdict; there is no ``pass``: a missing measurement is never accepted silently

PATTERNS = ("suite", "problem", "stage", "instance", "estimator", "metric", "setting")  # columns that an override selects by

Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Margins(_Table):
    """Changes of the rule of a metric; see `structgrad.suites.metrics.Rule`."""

    gated: bool | None = None
    minimum_change: Margin | None = None
    floor: Margin | None = None
    equivalence: Margin | None = None
    ceiling: Margin | None = None
    tolerance: Margin | None = None


class Override(Margins):
    """Another rule for the numbers that match all patterns."""

    suite: str | None = None
    problem: str | None = None
    stage: str | None = None
    instance: str | None = None
    estimator: str | None = None
    metric: str | None = None
    setting: str | None = None

    @model_validator(mode="after")
    def _has_patterns(self) -> Self:
        if all(getattr(self, name) is None for name in PATTERNS):
            raise ValueError(f"expected at least one pattern, a text for one of {', '.join(PATTERNS)}")
        return self


class Settings(_Table):
    """The table ``[gate]`` of a configuration."""

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.01  # chance of any false alarm on unchanged code, over all tests of a gate together
    minimum_bias: Margin = 0.005
    """The smallest sampled bias, as a share of ‖g‖, that breaks the claim to be unbiased; an exact bias always does."""
    on_missing: Reaction = "fail"
    on_changed: Reaction = "fail"
    on_inconclusive: Reaction = "warn"
    on_incomparable: Reaction = "warn"
    metric: dict[str, Margins] = {}
    override: list[Override] = []  # the last one that matches counts

    @field_validator("metric")
    @classmethod
    def _are_compared(cls, metrics: dict[str, Margins]) -> dict[str, Margins]:
        for name in metrics:
            if name not in METRICS:
                from ...oracles.registry import hint  # loads torch

                raise ValueError(f"{name!r} is no metric; {hint(name, METRICS)}")
            if METRICS[name].rule.role == "never":
                raise ValueError(f"{name!r} is never compared between runs; expected another metric")
        return metrics

    def rules(self, keys: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """The rule of each number, a column per field of `Rule`; and the overrides that match no number."""
        codes, names = pd.factorize(keys["metric"])
        known = [replace(rule_of(name), **self.metric.get(name, Margins()).model_dump(exclude_none=True)) for name in names]
        rules = pd.DataFrame(known, columns=[field.name for field in fields(Rule)]).iloc[codes].reset_index(drop=True)
        idle = []
        for number, override in enumerate(self.override, start=1):
            matches, changes = np.ones(len(keys), bool), override.model_dump(exclude_none=True)
            patterns = {name: changes.pop(name) for name in PATTERNS if name in changes}
            for column, pattern in patterns.items():
                matches &= keys[column].isin([name for name in keys[column].unique() if selects(pattern, name)]).to_numpy()
            for name, value in changes.items():
                rules.loc[matches, name] = value
            if not matches.any():
                shown = ", ".join(f"{name} = {pattern!r}" for name, pattern in patterns.items())
                idle.append(f"[[gate.override]] number {number} ({shown})")
        return rules, idle


def selects(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name, which may have brackets of its own."""
    return pattern == name or fnmatchcase(name, pattern)


def read_settings(content: Mapping[str, Any]) -> Settings:
    """Settings from the content of a TOML file; tables other than ``gate`` are ignored."""
    if "gate" not in content:
        raise ValueError(
            f"the configuration got {', '.join(map(repr, content)) or 'nothing'}; expected a table [gate], an empty one for the defaults"
        )
    try:
        return Settings.model_validate(content["gate"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ["gate", *first["loc"]]
        where = "".join(f"[{one + 1}]" if isinstance(one, int) else f".{one}" for one in place)[1:]
        if first["type"] == "extra_forbidden":
            tables: dict[str, type[_Table]] = {"metric": Margins, "override": Override}
            kind: type[_Table] = tables.get(str(place[1]), Settings) if len(place) > 2 else Settings
            from ...oracles.registry import hint  # loads torch

            raise ValueError(f"{where} is no setting; {hint(str(place[-1]), kind.model_fields)}") from None
        if first["type"] == "value_error":
            raise ValueError(f"{where}: {first['ctx']['error']}") from None
        expected = "a table" if first["type"] in ("model_type", "dict_type") else first["msg"].removeprefix("Input should be ")
        expected = f"a number {expected}" if first["type"].startswith(("less", "greater")) else expected
        raise ValueError(f"{where} got {first['input']!r}; expected {expected}") from None


def load_settings(path: Path | None) -> Settings:
    """Settings from a TOML file; the defaults without one."""
    if path is None:
        return Settings()
    try:
        return read_settings(toml_of(path))
    except ValueError as error:  # also from TOML
        raise ValueError(f"{path}: {str(error)[:1000]}") from error
