"""How kernels are compiled: on first use, to a cache on disk, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

from numba import njit

entry: Any = njit(cache=True, nogil=True, error_model="numpy")
"""For functions that Python calls."""

_bare: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner: Any = njit(cache=True, nogil=True, error_model="numpy", **_bare)
"""For functions that compiled functions alone call: without the wrappers for others, a seventh of the compile time is saved."""
