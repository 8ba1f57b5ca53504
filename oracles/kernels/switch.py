"""Whether compiled kernels serve, by the variable STRUCTGRAD_KERNELS of the environment; it is read when the process first needs it."""

from __future__ import annotations

import os

VARIABLE = "STRUCTGRAD_KERNELS"


def chosen() -> str:
    """What the environment asks for.

    Returns:
        ``on``; ``off``, plain torch everywhere, on the CPU too; ``check``, as ``on``, but every kernel of a GPU is compared with plain
        torch anew in this process, and one that fails or differs is an error.

    Raises:
        ValueError: it asks for something else.
    """
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off", "check"):
        raise ValueError(f"the environment variable {VARIABLE} got {value!r}; expected on, off or check; unset it for on")
    return value


CHOSEN = chosen()
