"""Fixtures of the tests of reports: the published table, read once per process."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structgrad.reports import published


@pytest.fixture(autouse=True, scope="session")
def _published_once() -> Iterator[None]:
    """Reading 389 340 rows takes the better part of a second; dozens of tests ask for them, and none writes into them."""
    read, of_the_package = published.load, functools.cache(published.load)

    def load(folder: Path = published.FOLDER) -> Any:
        return of_the_package() if folder == published.FOLDER else read(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "load", load)
        yield
