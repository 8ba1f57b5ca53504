"""Data of tasks, written by hand, and a cache of their own."""

from pathlib import Path

import pytest

from tests.suites.tasks import data


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, see `data.write`."""
    folder = tmp_path_factory.mktemp("task_data")
    data.write(folder)
    return folder


@pytest.fixture
def written(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read these data, not the real ones."""
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(task_data))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
