"""Descriptions for ``structgrad describe``: a record of plain values for one thing, whatever its kind."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from ....oracles.registry import parse
from .estimator_facts import estimator, option_records
from .listing import Record
from .oracle_facts import oracle, problem

Describer = Callable[[str], Record]


def describe(name: str) -> list[Record]:
    """Everything known of a name: one record for each kind that has it.

    Args:
        name: of an estimator, supervised training, oracle, problem, task, suite, metric, loss, noise or preset; those of the first
            five with options too, and of a class as ``module:Class`` or ``file.py:Class``.

    Raises:
        ValueError: a name that nothing has, with the nearest names of all kinds, or an option that is unknown.
    """
    head = parse(name)[0] if "[" in name else name
    if ":" in head and not head.startswith(("task:", "learnt:")):
        return [{"kind": _kind_of_class(head), **_class_describer(head)(name)}]
    kinds = _kinds()
    found = [{"kind": kind, **describer(name)} for kind, (known, describer) in kinds.items() if head in known]
    if not found:
        names = sorted({entry for known, _ in kinds.values() for entry in known})
        raise ValueError(f"`describe` got the unknown name {name!r}; {_near(head, names)}`structgrad list` shows all names")
    return found


def _near(head: str, names: list[str]) -> str:
    """The names that a misspelt one may mean, whatever its capitals; all of them would be too many to print."""
    near = difflib.get_close_matches(head.lower(), names, n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _kinds() -> dict[str, tuple[Mapping[str, Any], Describer]]:
    """The names of each kind, and what describes one."""
    from ....estimators import AVAILABLE_ESTIMATORS, NOISES, SUPERVISED
    from ....oracles import AVAILABLE_ORACLES
    from ....suites.measures import SUITES
    from ....suites.metrics import METRICS
    from ....suites.problems import LOSSES, PROBLEMS
    from ....suites.running.planning.presets import PRESETS
    from ....suites.tasks import TASKS

    return {
        "estimator": (AVAILABLE_ESTIMATORS, estimator),
        "supervised": (SUPERVISED, estimator),
        "oracle": (AVAILABLE_ORACLES, oracle),
        "problem": (PROBLEMS, problem),
        "task": (TASKS, task),
        "suite": (SUITES, suite),
        "metric": (METRICS, metric),
        "loss": (LOSSES, loss),
        "noise": (NOISES, noise),
        "preset": (PRESETS, preset),
    }


def _kind_of_class(head: str) -> str:
    found = _class_describer(head)
    return "oracle" if found is oracle else "task" if found is task else "estimator"


def _class_describer(head: str) -> Describer:
    """An oracle or a task where it is one; else an estimator, whose own message tells where it is none."""
    from ....oracles import Oracle
    from ....oracles.registry import imported
    from ....suites.tasks import Task

    found = imported(head, "class")
    kind = found if isinstance(found, type) else type(found)
    return oracle if issubclass(kind, Oracle) and kind is found else task if issubclass(kind, Task) else estimator


def task(name: str) -> Record:
    """A task: what is learnt, on which structure, how long, and whether that can be done here."""
    from ....suites.tasks import make_task
    from ....suites.tasks.task import Split

    found = make_task(name)
    absent = found.unavailable()
    return {
        "name": name,
        "description": found.summary,
        "structure": str(found.oracle),
        "accuracy": found.scored,
        "structure_accuracy": found.structured or "not measured",
        **({"options": option_records(type(found))} if ":" not in name else {"steps": found.steps, "batch_size": found.batch_size}),
        "items": {split: found.size(split) for split in get_args(Split)} if absent is None else absent,
        "references": list(found.references),
        "version": found.version,
        "documentation": document(type(found)),
        "example": f"structgrad learn {name} --quick",
    }


def suite(name: str) -> Record:
    """A suite: its question, and how it is run."""
    from ....suites.measures import SUITES

    found = SUITES[name]
    return {
        "name": name,
        "description": found.summary,
        "runs": "alone on the machine" if found.exclusive else "beside other cells",
        "cells": "one for all estimators of a problem, side by side" if found.together else "one for each estimator",
        "version": found.version,
        "documentation": document(found),
        "example": f"structgrad run {name}{'' if found.measures == 'scores' else f' -p {EXAMPLES[found.measures]}'}",
    }


EXAMPLES = {"tasks": "task:clusters", "references": "task:clusters", "learnt": "learnt:clusters"}
"""Problems for suites that measure no others."""


def metric(name: str) -> Record:
    """A metric: its meaning and its unit."""
    from ....suites.metrics import METRICS

    return {"name": name, "description": METRICS[name].meaning, "unit": METRICS[name].unit}


def loss(name: str) -> Record:
    """A loss: what it claims."""
    from ....suites.problems import LOSSES

    found = LOSSES[name]
    return {
        "name": name,
        "differentiable": found.differentiable,
        "inside_hull": found.inside_hull,
        "vertex_degree": found.vertex_degree,
        "extension": found.extension,
        "documentation": document(found),
        "example": f"structgrad run bias --loss {name}",
    }


def noise(name: str) -> Record:
    """A noise on scores: its options, and how an estimator takes them."""
    from ....estimators import NOISES

    options = option_records(NOISES[name])
    given = "/".join([name, *(f"{option['name']}={option['default']}" for option in options)])
    return {
        "name": name,
        "options": options,
        "documentation": document(NOISES[name]),
        "example": f"structgrad run bias -e 'perturb_and_map[noise={given}]'",
    }


def preset(name: str) -> Record:
    """A preset: what a run holds where no option says otherwise."""
    from ....suites.measures import SUITES
    from ....suites.measures.suite import EFFORTS
    from ....suites.running.planning.presets import PRESETS

    found = PRESETS[name]
    portions = {
        suite: {key: value for key, value in vars(portion).items() if value is not None} for suite, portion in found.portions.items()
    }
    return {
        "name": name,
        "description": found.summary,
        "suites": list(found.suites or SUITES),
        "estimators": list(found.estimators) or "all",
        "stages": list(found.stages) or "all",
        "instances": found.instances,
        "less_of": portions,
        "effort": vars(EFFORTS[name]),
        "example": f"structgrad run --preset {name}",
    }


def document(kind: type) -> str:
    """The docstring of a class, without indentation."""
    import inspect

    return inspect.cleandoc(kind.__doc__ or "")
