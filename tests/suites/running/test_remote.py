"""Runs under a URL: nothing that is finished is lost, nothing counts twice, nothing half-written is taken, and one driver writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from structgrad.suites.running import cell_writer, store
from structgrad.suites.running.parts import journal
from structgrad.suites.running.parts.locking import LockedError
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.remote import lease, mirror, objects, snapshot
from structgrad.suites.running.remote.objects import ObjectStore, RemoteError, RemoteWarning
from structgrad.suites.running.runner import collect, measure, run
from tests.reports.calling import FEW, SMALL, call, refused, without_page
from tests.suites.running.remote_cases import HERE, Stopped, comparable, impatient, on_machine, stopped_after
from tests.suites.simulated import simulated_plan

PLAN = simulated_plan(8)
WORK = grid(PLAN)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine("a", tmp_path, monkeypatch)
    impatient(monkeypatch)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}/run"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return comparable(run(PLAN, tmp_path_factory.mktemp("here"), machine=HERE))


def begun(url: str, count: int) -> None:
    """A run of which so many cells are finished when its driver is gone."""
    with pytest.raises(Stopped):
        run(PLAN, url, machine=HERE, progress=stopped_after(count))


def cells_of(url: str) -> list[str]:
    """The identities of all cells in all objects."""
    remote, found = ObjectStore(url), []
    for name in remote.names():
        if snapshot.BATCH.fullmatch(name):
            found += list(snapshot.unpacked(remote.get(name)))
        elif snapshot.PART.fullmatch(name):
            Path("part.parquet").write_bytes(remote.get(name))
            part = snapshot.compaction.described(Path("part.parquet"), name)
            assert part is not None
            found += part.cells
    return found


def assert_goes_on(url, finished, expected):
    """A run that finds so many cells finished, and ends as if it had never stopped."""
    told = []
    assert comparable(run(PLAN, url, machine=HERE, progress=told.append)) == expected
    assert told[0].finished == finished


@pytest.mark.parametrize("batch", [1, 3, 1024])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_another_machine_goes_on(tmp_path, monkeypatch, expected, batch, kind):
    monkeypatch.setattr(cell_writer, "BATCH", batch)
    url = f"{kind}://{tmp_path}/store/{batch}/run"
    begun(url, 5)
    on_machine("b", tmp_path, monkeypatch)
    assert_goes_on(url, 5, expected)
    assert sorted(cells_of(url)) == sorted(cell.identity for cell in WORK.cells)
    on_machine("c", tmp_path, monkeypatch)
    assert comparable(collect(url)) == expected
    assert [name for name in ObjectStore(url).names() if name.startswith(".")] == []


def test_what_the_folder_alone_holds_is_written(tmp_path, url, expected):
    """As after a loss of the server, which its driver waited for in vain."""
    begun(url, 3)
    remote = ObjectStore(url)
    remote.remove(remote.names())
    assert_goes_on(url, 3, expected)
    assert len(cells_of(url)) == 8


@pytest.mark.parametrize("batch", [2, 1024])
def test_two_machines_that_took_turns_agree(tmp_path, monkeypatch, url, expected, batch):
    """The folder of the first is older than what lies under the URL when it comes back."""
    monkeypatch.setattr(cell_writer, "BATCH", batch)
    begun(url, 2)
    on_machine("b", tmp_path, monkeypatch)
    begun(url, 6)
    on_machine("a", tmp_path, monkeypatch)
    assert_goes_on(url, 6, expected)
    assert sorted(cells_of(url)) == sorted(cell.identity for cell in WORK.cells)


def test_what_was_made_good_elsewhere_takes_the_place_of_a_failure(tmp_path, monkeypatch):
    """In all four ways in which a cell may lie in two folders."""
    plan, kinds = simulated_plan(2), (journal.FAILED_KIND, journal.DONE)
    cells = grid(plan).cells
    measure(plan, Path("whole"), machine=HERE)
    texts = {cell: store.cell_path(Path("whole"), cell).read_text() for cell in cells}
    for number, (batch_here, batch_there) in enumerate(((1, 1), (1, 9), (9, 1), (9, 9))):
        for here, there in ((here, there) for here in kinds for there in kinds):
            folders = {}
            for name, kind, batch in (("here", here, batch_here), ("there", there, batch_there)):
                folders[name] = Path(f"{name}-{number}-{here}-{there}")
                monkeypatch.setattr(cell_writer, "BATCH", batch)
                writer = cell_writer.CellWriter(folders[name], cells)
                text = texts[cells[0]]
                writer.keep(
                    cells[0],
                    text.replace('"ok"', '"crash"').replace('"shared": {', '"shared": {"status": "crash", ', 1)
                    if kind == journal.FAILED_KIND
                    else text,
                    0.0,
                )
                if name == "there":
                    writer.keep(cells[1], texts[cells[1]], 0.0)
            mirror.absorb(folders["here"], folders["there"])
            found = {identity: one.kind for identity, one in store.known(folders["here"], cells).items()}
            best = journal.DONE if journal.DONE in (here, there) else journal.FAILED_KIND
            assert found == {cells[0].identity: best, cells[1].identity: journal.DONE}, (number, here, there)
            parts = journal.read(folders["here"]).parts.values()
            assert sum(cells[0].identity in part.cells for part in parts) <= 1


# A driver that is killed at any write.


def dying(monkeypatch: pytest.MonkeyPatch, reals: dict[str, Any], after: int, *, before: bool) -> None:
    """Operations of stores, of which one, after so many, is the last that the process does, or does not come to."""
    left = [after]

    def made(real: Any) -> Any:
        def operation(*given: Any) -> Any:
            left[0] -= 1
            if left[0] == -1 and before:
                raise Stopped
            found = real(*given)
            if left[0] == -1:
                raise Stopped
            return found

        return operation

    for name, real in reals.items():
        monkeypatch.setattr(ObjectStore, name, made(real))


def test_a_driver_that_dies_at_any_write_loses_nothing(tmp_path, monkeypatch):
    """Before or after each of its writes and removals; cells that were told as finished a second time by nobody."""
    monkeypatch.setattr(cell_writer, "BATCH", 2)
    monkeypatch.setattr(lease, "RENEWED", 60.0)
    plan = simulated_plan(4)
    expected = comparable(run(plan, Path("here"), machine=HERE))
    reals = {name: getattr(ObjectStore, name) for name in ("put", "remove")}
    done = number = 0
    while not done:
        url = f"memory://{tmp_path.name}/{number}"
        dying(monkeypatch, reals, number // 2, before=bool(number % 2))
        on_machine(f"first-{number}", tmp_path, monkeypatch)
        told: list[Any] = []
        try:
            run(plan, url, machine=HERE, progress=told.append)
            done = 1
        except Stopped:
            pass
        for name, real in reals.items():
            monkeypatch.setattr(ObjectStore, name, real)
        ObjectStore(url).remove(ObjectStore(url).names(lease.FOLDER))
        on_machine(f"second-{number}", tmp_path, monkeypatch)
        again: list[Any] = []
        assert comparable(run(plan, url, machine=HERE, progress=again.append)) == expected
        assert again[0].finished >= max((one.finished for one in told), default=0) - (not done)
        assert sorted(cells_of(url)) == sorted(cell.identity for cell in grid(plan).cells)
        number += 1
    assert number > 15


KILLED = """
import sys
from structgrad.suites.running.runner import run
from structgrad.suites.running.planning.plan import Machine
from tests.suites.simulated import simulated_plan
import os, signal

