"""The folder of this package in the user's cache."""

import os
from pathlib import Path


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/structgrad`` or ``~/.cache/structgrad``; without a home, such as in a container, a folder of temporary files."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "structgrad"
    try:
        return Path.home() / ".cache" / "structgrad"
    except RuntimeError:
        # Not by `tempfile`, which raises if no folder at all can be written.
        return Path(os.environ.get("TMPDIR", "/tmp")) / f"structgrad-{os.getuid() if hasattr(os, 'getuid') else 'user'}" / "structgrad"
