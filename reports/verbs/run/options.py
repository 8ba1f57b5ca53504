"""Options of ``structgrad run``: where scores come from, which suites and how much work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....oracles import registry
from ....suites.base import LEARNT, TASK
from ....suites.measures import SUITES
from ....suites.measures.suite import EFFORTS, Effort
from ....suites.problems import default_data, is_sized
from ....suites.problems.named import REAL_PROBLEMS, available
from ....suites.problems.score_files import ARRAYS, Convention, ScoreFile
from ....suites.running.planning.grid import grid, suites_of
from ....suites.running.planning.plan import Plan
from ....suites.running.planning.presets import PRESETS
from ....suites.running.progress import seconds_within

CONVENTION = tuple(field.name for field in dataclasses.fields(Convention))
KEYS = ARRAYS
"""What ``--field`` may say of a score file."""

FILE_ORACLE = "linear_chain"
"""What a score file scores, unless told otherwise."""


def score_source(data: Path | None, *, builtin: bool) -> str | None:
    """The folder of score files: the given one, none, or the one that is found."""
    if data is not None and builtin:
        raise ValueError("`run` got both --data and --builtin; give one of them")
    if data is None:
        return None if builtin else default_data()
    if not any((data / f"{name}.npz").is_file() for name in REAL_PROBLEMS):
        first = next(iter(REAL_PROBLEMS))
        raise ValueError(
            f"--data got {str(data)!r}, which holds none of the {len(REAL_PROBLEMS)} score files ({first}.npz and so on); "
            "expected their folder, or choose --builtin"
        )
    return str(data)


def problems_of_folder(data: Path | None) -> tuple[str, ...]:
    """Who names a folder of score files wants its problems; empty where none is named."""
    return () if data is None else tuple(name for name in available(str(data)) if name in REAL_PROBLEMS)


def problems_of_oracle(oracle: str | None) -> tuple[str, ...]:
    """The problem that a structure with its size is, where there is no score file.

    Raises:
        ValueError: a structure without a size.
    """
    if oracle is None:
        return ()
    if not is_sized(oracle):
        raise ValueError(
            f"--oracle got {oracle!r} without --file; expected a size, such as 'subset[n=10,k=5]' or 'spanning_tree[n=5]', "
            "to measure on built-in scores"
        )
    return (oracle,)


def check_together(given: Mapping[str, Any]) -> None:
    """ValueError with the first option that says nothing beside the others, for it would be ignored in silence."""

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    for name in ("problem", "stage", "data", "builtin"):
        if given["file"] and given[name]:
            raise ValueError(f"`run` got both --file and {flag(name)}; give one of them, because a score file is itself a problem")
    for name, other, wanted in (("field", "--file FILE", given["file"]), ("address", "--engine ray", given["engine"] == "ray")):
        if given[name] and not wanted:
            raise ValueError(f"`run` got {flag(name)} without {other}; expected both, or neither")
    check_loudness("run", quiet=given["quiet"], verbose=given["verbose"])
    if given["quick"] and given["preset"] not in (None, "quick"):
        raise ValueError(f"`run` got both --quick and --preset {given['preset']}; give one of them")
    if given["fresh"] and given["rerun"]:
        raise ValueError(f"`run` got both --fresh and --rerun {given['rerun']}; give one of them")


def check_loudness(verb: str, *, quiet: bool, verbose: bool) -> None:
    """ValueError where both are asked for."""
    if quiet and verbose:
        raise ValueError(f"`{verb}` got both --quiet and --verbose; give one of them")


def with_encoder(tasks: tuple[str, ...], encoder: str | None) -> tuple[str, ...]:
    """Tasks by the names that they have with another encoder."""
    if encoder is None:
        return tasks
    names = tasks or ("clusters",)
    return tuple(f"{name.removesuffix(']')}{',' if name.endswith(']') else '['}encoder={encoder}]" for name in names)


def with_gradients(plan: Plan) -> Plan:
    """A plan of learning that measures gradients too, along runs of the exact one."""
    learnt = tuple(f"{LEARNT}{name.removeprefix(TASK)}" for name in plan.problems)
    return dataclasses.replace(plan, suites=(*plan.suites, "bias", "parameter_bias"), problems=(*plan.problems, *learnt))


def score_file(path: Path, oracle: str, fields: list[str], **settings: Any) -> ScoreFile:
    """A user's own score file; ``fields`` are texts ``gold=labels`` or ``meaning=cost``.

    Raises:
        ValueError: a field without a value, or one that is unknown.
    """
    pairs = dict(_field(text) for text in fields)
    convention: dict[str, Any] = {key: value for key, value in pairs.items() if key in CONVENTION}
    if "temperature" in convention:
        convention["temperature"] = _float(convention["temperature"])
    keys: dict[str, Any] = {key: value for key, value in pairs.items() if key in KEYS}
    return ScoreFile(str(path), oracle, convention=Convention(**convention), **keys, **settings)


def _field(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--field got {text!r}; expected key=value")
    if key not in (*KEYS, *CONVENTION):
        raise ValueError(f"--field got the key {key!r}; {registry.hint(key, (*KEYS, *CONVENTION))}")
    return key, value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--field got temperature={text}; expected a number") from None


def preset_name(name: str) -> str:
    """The same name, or ValueError where there is no such preset."""
    if name not in PRESETS:
        raise ValueError(registry.unknown(name, PRESETS, "preset"))
    return name


def without_timing(plan: Plan) -> Plan:
    """The plan without the suites that need the machine alone.

    Raises:
        ValueError: no other suite is left.
    """
    names = suites_of(plan)
    kept = tuple(name for name in names if not SUITES[name].exclusive)
    if not kept:
        raise ValueError(
            f"--no-timing leaves out {', '.join(names)}, the only suites of this run; leave --no-timing out, or name another suite"
        )
    return dataclasses.replace(plan, suites=kept)


def effort_of(preset: str, **given: Any) -> Effort:
    """The effort of a preset with the numbers that are given; the most replicates are never fewer than the first ones."""
    chosen = dataclasses.replace(EFFORTS[preset], **{name: value for name, value in given.items() if value is not None})
    if given.get("most_replicates") is None and given.get("replicates") is not None:
        chosen = dataclasses.replace(chosen, most_replicates=max(chosen.most_replicates, chosen.replicates))
    return chosen


def within_budget(plan: Plan, jobs: int, budget: float | None) -> Plan:
    """The plan with no more seconds for an answer than its share of a budget; the same plan and budget always give the same share."""
    if budget is None:
        return plan
    seconds = seconds_within(plan, grid(plan).cells, jobs, budget)
    return dataclasses.replace(plan, effort=dataclasses.replace(plan.effort, seconds=seconds))
