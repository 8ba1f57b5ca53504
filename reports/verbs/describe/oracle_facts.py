"""Facts of an oracle and of a problem: shapes, options, operations, how many structures there are."""

from __future__ import annotations

import inspect
from typing import Any

from ....suites.text import first_sentence
from .estimator_facts import option_records
from .listing import Record

_SIZE = 5
"""Structures are counted at this size, where no other is asked for."""


def oracle(name: str) -> Record:
    """An oracle; one with sizes, ``subset[n=10,k=5]``, is described as the problem that it is.

    Raises:
        ValueError: a name, an option or a size that is unknown.
    """
    from ....oracles import AVAILABLE_ORACLES
    from ....oracles.registry import imported, parse
    from ....suites.problems.sized import SIZES, size_names

    head, options = parse(name)
    kind = imported(head, "oracle") if ":" in head else AVAILABLE_ORACLES[head]
    sizes = size_names(kind)
    letters = {word: letter for letter, words in SIZES.items() for word in words}
    given = {key: value for key, value in options.items() if key in (*letters, *SIZES, *sizes)}
    example = _sized(head, [letters.get(word, word) for word in sizes], option_records(kind), options)
    facts = _problem_facts(name if given else example)
    return {
        "name": head,
        "description": first_sentence(kind),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "options": option_records(kind),
        "sizes": [f"{letters.get(word, word)} ({word})" for word in sizes],
        "capabilities": [base.__name__ for base in kind.__mro__ if base.__name__.endswith("Oracle") and base is not kind],
        "operations": _operations(kind),
        "event_dimensions": kind.event_ndim,
        "at": facts,
        "references": list(kind.references),
        "version": kind.version,
        "documentation": inspect.cleandoc(kind.__doc__ or ""),
        "example": f"structgrad run bias --oracle '{example}'",
    }


def problem(name: str) -> Record:
    """A named problem: its structure, its stages, how large its first instances are."""
    from ....suites.problems import PROBLEMS, is_task, stages_of

    return {
        "name": name,
        "description": PROBLEMS[name.partition("[")[0]],
        "stages": list(stages_of(name)),
        "instances": _instances(name),
        "example": f"structgrad run {'learning' if is_task(name) else 'bias'} -p {name}",
    }


def _sized(head: str, letters: list[str], options: list[Record], given: dict[str, Any]) -> str:
    """A problem of small sizes, with options that it cannot do without."""
    pairs = {letter: given.get(letter, 3 if letter in "twl" else _SIZE) for letter in letters}
    pairs |= {option["name"]: given.get(option["name"], 2) for option in options if option["required"] or option["name"] in given}
    return f"{head}[{','.join(f'{key}={value}' for key, value in pairs.items())}]"


def _problem_facts(name: str) -> Record:
    """Shape and number of structures of a sized problem; nothing where its oracle cannot be made like this."""
    from ....suites.problems.sized import sized_name, sized_regime

    regime = sized_regime(name)
    shape = _shape(regime)
    return {"problem": sized_name(name), "event_shape": list(shape), "structures": regime.oracle.count(shape)}


def _shape(regime: Any) -> tuple[int, ...]:
    import numpy as np

    return tuple(regime.draw(np.random.default_rng(0), 0).shape)


def _operations(kind: Any) -> list[str]:
    """The public methods that take scores."""
    found = []
    for name, method in inspect.getmembers(kind, callable):
        parameters = inspect.signature(method).parameters if not name.startswith("_") and inspect.isfunction(method) else {}
        found += [name] if "scores" in parameters else []
    return found


def _instances(name: str) -> list[Record] | str:
    """The first two instances of a problem, where its scores are at hand."""
    from ....suites.problems import default_data, kinds_of, load, stages_of

    if "learnt" in kinds_of(name):
        return "items of a run, which is trained when they are measured first"
    try:
        found = load(name, stages_of(name)[0], instances=2, data=default_data())
    except ValueError as error:
        return str(error)
    shapes = [tuple(item.scores.shape) for item in found.instances]
    return [
        {"name": item.name, "event_shape": list(shape), "structures": found.oracle.count(shape), "loss": item.loss.name}
        for item, shape in zip(found.instances, shapes, strict=True)
    ]