def progress(snapshot):
    if snapshot.label and snapshot.finished >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

run(simulated_plan(8), sys.argv[1], machine=Machine(jobs=0), progress=progress)
"""


@pytest.mark.sweep
def test_a_driver_that_is_killed_holds_nothing(tmp_path, monkeypatch, expected):
    url = f"file://{tmp_path}/store/run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    assert subprocess.run([sys.executable, "-c", KILLED, url, "4"], env=environment, check=False).returncode == -9
    assert [name for name in ObjectStore(url).names() if name.startswith(".lease")] == [".lease/000001.json"]
    on_machine("b", tmp_path, monkeypatch)
    told = []
    assert comparable(run(PLAN, url, machine=HERE, progress=told.append)) == expected
    assert told[0].finished >= 3, "more than the cell that was told last is lost"


# What is not whole.


def test_nothing_half_written_is_taken(tmp_path, monkeypatch, url, expected):
    monkeypatch.setattr(cell_writer, "BATCH", 3)
    begun(url, 4)
    remote = ObjectStore(url)
    names = [name for name in remote.names() if snapshot.number_of(name)]
    assert {name.partition("/")[0] for name in names} == {"parts", "cells"}
    for name in names:
        remote.put(name, remote.get(name)[:-9])
    on_machine("b", tmp_path, monkeypatch)
    told = []
    with pytest.warns(RemoteWarning, match=r"is damaged, and not taken .it is not what was written.; its cells are measured again"):
        assert comparable(run(PLAN, url, machine=HERE, progress=told.append)) == expected
    assert told[0].finished == 0
    assert not set(names) & set(remote.names()), "what is damaged stays"
    assert sorted(cells_of(url)) == sorted(cell.identity for cell in WORK.cells)


@pytest.mark.parametrize("content", [b"no gzip", snapshot.packed(["null"]), snapshot.packed(['{"cell": {"identity": "../../x"}}'])])
def test_what_is_whole_and_holds_no_cells_is_not_taken(url, content):
    begun(url, 2)
    remote = ObjectStore(url)
    remote.put(snapshot.batch_name(999, content), content)
    with pytest.warns(RemoteWarning, match="is damaged, and not taken"):
        assert len({row.cell for row in collect(url)}) == 2


def test_a_name_that_leads_out_of_the_folder_is_no_part():
    digest = "0" * 32
    assert snapshot.PART.fullmatch(f"parts/bias/00000001-{digest}.parquet")
    for name in (f"parts/../00000001-{digest}.parquet", f"parts/a/../00000001-{digest}.parquet", f"../parts/a/00000001-{digest}.parquet"):
        assert not snapshot.PART.fullmatch(name)


def test_a_newer_run_is_refused(url):
    ObjectStore(url).put("run.json", json.dumps({"schema_version": 10**6}).encode())
    with pytest.raises(store.NewerSchemaError, match="nothing was changed"):
        run(PLAN, url, machine=HERE)


def test_the_latest_object_of_a_cell_counts(tmp_path):
    """A part, a batch after it, a batch before it: as a driver leaves them that is killed before it removes what is old."""
    remote, cells = ObjectStore(f"memory://{tmp_path.name}/order"), grid(simulated_plan(1)).cells
    measure(simulated_plan(1), Path("one"), machine=HERE)
    text = store.cell_path(Path("one"), cells[0]).read_text()
    contents = {number: snapshot.packed([text.replace('"seconds": ', f'"seconds": {number}', 1)]) for number in (3, 5)}
    for number in (5, 3):
        remote.put(snapshot.batch_name(number, contents[number]), contents[number])
    found = snapshot.fetch(remote, Path("copy"))
    assert store.known(Path("copy"), cells)[cells[0].identity].seconds >= 5
    assert [len(batch) for _, batch in sorted(found.batches.items())] == [0, 1]


# One driver.


QUIET = pytest.mark.filterwarnings(f"ignore::{RemoteWarning.__module__}.RemoteWarning")
"""For an owner that lives on a machine that is busy."""


@QUIET
def test_a_second_driver_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.setattr(lease, "DEAD", 10.0)
    with lease.held(url):
        on_machine("b", tmp_path, monkeypatch)
        with (
            pytest.raises(
                LockedError, match=rf"^{url} is being written by process {os.getpid()} on .*; wait until it has ended, or name another"
            ),
        ):
            run(PLAN, url, machine=HERE)
    run(PLAN, url, machine=HERE)


@QUIET
def test_of_many_that_come_at_once_one_becomes_the_driver(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/run"  # objects in memory bear no threads
    monkeypatch.setattr(lease, "DEAD", 10.0)
    held, refused, end = [], [], threading.Event()

    def come() -> None:
        try:
            with lease.held(url) as found:
                held.append(found.number)
                end.wait(120)  # one that begins late on a busy machine hears of the owner at its next sign of life
        except LockedError as error:
            refused.append(str(error))
            end.set() if len(refused) == 4 else None

    threads = [threading.Thread(target=come) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (held, len(refused)) == ([1], 4)


def test_two_of_a_process_that_find_nothing_do_not_take_one_object_for_their_own(url, monkeypatch):
    monkeypatch.setattr(lease, "_numbers", lambda store, real=lease._numbers, first=[[], []]: first.pop() if first else real(store))
    with lease.held(url) as found:
        assert found.number == 1
        with pytest.raises(LockedError, match=f"is being written by process {os.getpid()} on "), lease.held(url):
            raise AssertionError


def test_a_url_with_one_slash_is_no_folder():
    with pytest.raises(ValueError, match=r"^got 's3:/bucket/run'; expected s3:// with two slashes, or a folder without a colon$"):
        objects.is_url("s3:/bucket/run")
    assert not objects.is_url("C:/run")


def _left(url: str, **changes: object) -> None:
    words = json.loads(lease._words("", 0)) | changes
    ObjectStore(url).put(lease._name(7), json.dumps(words).encode())


def test_a_dead_owner_is_followed(url, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    _left(url, process=gone.pid)
    with lease.held(url) as found:  # known at once: a process of this machine
        assert found.number == 8
    _left(url, machine="another")
    began = time.monotonic()
    with pytest.warns(RemoteWarning, match=rf"looking for {lease.DEAD:g} s whether that lives"), lease.held(url) as found:
        assert found.number == 8
    assert time.monotonic() - began >= lease.DEAD
    assert ObjectStore(url).names(lease.FOLDER) == []


@pytest.mark.parametrize("words", [b"", b"[]", b"\xff", b'{"process": "x"}'])
def test_a_lease_that_cannot_be_read_is_one_of_a_dead_owner(url, words):
    ObjectStore(url).put(lease._name(1), words)
    with pytest.warns(RemoteWarning), lease.held(url) as found:
        assert found.number == 2


def test_an_owner_that_was_taken_for_dead_stops(tmp_path, url):
    def take_over(told: Any) -> None:
        if told.label and told.finished == 3:
            ObjectStore(url).put(lease._name(2), b"{}")
            time.sleep(0.3)

    with pytest.raises(RemoteError, match=r"was taken over by another process, which had heard nothing of this one for 0\.5 s"):
        run(PLAN, url, machine=HERE, progress=take_over)
    assert ObjectStore(url).names(lease.FOLDER) == [lease._name(1), lease._name(2)], "it removed the lease of its successor"


def test_an_owner_hears_of_its_successor_by_itself(url):
    with lease.held(url) as found:
        found.check()
        ObjectStore(url).put(lease._name(2), b"{}")
        found._thread.join(10)
        with pytest.raises(RemoteError, match="taken over"):
            found.check()


def test_nothing_is_removed_by_an_owner_that_was_taken_for_dead(url, monkeypatch):
    """Though it has not heard of it yet."""
    monkeypatch.setattr(lease, "RENEWED", 60.0)
    with mirror.mirrored(url) as mine:
        old = mine.remote.names("cells")
        ObjectStore(url).put(lease._name(2), b"{}")
        mine.batches["cells/old"] = {}
        ObjectStore(url).put("cells/old", b"")
        with pytest.raises(RemoteError, match="taken over"):
            mine.close(journal.Index(), set())
    assert ObjectStore(url).names("cells") == [*old, "cells/old"]


# A server that fails.


class Failing:
    """A filesystem whose operations fail so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> None:
        self.left, self.calls = times, 0
        real = fsspec.implementations.memory.MemoryFileSystem.pipe_file

        def pipe_file(files: Any, path: str, *given: Any, **more: Any) -> Any:
            self.calls += 1
            if ".lease" not in path and self.left > 0:
                self.left -= 1
                raise error
            return real(files, path, *given, **more)

        monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "pipe_file", pipe_file)


