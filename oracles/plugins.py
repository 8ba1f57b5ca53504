"""Plugins: what files and other packages add to a registry, found by name, imported only when asked for.

A package offers classes as entry points of the group ``structgrad.estimators`` or ``structgrad.oracles``; a file is named with its path.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "structgrad."
"""Entry points are looked for in ``structgrad.estimators`` and ``structgrad.oracles``."""

_files: tuple[str, ...] = ()


class Catalogue(Mapping[str, Any]):
    """Built-in classes, those of the files in use, and the entry points of installed packages, by name and in this order.

    Args:
        builtin: by name; plugins cannot take their names.
        kind: ``estimator`` or ``oracle``.
        base: what the classes of a file are subclasses of.
        reserved: names that plugins cannot take either.

    Example:
        >>> catalogue = Catalogue({"int": int}, "number", float)
        >>> list(catalogue), catalogue.get("none")
        (['int'], None)
    """

    def __init__(self, builtin: Mapping[str, Any], kind: str, base: type, reserved: Iterable[str] = ()) -> None:
        self.builtin, self.kind, self.base = builtin, kind, base
        self.taken = frozenset((*builtin, *reserved))
        _catalogues.append(self)

    def __getitem__(self, name: str) -> Any:
        if name in self.builtin:
            return self.builtin[name]
        of_files = self.of_files()
        if name in of_files:
            return of_files[name]
        return load(next((point for point in self.points() if point.name == name), None), name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.builtin, *self.of_files(), *(point.name for point in self.points()))))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self.of_files() or any(point.name == name for point in self.points())

    def of_files(self) -> dict[str, type]:
        """The classes of the files in use, by the names that they give themselves."""
        return {name: found for path in _files for name, found in self._classes(path).items()}

    def points(self) -> tuple[importlib.metadata.EntryPoint, ...]:
        """The entry points whose names are free, not loaded."""
        return tuple(point for point in entry_points(f"{GROUP}{self.kind}s") if point.name not in self.taken)

    def _classes(self, path: str) -> dict[str, type]:
        module = file_module(path)
        own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
        concrete = [kind for kind in own if issubclass(kind, self.base) and "name" in vars(kind) and not inspect.isabstract(kind)]
        found = {vars(kind)["name"]: kind for kind in concrete}
        for name, kind in found.items():
            if name in self.taken:
                raise ValueError(f"{path}: {kind.__name__} calls itself {name!r}, which is taken; give it a name of its own")
        return found


_catalogues: list[Catalogue] = []


def catalogue(kind: str) -> Catalogue:
    """The names of the oracles, or those of the estimators."""
    return next(each for each in _catalogues if each.kind == kind)


def use(files: Sequence[str]) -> None:
    """Look for names in these files too, from now on, in this process.

    Raises:
        ValueError: a file that cannot be imported, one that defines nothing, or a name that is taken.
    """
    global _files  # which files are in use is a fact about the process, as what is installed is
    for path in files:
        if not any(catalogue._classes(path) for catalogue in _catalogues):
            raise ValueError(f"the plugin {path} defines no estimator and no oracle with a `name` of its own; expected at least one")
    _files = tuple(files)


@functools.lru_cache(maxsize=8)
def entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """What installed packages offer to a group; nothing is imported."""
    return tuple(importlib.metadata.entry_points(group=group))


def load(point: importlib.metadata.EntryPoint | None, name: str) -> Any:
    """The object of an entry point; KeyError where there is none, ValueError with one sentence where its package is broken."""
    if point is None:
        raise KeyError(name)
    try:
        with _exits_raised():
            return point.load()
    except Exception as error:  # the package may be anybody's
        package = point.dist.name if point.dist is not None else "an unknown package"
        raise ValueError(f"the plugin {name!r} of {package} is broken: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Plugin:
    """One plugin: what it is, where it comes from, and what is wrong with it (empty where nothing is)."""

    kind: str
    name: str
    source: str
    problem: str = ""


def plugins() -> list[Plugin]:
    """The plugins of all groups and files, each of them tried."""
    found = []
    for catalogue in _catalogues:
        found += [Plugin(catalogue.kind, name, inspect.getfile(kind)) for name, kind in catalogue.of_files().items()]
        for point in entry_points(f"{GROUP}{catalogue.kind}s"):
            package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
            found.append(Plugin(catalogue.kind, point.name, package, _problem(catalogue, point)))
    return found


def _problem(catalogue: Catalogue, point: importlib.metadata.EntryPoint) -> str:
    if point.name in catalogue.taken:
        return f"the plugin {point.name!r} is not used: a built-in {catalogue.kind} has this name"
    try:
        found = load(point, point.name)
    except ValueError as error:
        return str(error)
    is_class = isinstance(found, type) and issubclass(found, catalogue.base)
    return "" if is_class else f"the plugin {point.name!r} is {found!r}; expected a subclass of {catalogue.base.__name__}"


def file_module(path: str) -> ModuleType:
    """The module of a Python file, imported once under a name that follows from its path; its folder may be imported from too.

    Raises:
        ValueError: no such file, or one that raises when it is imported.
    """
    file, name = _named(path, os.getcwd())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"{path}: no such Python file" + ("" if Path(os.path.expanduser(path)).is_absolute() else f" in {Path.cwd()}"))
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # before it runs: dataclasses look themselves up there
    try:
        with _exits_raised():
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except Exception as error:  # the file may be anybody's
        del sys.modules[name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def module_of(place: str) -> ModuleType:
    """The module of a Python file or of a dotted name, whose import may raise any `Exception`, and never ends the process."""
    if place.endswith(".py"):
        return file_module(place)
    with _exits_raised():
        return importlib.import_module(place)


@contextlib.contextmanager
def _exits_raised() -> Iterator[None]:
    """Raise ImportError if code ends the process, by ``sys.exit``, ``os._exit`` or any other exception that is no `Exception`."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    before, os._exit = os._exit, leave  # type: ignore[assignment]
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ImportError(f"it ends the process ({type(error).__name__} {error})") from error
    finally:
        os._exit = before


def loaded_file(path: str) -> ModuleType | None:
    """The module of a Python file, where `file_module` has imported it."""
    return sys.modules.get(_named(path, os.getcwd())[1])


@functools.lru_cache(maxsize=256)
def _named(path: str, folder: str) -> tuple[Path, str]:
    """The file that a path means in a folder, and the name of its module; asked for with every name of a class."""
    file = Path(os.path.expanduser(path)).resolve()  # which leaves ~ as it is without a home
    return file, f"structgrad_file_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
