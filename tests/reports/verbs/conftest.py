"""Runs of the verbs write no page."""

from collections.abc import Iterator

import pytest

from tests.reports.calling import without_page


@pytest.fixture(autouse=True, scope="module")
def _no_page() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        without_page(patched)
        yield