@pytest.mark.parametrize("error", [OSError("the server is busy"), RuntimeError("no connection"), TimeoutError()])
def test_what_fails_for_a_while_is_tried_again(monkeypatch, url, expected, error):
    Failing(monkeypatch, error, 3)
    with pytest.warns(RemoteWarning, match="; tried again for 0.2 s"):
        assert comparable(run(PLAN, url, machine=HERE)) == expected
    assert len(cells_of(url)) == 8


def test_what_fails_for_long_ends_in_a_sentence_and_loses_nothing(monkeypatch, url, expected):
    failing = Failing(monkeypatch, OSError("the server is busy"), 0)

    def progress(told: Any) -> None:
        failing.left = 10**6 if told.label and told.finished == 4 else failing.left

    with pytest.warns(RemoteWarning), pytest.raises(RemoteError, match=rf"^cannot write {url}/.* .the server is busy., tried for 0.2 s$"):
        run(PLAN, url, machine=HERE, progress=progress)
    failing.left = 0
    told = []
    assert comparable(run(PLAN, url, machine=HERE, progress=told.append)) == expected
    assert told[0].finished >= 4


@pytest.mark.parametrize("error", [PermissionError("no"), type("NoCredentialsError", (Exception,), {})("Unable to locate credentials")])
def test_what_cannot_succeed_is_not_tried_again(monkeypatch, url, error):
    failing = Failing(monkeypatch, error, 10**6)
    with pytest.raises(RemoteError, match=r"expected a place that may be read and written$"):
        ObjectStore(url).put("x", b"")
    assert failing.calls == 1


