"""``structgrad describe``: the facts of one thing, as a record of plain values."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import shlex
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer

from .catalogue import KINDS, Record, complete, record, registries
from .outcome import sentences

BITS = "categories[n=4,t=2]"
"""A problem of bits, which no named problem has, and which some estimators need."""

SIZE = 5
"""Default size at which structures are counted."""

EXAMPLES = {"tasks": "task:clusters", "references": "task:clusters", "learnt": "learnt:clusters"}
"""Problems of suites that measure no scores."""


def describe(
    name: Annotated[
        str,
        typer.Argument(
            help=r"Name of an estimator, oracle, problem, task, suite, metric, loss, noise or preset, such as 'imle\[lambda=2.5]'; "
            "or your own class, such as ./my.py:MyEstimator.",
            metavar="NAME",
            show_default=False,
            autocompletion=complete(),
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe one estimator, structure, task or metric: its options, cost, supported structures, and an example."""
    with sentences():
        found = facts(name)
    if as_json:
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2, ensure_ascii=False))
        return
    for one in found:
        typer.echo("\n".join(_lines(one)))


def facts(name: str) -> list[Record]:
    """All facts of a name: one record for each kind that has it.

    Args:
        name: any name of `list`, for estimators, oracles, problems and tasks also with options; or a class as ``module:Class`` or
            ``file.py:Class``.

    Raises:
        ValueError: an unknown name, with the nearest names of all kinds, or an unknown option.
    """
    from ...oracles import Oracle
    from ...oracles.registry import imported, parse
    from ...suites.tasks import Task

    head = parse(name)[0] if "[" in name else name
    if ":" in head and not head.startswith(("task:", "learnt:")):
        given = imported(head, "class")
        base = given if isinstance(given, type) else type(given)
        kind = "oracle" if issubclass(base, Oracle) and base is given else "task" if issubclass(base, Task) else "estimator"
        return [{"kind": kind, **FACTS[kind](name, given)}]
    known = {KINDS[kind]: registry for kind, registry in registries().items() if KINDS[kind] in FACTS}
    found = [{"kind": kind, **FACTS[kind](name, registry[head])} for kind, registry in known.items() if head in registry]
    if not found:
        near = difflib.get_close_matches(head.lower(), sorted({one for registry in known.values() for one in registry}), n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"`describe` got the unknown name {name!r}; {meant}`structgrad list` shows all names")
    return found


def _explained(kind: Any, example: str) -> Record:
    """The end of a record: the documentation of a class, and a command to try."""
    return {"documentation": inspect.cleandoc(kind.__doc__ or ""), "example": example}


def _estimator(name: str, kind: Any) -> Record:
    from ...estimators import SUPERVISED, make_estimator
    from ...oracles.registry import parse

    head, given = parse(name)
    options = _options(kind)
    missing = any(option["required"] and option["name"] not in given for option in options)
    made: Any = None if missing else make_estimator(name)
    fits = {} if missing else _fits(made)
    serving = [problem for problem, reason in fits.items() if reason is None]
    run = ["run", "bias", "-e", name, *(["-p", serving[0]] if serving else [])]
    return {
        **record("estimators", head, kind),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "inside_hull": kind.inside_hull,
        "options": options,
        "scale": None if missing else made.scale,
        "evaluations": {} if missing else {key: value for key, value in vars(made.evaluations()).items() if value},
        "fits": serving,
        "does_not_fit": {problem: reason for problem, reason in fits.items() if reason is not None},
        **_explained(kind, shlex.join(["structgrad", *(["learn", "parsing", "-e", name] if head in SUPERVISED else run)])),
    }


def _fits(estimator: Any) -> dict[str, str | None]:
    """The reason against the estimator on every built-in problem and on bits; None for a problem that it fits."""
    from ...suites.base import pairing
    from ...suites.problems import LOSSES
    from ...suites.problems.regimes import REGIMES
    from ...suites.problems.sized import sized_regime

    reasons: dict[str, str | None] = {}
    for name, regime in {**REGIMES, BITS: sized_regime(BITS)}.items():
        claims: Any = LOSSES[regime.loss]  # a loss itself would need an item
        skip = pairing(estimator, regime.oracle, claims, regime.events[0])
        reasons[name] = None if skip is None else skip.reason
    return reasons


def _options(kind: Any) -> list[Record]:
    """The options of a dataclass as the command line takes them: name, default, and type and range in words."""
    from ...oracles.options import declared

    if not dataclasses.is_dataclass(kind):
        return []
    kinds, found = declared(kind), []  # type: ignore[arg-type]
    for field in filter(lambda field: field.init, dataclasses.fields(kind)):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        required = made is dataclasses.MISSING
        default, expected = None if required else repr(made), str(kinds[field.name])
        found.append({"name": field.name.rstrip("_"), "default": default, "required": required, "expected": expected})
    return found


def _oracle(name: str, kind: Any) -> Record:
    """The record of an oracle; with sizes, ``subset[n=10,k=5]``, its structures are counted at them."""
    from ...oracles.registry import parse
    from ...suites.problems.sized import SIZES, size_names, sized_name, sized_regime

    head, given = parse(name)
    sizes, options = size_names(kind), _options(kind)
    letters = {word: letter for letter, words in SIZES.items() for word in words}
    pairs: dict[str, Any] = {letters.get(word, word): SIZE for word in sizes}
    pairs = {letter: given.get(letter, 3 if letter in "twl" else SIZE) for letter in pairs}
    pairs |= {one["name"]: given.get(one["name"], 2) for one in options if one["required"] or one["name"] in given}
    example = f"{head}[{','.join(f'{key}={value}' for key, value in pairs.items())}]"
    counted = name if {*letters, *SIZES, *sizes} & set(given) else example
    regime = sized_regime(counted)
    shape = regime.events[0]
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        **record("oracles", head, kind),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "options": options,
        "sizes": [f"{letters.get(word, word)} ({word})" for word in sizes],
        "capabilities": [base.__name__ for base in kind.__mro__ if base.__name__.endswith("Oracle") and base is not kind],
        "operations": [name for name, method in methods if name[0] != "_" and "scores" in inspect.signature(method).parameters],
        "event_dimensions": kind.event_ndim,
        "at": {"problem": sized_name(counted), "event_shape": list(shape), "structures": regime.oracle.count(shape)},
        "references": list(kind.references),
        "version": kind.version,
        **_explained(kind, f"structgrad run bias --oracle '{example}'"),
    }


