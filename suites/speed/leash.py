"""Ends this process, and its group where it leads one, soon after the one that started it is gone.

Importing it is enough; pytest takes it as a plugin (``-p structgrad.suites.speed.leash``).
"""

from __future__ import annotations

import os
import signal
import threading
import time

LOOKS = 1.0
"""Seconds between two looks."""


def end_with_parent() -> None:
    """Watch from now on, also in the middle of a call."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKS)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with all that it has started
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


end_with_parent()
