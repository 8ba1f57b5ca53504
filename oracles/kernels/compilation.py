"""Compilation of kernels: on first use, to a cache on disk, without the interpreter's lock, division as NumPy does it.

What the compiler may do to the arithmetic is chosen per function. Infinities keep their meaning everywhere. Of processes that want the same
function, one compiles it, and the others wait and load it; all compute the same bits.
"""

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from llvmlite.binding import Linkage, parse_assembly  # type: ignore[import-untyped]
from numba import njit
from numba.core import event, types
from numba.core.codegen import JITCodeLibrary, RuntimeLinker
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

from . import notices

try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself
    fcntl = None  # type: ignore[assignment]

Array = NDArray[Any]
"""What kernels take: arrays of the dtypes that they are called with."""


class _Library(JITCodeLibrary):
    """The machine code of a function, which calls its own copies of what it calls, and no other function's.

    Numba leaves it to the linker which of equal copies is called. But the compiler fuses and reorders the arithmetic of every copy apart:
    the last bits of a result would depend on what the process has compiled or loaded before.
    """

    def _finalize_final_module(self) -> None:
        functions = [function for function in self._final_module.functions if not function.is_declaration]
        self._copies = [function.name for function in functions if function.linkage == Linkage.linkonce_odr]
        self._link_copies(self._final_module, Linkage.internal)
        super()._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        module = super()._get_module_for_linking()
        self._link_copies(module, Linkage.linkonce_odr)
        return module

    def _link_copies(self, module: Any, linkage: Linkage) -> None:
        for name in self._copies:
            module.get_function(name).linkage = linkage


class _Inlet(_Library):
    """The code of a function that compiled functions alone call.

    They hold copies of its intermediate code, which are inlined and optimised there. Nobody calls its own machine code: none is generated.
    """

    def _optimize_final_module(self) -> None:
        """Leave it at the passes for single functions, which have run."""

    def _finalize_final_module(self) -> None:
        whole = self._final_module
        names = [variable.name for variable in whole.global_variables]
        if not any(name.startswith((RuntimeLinker.PREFIX, "numba.dynamic.globals")) for name in names):
            # Numba writes to the environments, in the place that the linker gives them.
            environments = [str(variable) for variable in whole.global_variables if variable.name.startswith("_ZN08NumbaEnv")]
            self._final_module = parse_assembly("\n".join([str(self._codegen._create_empty_module(self.name)), *environments]))
        super()._finalize_final_module()
        self._final_module = whole


class _Compiler(Compiler):
    def _compile_bytecode(self) -> Any:
        library = _Inlet if self.state.flags.no_cpython_wrapper else _Library
        self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super()._compile_bytecode()


def _njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function, in one process at a time."""

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = njit(function, nogil=True, error_model="numpy", pipeline_class=_Compiler, **options)
        if isinstance(kernel, Dispatcher):  # and not the function itself, where numba is switched off
            vars(kernel)["get_call_template"] = partial(_of_common_types, kernel.get_call_template)
            if _cached(kernel):
                vars(kernel)["compile"] = partial(_in_turn, kernel, kernel.compile)
        return kernel

    return decorate


class UncachedKernelWarning(UserWarning):
    """Compiled kernels cannot be stored: every process compiles them again."""


def _cached(kernel: Dispatcher) -> bool:
    """Store what is compiled for later processes; whether there is a folder for that."""
    try:
        kernel.enable_caching()
    except RuntimeError:  # numba found no folder that can be written
        _warn_uncached("no folder can be written")
        return False
    stored = vars(kernel)["_cache"]
    stored._cache_file._source_stamp = _sources(kernel.py_func.__module__)
    stored._cache_file._load_index = partial(_readable, stored._cache_file._load_index)
    stored.save_overload = partial(_saved, stored.save_overload)
    return True


@cache
def _sources(name: str) -> str:
    """A digest of a module, and of those of its package that it imports functions and numbers from.

    These are inlined, and numba looks at the function's own file alone.
    """
    loaded, package = sys.modules[name], name.split(".", maxsplit=1)[0]
    text = Path(str(loaded.__file__)).read_bytes()
    content, values = hashlib.sha256(text), vars(loaded).values()
    others = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "" for value in values}
    others |= {resolve_name(found.decode(), loaded.__package__) for found in re.findall(rb"^from (\.[\w.]*\w) import", text, re.MULTILINE)}
    for other in sorted(others - {name}):
        known = sys.modules.get(other)
        if other.split(".", maxsplit=1)[0] == package and isinstance(known, ModuleType) and not hasattr(known, "__path__"):
            content.update(_sources(other).encode())
    return content.hexdigest()


def _saved(save: Callable[[Any, Any], None], signature: Any, compiled: Any) -> None:
    """Store a compiled function; a full disk or a folder that has become read-only costs the next process its time, and no result."""
    try:
        save(signature, compiled)
    except OSError as error:
        _warn_uncached(error.strerror or str(error))


@cache
def _warn_uncached(reason: str) -> None:
    warnings.warn(
        f"compiled kernels cannot be stored ({reason}), and every process compiles them again; set NUMBA_CACHE_DIR to a writable folder",
        UncachedKernelWarning,
        stacklevel=2,
    )


def _of_common_types(get_call_template: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """How a compiled function calls another: constants and short integers as any 64-bit ones, for which alone that is compiled."""

    def common(kind: Any) -> Any:
        kind = types.unliteral(kind)
        return types.int64 if kind in types.signed_domain else kind

    return get_call_template(tuple(map(common, args)), {name: common(kind) for name, kind in kws.items()})


def _readable(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What the cache holds of a function; nothing where it names a class that is gone, which numba reads before it asks for the version."""
    try:
        return load()
    except Exception:
        return {}


