"""Runs under URLs: another machine continues from the last copy, and a copy that fails costs nothing."""

import sys
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.running import remote
from structgrad.suites.running.remote import RemoteError, RemoteFolder, RemoteWarning, is_url, reading, working_folder
from structgrad.suites.running.runner import collect, run
from structgrad.suites.running.store import FILE
from tests.reports.calling import FEW, SMALL, call, refused, without_page
from tests.suites.running_cases import HERE, comparable
from tests.suites.simulated import simulated_plan

PLAN = simulated_plan(8)


class Stopped(BaseException):
    """Ends a run at once, as a kill does."""


def on_machine(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on a machine of this name, with its own folder and cache."""
    place = folder / name
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine("a", tmp_path, monkeypatch)
    monkeypatch.setattr(remote, "COPY_SECONDS", 0.0)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/store/run"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return comparable(run(PLAN, tmp_path_factory.mktemp("here"), machine=HERE))


def begin(url: str, count: int) -> None:
    """Start a run, whose driver is gone after so many cells."""

    def progress(snapshot: Any) -> None:
        if snapshot.label and snapshot.finished >= count:
            raise Stopped

    with pytest.raises(Stopped):
        run(PLAN, url, machine=HERE, progress=progress)


def check_continues(url: str, finished: int, expected: list[Any]) -> None:
    """The run finds so many cells, and ends as if it had never stopped."""
    seen: list[Any] = []
    assert comparable(run(PLAN, url, machine=HERE, progress=seen.append)) == expected
    assert seen[0].finished == finished


def test_another_machine_continues_and_a_third_one_reads(tmp_path, monkeypatch, url, expected):
    begin(url, 5)
    on_machine("b", tmp_path, monkeypatch)
    check_continues(url, 5, expected)
    on_machine("c", tmp_path, monkeypatch)
    assert comparable(collect(url)) == expected
    files = {name.rpartition("/")[2] for name in RemoteFolder(url).files.find(RemoteFolder(url).root)}
    assert FILE in files
    assert not any(name.startswith(".") for name in files)


def test_a_copy_that_fails_is_a_warning_and_tried_again(tmp_path, monkeypatch, expected):
    url = f"memory://{tmp_path}/run"
    real, calls = RemoteFolder.put, [0]

    def put(self: RemoteFolder, name: str, content: bytes) -> None:
        calls[0] += 1
        if calls[0] in (5, 6):
            raise RemoteError(f"cannot write {self.url} (the server is away)")
        real(self, name, content)

    monkeypatch.setattr(RemoteFolder, "put", put)
    with pytest.warns(RemoteWarning, match=r"the server is away.*; tried again in 0 s"):
        rows = run(PLAN, url, machine=HERE)
    assert comparable(rows) == expected
    on_machine("b", tmp_path, monkeypatch)
    assert comparable(collect(url)) == expected


def test_a_damaged_copy_is_one_sentence(tmp_path, url):
    begin(url, 4)
    RemoteFolder(url).put(FILE, b"damaged" * 9)
    with pytest.raises(RemoteError, match=rf"^{url}/cells.sqlite cannot be read .*; measure the run again with --fresh"):
        run(PLAN, url, machine=HERE)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://bucket/run", "nowhere://bucket/run cannot be read or written .*; expected such as s3://bucket/run"),
        ("s3:/bucket/run", "got 's3:/bucket/run'; expected s3:// with two slashes, or a folder without a colon"),
    ],
)
def test_a_url_that_cannot_be_is_one_sentence(url, message):
    with pytest.raises(ValueError, match=message):
        run(PLAN, url, machine=HERE)


def test_names_of_places(tmp_path, monkeypatch):
    assert [is_url(place) for place in ("s3://b/r", "file:///r", "runs/r", Path("s3://b"), "C:\\r")] == [True, True, False, False, False]
    assert working_folder("s3://bucket/a") != working_folder("s3://other/a")
    with (
        pytest.raises(
            FileNotFoundError, match=r"found nothing at memory://.*/nowhere; expected the URL of a run, or of its results.parquet"
        ),
        reading(f"memory://{tmp_path}/nowhere"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"needs a package .*; install it, such as with: pip install 'structgrad\[remote\]'"):
        RemoteFolder("s3://bucket/run")


def test_commands_read_and_write_urls(tmp_path, monkeypatch):
    without_page(monkeypatch)
    url = f"file://{tmp_path}/store/run"
    assert call(*SMALL, *FEW, "-e", "rloo", "-o", url).exit_code == 0
    on_machine("b", tmp_path, monkeypatch)
    assert call("status", url).stdout.startswith(f"{url}: finished")
    assert call("export", f"{url}/results.parquet", "--output", "table.csv").exit_code == 0
    assert "1/1 cells" in call(*SMALL, *FEW, "-e", "rloo", "-o", url).output
    assert "found nothing at" in refused("status", f"{url}-nowhere")
