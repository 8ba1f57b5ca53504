"""A process that answers calls, one JSON line each, until its input ends: ``python -m structgrad.suites.speed.worker MODULE…``.

The modules are imported before the first call comes. What is printed meanwhile goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import import_module


def main() -> None:
    """Answer what comes in."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_module(f"{__package__}.leash")
    for module in sys.argv[1:]:
        with contextlib.suppress(Exception):  # whoever calls it gets the error
            import_module(module)
    for line in sys.stdin:
        answers.write(answer(**json.loads(line)) + "\n")
        answers.flush()


def answer(function: str, arguments: dict[str, object]) -> str:
    """What a function ``"module:name"`` gives, or why it failed, as JSON."""
    module, _, name = function.partition(":")
    try:
        return json.dumps({"value": getattr(import_module(module), name)(**arguments)}, allow_nan=False)
    except Exception as error:
        from ..text import reason_of

        return json.dumps({"failure": reason_of(error)})


if __name__ == "__main__":
    main()
