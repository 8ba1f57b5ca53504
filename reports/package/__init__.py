"""Benchmarks and exact analysis of gradient estimators through discrete, structured latent variables.

This is `structgrad` itself: it holds the rooms and the version, which is looked up where it is asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of `typing`, whose import takes longer than this one
__version__: str

if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("structgrad")