def _problem(name: str, description: str) -> Record:
    """The record of a problem, with its first two instances if its scores are available."""
    from ...suites.problems import default_data, is_task, kinds_of, load, stages_of

    stages = list(stages_of(name))
    instances: list[Record] | str = "items of a run, which is trained when they are measured first"
    if "learnt" not in kinds_of(name):
        try:
            found = load(name, stages[0], instances=2, data=default_data())
        except ValueError as error:
            instances = str(error)
        else:
            shapes = [(item, tuple(item.scores.shape)) for item in found.instances]
            instances = [
                {"name": item.name, "event_shape": list(shape), "structures": found.oracle.count(shape), "loss": item.loss.name}
                for item, shape in shapes
            ]
    example = f"structgrad run {'learning' if is_task(name) else 'bias'} -p {name}"
    return {"name": name, "description": description, "stages": stages, "instances": instances, "example": example}


def _task(name: str, _: Any) -> Record:
    from ...suites.tasks import make_task
    from ...suites.tasks.task import Split

    found = make_task(name)
    absent = found.unavailable()
    return {
        "name": name,
        "description": found.summary,
        "structure": str(found.oracle),
        "accuracy": found.scored,
        "structure_accuracy": found.structured or "not measured",
        **({"options": _options(type(found))} if ":" not in name else {"steps": found.steps, "batch_size": found.batch_size}),
        "items": {split: found.size(split) for split in get_args(Split)} if absent is None else absent,
        "references": list(found.references),
        "version": found.version,
        **_explained(type(found), f"structgrad learn {name} --quick"),
    }


def _suite(name: str, found: Any) -> Record:
    return {
        "name": name,
        "description": found.summary,
        "runs": "alone on the machine" if found.exclusive else "in parallel with other cells",
        "cells": "one for all estimators of a problem, side by side" if found.together else "one for each estimator",
        "version": found.version,
        **_explained(found, f"structgrad run {name}{'' if found.measures == 'scores' else f' -p {EXAMPLES[found.measures]}'}"),
    }


def _loss(name: str, found: Any) -> Record:
    claims = {claim: getattr(found, claim) for claim in ("differentiable", "inside_hull", "vertex_degree", "extension")}
    return {"name": name, **claims, **_explained(found, f"structgrad run bias --loss {name}")}


def _noise(name: str, kind: Any) -> Record:
    options = _options(kind)
    given = "/".join([name, *(f"{option['name']}={option['default']}" for option in options)])
    return {"name": name, "options": options, **_explained(kind, f"structgrad run bias -e 'perturb_and_map[noise={given}]'")}


def _preset(name: str, found: Any) -> Record:
    from ...suites.measures import SUITES

    plan = found.plan
    return {
        "name": name,
        "description": found.summary,
        "suites": list(plan.suites or SUITES),
        "estimators": list(plan.estimators) or "all",
        "stages": list(plan.stages) or "all",
        "instances": plan.instances,
        "less_of": {suite: {key: most for key, most in vars(portion).items() if most is not None} for suite, portion in plan.portions},
        "effort": vars(plan.effort),
        "example": f"structgrad run --preset {name}",
    }


FACTS: dict[str, Callable[[str, Any], Record]] = {
    "estimator": _estimator,
    "supervised": _estimator,
    "oracle": _oracle,
    "problem": _problem,
    "task": _task,
    "suite": _suite,
    "metric": lambda name, metric: {"name": name, "description": metric.meaning, "unit": metric.unit},
    "loss": _loss,
    "noise": _noise,
    "preset": _preset,
}
"""The facts of one name of each kind, from the name with its options and the entry of the registry."""


def _lines(found: Record) -> list[str]:
    """A record for people: the documentation last, the example at the very end."""
    lines = [f"{found['kind']} {found['name']}" + (f": {found['description']}" if "description" in found else "")]
    for key, value in found.items():
        name = key.replace("_", " ")
        if key in ("kind", "name", "description", "documentation", "example"):
            continue
        if isinstance(value, dict) and any(len(str(item)) > 20 for item in value.values()):
            lines += [f"  {name}:", *(f"    {part}: {item}" for part, item in value.items())]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"  {name}:", *(f"    {_plain(item)}" for item in value)]
        else:
            lines.append(f"  {name}: {_plain(value)}")
    if "documentation" in found:
        lines += ["", *(f"  {line}".rstrip() for line in found["documentation"].splitlines()), ""]
    return [*lines, *([f"  try: {found['example']}"] if "example" in found else []), ""]


def _plain(value: Any) -> str:
    """A value on one line; an option as it is written: ``lambda = 1.0  (a finite number > 0)``."""
    if isinstance(value, dict) and "required" in value:
        default = " (required)" if value["required"] else f" = {value['default']}"
        return f"{value['name']}{default}  ({value['expected']})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        sizes = bool(value) and all(isinstance(item, int) for item in value)
        return (" × " if sizes else ", ").join(map(str, value)) or "none"
    return "not known" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