def test_a_bucket_that_is_not_there_is_one_sentence(monkeypatch, url):
    Failing(monkeypatch, FileNotFoundError("The specified bucket does not exist"), 1)
    with pytest.raises(RemoteError, match=r"does not exist.; expected a bucket or folder that is there$"):
        ObjectStore(url).put("x", b"")


def test_a_lost_answer_to_a_creation_is_no_refusal(monkeypatch, url):
    remote = ObjectStore(url)
    real = remote.files.pipe_file
    lost = [True]

    def pipe_file(*given: Any, **more: Any) -> None:
        real(*given, **more)
        if lost:
            lost.clear()
            raise TimeoutError("no answer")

    monkeypatch.setattr(remote.files, "pipe_file", pipe_file)
    with pytest.warns(RemoteWarning):
        assert remote.create("x", b"mine")
    assert not remote.create("x", b"another's")


# What is missing.


def test_without_a_package_one_sentence_says_what_to_install(monkeypatch):
    def missing(protocol: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "get_filesystem_class", missing)
    with pytest.raises(ValueError, match=r"^s3://b/run needs a package .*; install it with: pip install 'structgrad\[remote\]'$"):
        ObjectStore("s3://b/run")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"^s3://b/run needs the package fsspec; install it with: pip install 'structgrad\[remote\]'$"):
        ObjectStore("s3://b/run")


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match=r"^foo://b/run cannot be read or written .*; expected such as s3://bucket/run$"):
        ObjectStore("foo://b/run/")


