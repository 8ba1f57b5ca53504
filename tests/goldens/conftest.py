"""Goldens list the suites of the package alone."""

import pytest

from structgrad.suites.measures import SUITES


@pytest.fixture(autouse=True)
def without_suites_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the simulated suite, which other tests in this process have added."""
    monkeypatch.delitem(SUITES, "simulated", raising=False)
