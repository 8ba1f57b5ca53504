"""``structgrad describe``: the facts of one thing, as a record of plain values."""

import dataclasses
import difflib
import inspect
import itertools
import json
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import typer

from .catalogue import KINDS, Record, complete, record, registries
from .outcome import sentences

EXAMPLES = {
    **{"estimators": "run bias -e {}", "supervised": "learn parsing -e {}", "oracles": "run bias --oracle {}", "tasks": "learn {} --quick"},
    **{"problems": "run bias -p {}", "suites": "run {}", "losses": "run bias --loss {}", "noises": "run bias -e imle[noise={}]"},
    **{"presets": "run --preset {}", "metrics": "list metrics"},
}
"""A command to try for each kind that is described."""

PAIRED = (("categorical", (5,)), ("subset[k=2]", (5,)), ("categories", (3, 2)), ("linear_chain", (4, 3, 3)), ("shift_reduce", (4, 4, 2)))
"""Structures of the calls in Python, with an event shape."""

MAX_LINE = 110

REQUIRED = "(required)"


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
    shown: Annotated[str | None, typer.Option("--name", help="Name of your own estimator.", metavar="NAME", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe one estimator, structure, task or metric: its declarations, options, documentation, and an example."""
    with sentences():
        if shown is not None and ":" not in name:
            raise ValueError(f"got --name for {name}; expected an estimator of your own, such as ./mine.py:Mine")
        found = [one | ({"name": shown, "example": f"{one['example']} --name {shown}"} if shown else {}) for one in facts(name)]
    if as_json:
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2, ensure_ascii=False))
        return
    typer.echo("\n".join(line for one in found for line in _lines(one)))


def facts(name: str) -> list[Record]:
    """All facts of a name, with or without options, or of a class as ``module:Class`` or ``file.py:Class``: a record for each kind."""
    from ...estimators import make_estimator
    from ...estimators.own import is_estimator
    from ...oracles import Oracle
    from ...oracles.registry import imported, parse
    from ...suites.tasks import Task

    head = parse(name)[0] if "[" in name or name.endswith(".py") else name
    if ":" in head and not head.startswith(("task:", "learnt:")):
        given = imported(head, "class")
        base = given if isinstance(given, type) else type(given)
        kind = "oracles" if issubclass(base, Oracle) and base is given else "tasks" if issubclass(base, Task) else "estimators"
        return [_facts(kind, name, given if kind != "estimators" or is_estimator(given) else make_estimator(name), given)]
    known = {kind: registry for kind, registry in registries().items() if kind in EXAMPLES}
    found = [_facts(kind, name, registry[head]) for kind, registry in known.items() if head in registry]
    if not found:
        near = difflib.get_close_matches(head.lower(), sorted({one for registry in known.values() for one in registry}), n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"`describe` got the unknown name {name!r}; {meant}`structgrad list` shows all names")
    return found


def _facts(kind: str, name: str, entry: Any, own: Any = None) -> Record:
    """The record of one kind: the documentation last, and a command to try at the very end; ``own`` is a function or class of yours."""
    from ...estimators import make_estimator
    from ...oracles import make_oracle
    from ...oracles.registry import parse
    from ...suites.problems import stages_of
    from ...suites.tasks import make_task
    from ...suites.tasks.task import Split

    found: Record = {"kind": KINDS[kind], **record(kind, name, entry), "name": name}
    if kind == "tasks":
        made = make_task(name)
        absent = made.unavailable()
        items = {split: made.size(split) for split in get_args(Split)} if absent is None else absent
        found |= {"structure": str(made.oracle), "accuracy": made.scored, "items": items, "references": list(made.references)}
        entry = type(made)
    options = _options(entry if own is None else own)
    given = parse(name)[1] if kind in ("estimators", "oracles") else {}
    if kind == "estimators" and not any(REQUIRED in text and option not in given for option, text in options.items()):
        calls = make_estimator(name).evaluations()  # refuses wrong options
        found["evaluations"] = {field: number for field, number in vars(calls).items() if number}
        fitting = (pair for pair in PAIRED if make_estimator(name).incompatibility(make_oracle(pair[0]), pair[1]) is None)
        for oracle, event in itertools.islice(fitting, 1):
            loss = f"lambda z: z[..., {', '.join('0' for _ in event)}]"
            call = f'make_estimator("{name}").gradient({loss}, "{oracle}", torch.randn{str(event).replace(",)", ")")}'
            found["in_python"] = f"{call}, generator=torch.Generator())"
    if (options or isinstance(entry, type)) and kind not in ("suites", "losses"):
        code = {"class": f"{entry.__module__}.{entry.__qualname__}"} if isinstance(entry, type) else {}
        found |= {**code, "options": [*options.values()]}
    if kind == "oracles":
        found |= _counted(name, entry, given, options)
    if kind == "problems":
        found |= {"stages": list(stages_of(name))}
    if kind not in ("problems", "metrics", "presets"):
        found |= {"documentation": inspect.cleandoc(getattr(entry, "origin", entry).__doc__ or "")}
    example = EXAMPLES[kind].format(shlex.quote(found["at"]["problem"] if kind == "oracles" else name))
    if kind == "problems" and name.startswith("task:"):
        example = f"run learning -p {name}"
    elif kind == "suites" and entry.measures != "scores":
        example += f" -p {'learnt' if entry.measures == 'learnt' else 'task'}:clusters"
    return {**found, "example": f"structgrad {example}"}


def _options(kind: Any) -> dict[str, str]:
    """The options of a class or function as the command line takes them: ``lambda = 1.0 (a finite number > 0)``."""
    from ...oracles.options import declared

    made = {field.name: field.default_factory for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    kinds, found = declared(kind) if inspect.isfunction(kind) or inspect.isclass(kind) else {}, {}
    for option, one in inspect.signature(kind).parameters.items() if kinds else ():
        factory, name = made.get(option, dataclasses.MISSING), option.rstrip("_")
        default = one.default if factory is dataclasses.MISSING else factory()
        if default is not one.empty or not inspect.isfunction(kind):  # a function gets the others by the call
            found[name] = f"{name} {REQUIRED if default is one.empty else f'= {default!r}'} ({kinds[option]})"
    return found


def _counted(name: str, kind: Any, given: dict[str, Any], options: dict[str, str]) -> Record:
    """The capabilities of an oracle, and its structures at sizes in its name, such as ``subset[n=10,k=5]``, else at some of 5, 3 and 2."""
    from ...suites.problems.sized import SIZES, size_names, sized_name, sized_regime

    letters = {word: letter for letter, words in SIZES.items() for word in words}
    sizes = [letters.get(word, word) for word in size_names(kind)]
    pairs: dict[str, Any] = {letter: given.get(letter, 3 if letter in "twl" else 5) for letter in sizes}
    pairs |= {one: given.get(one, 2) for one, text in options.items() if REQUIRED in text or one in given}
    example = f"{name.partition('[')[0]}[{','.join(f'{key}={value}' for key, value in pairs.items())}]"
    counted = name if {*letters, *SIZES, *size_names(kind)} & set(given) else example
    regime = sized_regime(counted)
    shape = regime.events[0]
    return {
        "sizes": sizes,
        "capabilities": [base.__name__ for base in kind.__mro__ if base.__name__.endswith("Oracle") and base is not kind],
        "at": {"problem": sized_name(counted), "event_shape": list(shape), "structures": regime.oracle.count(shape)},
    }


def _lines(found: Record) -> Iterator[str]:
    yield f"{found['kind']} {found['name']}: {found['description']}"
    for key, value in found.items():
        if key not in ("kind", "name", "description", "documentation", "example", "in_python"):
            items = [f"{part} {item}" for part, item in value.items()] if isinstance(value, dict) else value
            items = items if isinstance(items, list) else [{True: "yes", False: "no"}[items] if isinstance(items, bool) else items]
            joined = ", ".join(map(str, items)) or "none"
            yield from [f"  {key}: {joined}"] if len(joined) < MAX_LINE else [f"  {key}:", *(f"    {item}" for item in items)]
    if found.get("documentation"):
        yield from ("", *(f"  {line}".rstrip() for line in found["documentation"].splitlines()), "")
    if found.get("in_python"):
        yield f"  in Python: {found['in_python']}"
    yield from (f"  try: {found['example']}", "")
