"""The configuration file of a gate."""

from __future__ import annotations

from pathlib import Path

from ...suites.comparison.settings import Settings, read_settings
from ...suites.trust import toml_of


def settings_of(path: Path | None) -> Settings:
    """Settings from a TOML file; the defaults without one.

    Raises:
        OSError: it cannot be read.
        ValueError: one sentence that names the file.
    """
    if path is None:
        return Settings()
    try:
        return read_settings(toml_of(path))
    except ValueError as error:  # of TOML too
        raise ValueError(f"{path}: {str(error)[:1000]}") from error
