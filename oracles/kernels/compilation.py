"""How kernels are compiled: on first use, to a cache on disk, without the interpreter's lock, division as NumPy does it.

What the compiler may do to the arithmetic is chosen per function. Infinities keep their meaning everywhere.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import njit

_njit: Any = partial(njit, cache=True, nogil=True, error_model="numpy")
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

fused: Any = _uncounted(fastmath={"contract"})
"""With fused multiply-adds."""

reordered: Any = _uncounted(fastmath={"contract", "reassoc"})
"""With fused multiply-adds, and sums in any order."""

ordered: Any = _uncounted(fastmath={"nnan", "nsz", "contract"})
"""For comparisons of what is no NaN: maxima and minima that vectorise, whatever the sign of a zero."""