def test_nothing_under_a_url_is_said(url):
    with pytest.raises(FileNotFoundError, match=rf"^found nothing at {url}; expected the URL of a run"):
        collect(url)


def test_objects_change_faster_than_they_are_read(url, monkeypatch):
    begun(url, 2)
    monkeypatch.setattr(ObjectStore, "get_all", lambda self, names: dict.fromkeys(names, b"") if not list(names) else _gone())
    with pytest.raises(RemoteError, match=r"changes faster than it can be read; try again"):
        collect(url)


def _gone() -> None:
    raise FileNotFoundError


def test_what_was_fetched_is_not_fetched_again(url, monkeypatch):
    monkeypatch.setattr(cell_writer, "BATCH", 3)
    begun(url, 5)
    assert {name.partition("/")[0] for name in ObjectStore(url).names() if snapshot.number_of(name)} == {"parts", "cells"}
    first = comparable(collect(url))
    asked: list[str] = []
    real = ObjectStore.get_all
    monkeypatch.setattr(ObjectStore, "get_all", lambda self, names: asked.extend(names) or real(self, names))
    assert comparable(collect(url)) == first
    assert asked == []
    shutil.rmtree(objects.cached_folder(url))
    assert comparable(collect(url)) == first
    assert asked


# The command line.


def test_the_command_line_takes_urls(tmp_path, monkeypatch, url):
    without_page(monkeypatch)
    told = call(*SMALL, *FEW, "-e", "ste", "-o", url)
    assert told.exit_code == 0, told.output
    assert f"results go to {url}, by way of {objects.working_folder(url)}" in told.stdout
    assert f"results: {url}/results.parquet" in told.stdout
    assert f"--out {url}" in told.stdout
    assert [name for name in ObjectStore(url).names() if "/" not in name] == ["plan.jsonl", "report.html", "results.parquet", "run.json"]
    on_machine("b", tmp_path, monkeypatch)
    assert call("status", url).stdout.startswith(f"{url}: finished")
    assert call("compare", url, f"{url}/results.parquet").exit_code == 0
    assert f"`report` got --figures pdf for {url}; name a local folder" in refused("report", url, "--figures", "pdf")
    assert f"found nothing at {url}/none; expected the URL of a run" in refused("status", f"{url}/none")
    monkeypatch.setattr(store, "write_cell", lambda *given, **more: pytest.fail("a finished cell was measured again"))
    assert call(*SMALL, *FEW, "-e", "ste", "-o", url).exit_code == 0
    monkeypatch.undo()


