"""How kernels are compiled: on first use, to a cache on disk, without the interpreter's lock, division as NumPy does it.

What the compiler may do to the arithmetic is chosen per function. Infinities keep their meaning everywhere.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import njit

_njit: Any = partial(njit, cache=True, nogil=True, error_model="numpy")

compiled: Any = _njit()
"""As it is written."""

inner: Any = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For what compiled functions alone call: without the wrappers for others, a seventh of the compile time is saved."""

fused: Any = _njit(fastmath={"contract"})
"""With fused multiply-adds."""

reordered: Any = _njit(fastmath={"contract", "reassoc"})
"""With fused multiply-adds, and sums in any order."""

ordered: Any = _njit(fastmath={"nnan", "nsz", "contract"})
"""For comparisons of what is no NaN: maxima and minima that vectorise, whatever the sign of a zero."""
