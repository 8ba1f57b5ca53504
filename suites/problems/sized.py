"""Problems that are named by a structure and its size: ``subset[n=10,k=5]``, ``linear_chain[n=4,t=3]``, ``alignment[n=5,m=6]``."""

import contextlib
import inspect
import itertools
import math
from collections.abc import Iterable
from typing import Any

from ...oracles import AVAILABLE_ORACLES, make_oracle
from ...oracles.capabilities import MarginalOracle, Oracle
from ...oracles.derivations import DerivedOracle
from ...oracles.options import Count, RefusedError, kind_of, refusal
from ...oracles.registry import imported, parse, unknown
from .regimes import REGIMES, USUAL_ENTROPIES, Regime, peaked_like, with_options

SIZES = {"n": ("length", "rows", "frames"), "m": ("columns",), "t": ("tags",), "w": ("width",), "l": ("labels",)}
"""The letters of event shapes, and the names that oracles have for these sizes; both are accepted."""

LETTERS = {word: letter for letter, words in SIZES.items() for word in words}

MAX_SCORES = 250_000  # the most scores of one instance


def is_sized(name: str) -> bool:
    """Whether a name has the form of a structure with options and sizes."""
    head, bracket, rest = name.partition("[")
    return bool(head and bracket) and rest.endswith("]") and "=" in rest and "*" not in name


def sized_name(name: str) -> str:
    """The one spelling of such a name: letters for sizes, these first, then the options of the structure."""
    text, oracle, sizes = _parts(name)
    options = {key: getattr(oracle, key, given) for key, given in parse(name)[1].items() if not _is_size(key, sizes)}
    return with_options(text, {LETTERS.get(word, word): size for word, size in sizes.items()} | options)


def sized_structure(name: str) -> tuple[Oracle, tuple[int, ...]]:
    """The oracle of such a name, and the event shape of its size; ValueError as `sized_name`, or for too many scores."""
    _, oracle, sizes = _parts(name)
    event: tuple[int, ...] = type(oracle).event_shape(**sizes)
    if math.prod(event) > MAX_SCORES:  # before anything is counted or allocated
        raise ValueError(f"got the problem {name!r} with {math.prod(event):,} scores; expected at most {MAX_SCORES:,}, take smaller sizes")
    return oracle, event


def sized_regime(name: str) -> Regime:
    """The regime of such a problem: that of its structure, with random directions of the one size."""
    oracle, event = sized_structure(name)
    if not isinstance(oracle, MarginalOracle):
        raise ValueError(f"got the problem {name!r}, whose oracle has no Gibbs distribution to scale scores by; give a score file")
    if oracle.count(event) < 2:
        raise ValueError(f"got the problem {name!r} with {oracle.count(event)} structures; expected at least 2, take other sizes")
    # The options of an oracle decide between two regimes of one structure: shift-reduce with a policy or without.
    like = next((regime for regime in REGIMES.values() if regime.oracle == oracle), None)
    like = like or next((regime for regime in REGIMES.values() if type(regime.oracle) is type(oracle)), None)
    loss = like.loss if like else Regime.loss
    if isinstance(oracle, DerivedOracle):
        like = like or peaked_like(oracle.examples.like)
    return Regime(f"random scores of {name}", oracle, (event,), like.entropies if like else USUAL_ENTROPIES, loss)


def _kind_of(text: str, what: str) -> Any:
    """The class of an oracle by its name without options, or any object of a file or module; None if the name is unknown."""
    return imported(text, what) if ":" in text else AVAILABLE_ORACLES.get(text)


def _is_oracle(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Oracle)


def _is_size(key: str, own: Iterable[str]) -> bool:
    """Whether an option is a size: a letter, a word for one, or a name that a user's structure has for it."""
    return LETTERS.get(key, key) in SIZES or key in own