def test_shards_under_urls_are_merged_under_one(tmp_path, monkeypatch, url):
    without_page(monkeypatch)
    words = [*SMALL, *FEW, "-e", "ste", "-e", "rloo"]
    for number in (1, 2):
        assert call(*words, "--shard", f"{number}/2", "-o", f"{url}/{number}").exit_code == 0
    on_machine("b", tmp_path, monkeypatch)
    merged = call("merge", f"{url}/1", f"{url}/2", "-o", f"{url}/whole")
    assert merged.exit_code == 0, merged.output
    assert f"results: {url}/whole" in merged.stdout
    assert len(cells_of(f"{url}/whole")) == 2
    assert f"`merge` got {url}/1/ as a shard and as the folder" in refused("merge", f"{url}/1", "-o", f"{url}/1/")


def test_afresh_forgets_what_lies_under_the_url(tmp_path, monkeypatch, url):
    without_page(monkeypatch)
    words = [*SMALL, *FEW, "-e", "ste", "-o", url]
    assert call(*words).exit_code == 0
    before = [name for name in ObjectStore(url).names() if snapshot.number_of(name)]
    assert call(*words, "--fresh").exit_code == 0
    after = [name for name in ObjectStore(url).names() if snapshot.number_of(name)]
    assert (len(before), len(after)) == (1, 1)
    assert before != after
