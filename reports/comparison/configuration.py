"""The configuration file of a gate."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ...suites.comparison.settings import Settings, read_settings


def settings_of(path: Path | None) -> Settings:
    """Settings from a TOML file; the defaults without one.

    Raises:
        OSError: it cannot be read.
        ValueError: one sentence that names the file.
    """
    if path is None:
        return Settings()
    try:
        return read_settings(tomllib.loads(path.read_text()))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no text; expected TOML") from error
    except ValueError as error:  # of TOML too
        raise ValueError(f"{path}: {error}") from error