def _in_turn(kernel: Dispatcher, compile_or_load: Callable[[Any], Any], signature: Any) -> Any:
    # numba's own lock comes first, as in numba: of threads that compile, one waits for another process and the others for that one.
    with global_compiler_lock, _turn(Path(str(kernel.stats.cache_path)), f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"):
        return compile_or_load(signature)


@contextmanager
def _turn(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a function in the cache: a byte of a file, which the system gives back when its owner ends, however it does.

    A function is held while those are compiled that it calls, never the other way round: processes cannot wait for each other in a circle.
    """
    file, held = _lock_file(folder, os.getpid()), False
    byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    if file is not None and not (held := _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, byte)):
        notices.step(1)
        try:
            held = _lock(file, fcntl.LOCK_EX, byte)  # when the process that compiles the function has done so
        finally:
            notices.step(-1)
    try:
        yield
    finally:
        if file is not None and held:
            _lock(file, fcntl.LOCK_UN, byte)


class _Compiling(event.Listener):
    """Tells of what is compiled here; what the cache holds is loaded without a word."""

    def on_start(self, _: event.Event) -> None:
        notices.step(1)

    def on_end(self, _: event.Event) -> None:
        notices.step(-1)


event.register("numba:compile", _Compiling())


def _lock(file: int, how: int, byte: int) -> bool:
    """Whether it was done: some file systems have no locks."""
    with suppress(OSError):
        fcntl.lockf(file, how, 1, byte)
        return True
    return False


@cache
def _lock_file(folder: Path, process: int) -> int | None:
    """Open for as long as the process lives, since closing it would give up all of its locks; None where there is none to be had."""
    if fcntl is None:
        return None
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "compiling.lock", os.O_RDWR | os.O_CREAT, 0o666)
    return None


_uncounted: Any = partial(_njit, _nrt=False)

compiled: Any = _njit()
"""As it is written: for what Python calls."""

inner: Any = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For what compiled functions alone call: without the wrappers for others, a seventh of the compile time is saved."""

uncounted: Any = _uncounted(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""The same without counts of the references to its arrays: locked instructions, which take longer than the work of a short function.

Such a function returns numbers or vectors alone, makes no array, and calls nothing that gives it one: counts would go wrong. So it is with
those below, which have the wrappers.
"""

inlined: Any = _uncounted(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
"""`uncounted`, inlined in place of every call: for functions of many arrays, which take longer to pass than a short loop over them."""

shared: Any = _uncounted()
"""As it is written, for Python and for compiled functions."""

fused: Any = _uncounted(fastmath={"contract"})
"""With fused multiply-adds."""

reordered: Any = _uncounted(fastmath={"contract", "reassoc"})
"""With fused multiply-adds, and sums in any order."""
