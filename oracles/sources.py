"""Files of code that is not of this package: those of a plugin, and of everything of its own that it imports."""

import ast
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_OURS = "structgrad."

_INSTALLED = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of the standard library and of installed packages, whose versions a run records instead of their files."""

COMPUTED = "*"
"""Stands for a module whose name is computed."""

_PACKAGES = ("site-packages", "dist-packages")


def source_of(thing: object) -> Path | None:
    """The file that the class of an object stands in, or a class or function itself; None for those of this package.

    Example:
        >>> from structgrad.estimators import LeaveOneOut
        >>> source_of(LeaveOneOut()) is None
        True
    """
    named = thing if isinstance(thing, type) or hasattr(thing, "__code__") else type(thing)
    module = str(named.__module__)
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None or module.startswith(_OURS) else Path(file)


def digest_of(file: Path | None) -> tuple[str, ...]:
    """One word that changes with the content of a file and of all that it imports of its own; none if there is no file."""
    if file is None or not stamp(file):
        return ()
    found = hashlib.blake2b(digest_size=8)
    for own in own_files(file):
        found.update(_digest(own, stamp(own)))
    return (found.hexdigest(),)


def own_files(file: Path) -> tuple[Path, ...]:
    """A Python file and the files that it imports, directly or not, in functions too: no installed package, nothing of this one.

    Loaded modules below the folder of the file count if one of these files imports by a name that is computed.
    """
    found: dict[Path, None] = {}
    # The module that the file is loaded as, which relative imports start from; empty if it is not.
    module = next((name for name, one in list(sys.modules.items()) if getattr(one, "__file__", None) == str(file)), "")
    waiting = [(file, module)]
    while waiting:
        path, module = waiting.pop()
        if path not in found:
            found[path] = None
            names = _imported(path, stamp(path), module)
            if COMPUTED in names:
                loaded = [(name, getattr(one, "__file__", None)) for name, one in list(sys.modules.items())]
                names += tuple(name for name, origin in loaded if isinstance(origin, str) and Path(origin).is_relative_to(file.parent))
            waiting += [(own, name) for name in names if (own := _own_file(name)) is not None]
    return (file, *sorted(set(found) - {file}))


def stamp(path: Path) -> tuple[int, ...]:
    """Time, size and inode of a file, which change when it is written; empty if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


@functools.lru_cache(maxsize=256)
def _imported(file: Path, written: tuple[int, ...], module: str) -> tuple[str, ...]:
    """Names of modules that may be imported by a file, some of which may be other attributes."""
    with suppress(OSError, SyntaxError, ValueError):
        return tuple(dict.fromkeys(_names(ast.parse(file.read_bytes()), module, file.name == "__init__.py")))
    return ()


def _names(tree: ast.Module, module: str, package: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: len(module.split(".")) - node.level + package] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            for part in node.args[:1]:
                yield part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else COMPUTED


def _with_parents(name: str) -> Iterator[str]:
    """``a``, ``a.b`` and ``a.b.c`` of the last: packages are imported too."""
    parts = name.split(".") if name else []
    yield from (".".join(parts[: place + 1]) for place in range(len(parts)))


def _own_file(name: str) -> Path | None:
    """The file of a module of the user's own; None for others, and for what is no module."""
    if f"{name}.".startswith(_OURS) or name.partition(".")[0] in sys.stdlib_module_names:
        return None
    module: ModuleType | None = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if module is None:
        with suppress(ImportError, ValueError, AttributeError):
            # A module that is imported later, in a function: its packages are there already, so that nothing is imported here.
            parent = name.rpartition(".")[0]
            spec = importlib.util.find_spec(name) if not parent or parent in sys.modules else None
            origin = spec.origin if spec is not None and spec.has_location else None
    if origin is None or not origin.endswith(".py"):
        return None
    return None if _installed(path := Path(origin)) else path


def _installed(path: Path) -> bool:
    return any(folder in _INSTALLED or folder.name in _PACKAGES for folder in path.resolve().parents)


def own_fault(error: BaseException) -> tuple[str, str] | None:
    """The user's own function that raised an exception, and the line; None if there is none, or if this package refused its input."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if os.path.isfile(frame.f_code.co_filename)]
    ours = [f"{frame.f_globals.get('__name__')}.".startswith(_OURS) for frame, _ in frames]
    own = [one for one, our in zip(frames, ours, strict=True) if not our and not _installed(Path(one[0].f_code.co_filename))]
    if not own or (ours[-1] and isinstance(error, ValueError)):
        return None
    frame, line = own[-1]
    return own[0][0].f_code.co_qualname, f"line {line} of {os.path.relpath(frame.f_code.co_filename)}"


@functools.lru_cache(maxsize=1024)
def _digest(file: Path, written: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).digest()
