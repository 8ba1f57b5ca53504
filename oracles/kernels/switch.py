"""Switch of compiled kernels: the variable STRUCTGRAD_KERNELS, which is read when the process first needs it, and by context."""

from __future__ import annotations

import os
from contextvars import ContextVar

VARIABLE = "STRUCTGRAD_KERNELS"


def chosen() -> str:
    """What the environment asks for: ``on``, or ``off`` for plain torch everywhere.

    Raises:
        ValueError: it asks for something else.
    """
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise ValueError(f"the environment variable {VARIABLE} got {value!r}; expected on or off; unset it for on")
    return value


CHOSEN = chosen()

SERVING: ContextVar[bool] = ContextVar("structgrad_kernels_serving", default=CHOSEN != "off")
"""Whether kernels serve in this context."""


class serving_as:  # noqa: N801 - is called like a function, and entered at every gradient, where a generator's context takes longer
    """Let kernels serve in this context, or not.

    So a gradient is computed by what computed its value: on a GPU autograd does so in a thread of its own, which has another context.
    """

    def __init__(self, serving: bool) -> None:
        self.serving = serving

    def __enter__(self) -> None:
        self.token = SERVING.set(self.serving)

    def __exit__(self, *raised: object) -> None:
        SERVING.reset(self.token)