def _parts(name: str) -> tuple[str, Oracle, dict[str, int]]:
    """The text before the bracket, the oracle, and its sizes under the oracle's own names."""
    text, options = parse(name)
    kind = _kind_of(text, "oracle")
    if kind is None:
        raise ValueError(unknown(text, AVAILABLE_ORACLES, "structure"))
    own = size_names(kind) if _is_oracle(kind) else ()
    oracle = make_oracle(with_options(text, {key: value for key, value in options.items() if not _is_size(key, own)}))
    numbers: dict[str, int] = {}
    for key, size in options.items():
        if _is_size(key, own):
            try:
                numbers[key] = kind_of(Count).read(size, {})
            except RefusedError:
                raise ValueError(refusal(name, key, size, kind_of(Count))) from None
    # By the names that the oracle asks for, in its order.
    wanted = size_names(type(oracle))
    found: dict[str, Any] = {word: numbers.get(word, numbers.get(LETTERS.get(word, ""))) for word in wanted}
    if None in found.values() or len(numbers) != len(wanted):
        raise ValueError(f"got the problem {name!r}; expected the sizes of {oracle.name}, such as {_example(text, wanted)}")
    return text, oracle, found


def _example(text: str, wanted: tuple[str, ...]) -> str:
    return f"{text}[{','.join(f'{LETTERS.get(word, word)}=...' for word in wanted)}]"


def oracle_of_arrays(text: str) -> Oracle:
    """The oracle of a name without sizes, which come from the arrays of scores; ValueError for an unknown name, or a size."""
    name, options = parse(text)
    kind = _kind_of(name, "oracle")
    if _is_oracle(kind):
        sizes = {*SIZES, *size_names(kind)} - inspect.signature(kind).parameters.keys()
        for option in options:
            if option in sizes:
                raise ValueError(f"got the oracle {text!r} with the size {option}; expected none, for the scores have it")
    return make_oracle(text)


def refuse_unsized(name: str) -> None:
    """Raise ValueError for a structure, by name or file, without its size; any other name passes."""
    text = name.partition("[")[0]
    kind = _kind_of(text, "problem")
    if kind is None:
        return
    if not _is_oracle(kind):
        raise ValueError(f"got the problem {name!r}, which is no structure; expected a subclass of Oracle, with its size")
    problem = next((problem for problem, regime in REGIMES.items() if type(regime.oracle) is kind), None)
    built_in = "" if problem is None else f", or the problem {problem}"
    raise ValueError(f"got the structure {name!r} without its size; expected {_example(text, size_names(kind))}{built_in}")


def size_names(kind: type[Oracle]) -> tuple[str, ...]:
    """The names of the sizes that an oracle's `event_shape` takes, as its own message on missing ones lists them."""
    named = [key for key, parameter in inspect.signature(kind.event_shape).parameters.items() if parameter.kind != parameter.VAR_KEYWORD]
    if named:
        return tuple(named)
    try:
        kind.event_shape()
    except ValueError as error:
        return tuple(str(error).rpartition("expected ")[2].split(", "))
    return ()


def sizes_of(oracle: Oracle, events: Iterable[tuple[int, ...]]) -> str:
    """The least and the largest of each size behind event shapes, by its letter; empty if sizes do not follow from shapes."""
    found = [sizes_at(oracle, event) for event in dict.fromkeys(events)]
    ranges = {letter: sorted({sizes[letter] for sizes in found}) for letter in found[0]} if found and all(found) else {}
    return ", ".join(f"{letter} = {' to '.join(map(str, dict.fromkeys((ends[0], ends[-1]))))}" for letter, ends in ranges.items())


def sizes_at(oracle: Oracle, event: tuple[int, ...]) -> dict[str, int]:
    """The one to three sizes behind an event shape, by letter, if they follow from it; a user's `event_shape` may raise anything."""
    candidates, fitting = sorted({length - less for length in event for less in (0, 1)} - {0, -1}, reverse=True), []
    with contextlib.suppress(Exception):
        names = size_names(type(oracle))
        for sizes in itertools.product(candidates, repeat=len(names)) if 1 <= len(names) <= 3 else ():
            with contextlib.suppress(Exception):
                named = dict(zip(names, sizes, strict=True))
                fitting += [named] if tuple(oracle.event_shape(**named)) == event else []
    return {LETTERS.get(name, name): size for name, size in fitting[0].items()} if len(fitting) == 1 else {}
