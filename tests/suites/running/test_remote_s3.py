"""The same through S3, as a server of this machine speaks it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structgrad.reports import results
from structgrad.suites.running import cell_writer
from structgrad.suites.running.remote import lease
from structgrad.suites.running.remote.objects import ObjectStore, RemoteError, RemoteWarning
from structgrad.suites.running.runner import collect, run
from tests.reports.calling import FEW, SMALL, call, without_page
from tests.suites.running.remote_cases import HERE, Stopped, comparable, impatient, on_machine, stopped_after
from tests.suites.simulated import simulated_plan

for name in ("s3fs", "moto.server"):
    pytest.importorskip(name, reason="s3fs (the optional extra remote) or moto[server] is not installed")

pytestmark = pytest.mark.sweep

PLAN = simulated_plan(8)


class Server:
    """Of S3; what it holds outlives its being stopped."""

    def __init__(self) -> None:
        self.port = 0

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]

    def stop(self) -> None:
        self.server.stop()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()
    found.start()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_MAX_ATTEMPTS", "1"),
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.port}"),
    ):
        monkeypatch.setenv(name, value)
    on_machine("a", tmp_path, monkeypatch)
    impatient(monkeypatch, 20.0)
    ObjectStore("s3://bucket").files.mkdir("bucket")
    yield found
    ObjectStore("s3://bucket").files.rm("bucket", recursive=True)
    found.stop()


@pytest.mark.filterwarnings(f"ignore::{RemoteWarning.__module__}.RemoteWarning")
def test_runs_go_on_elsewhere_and_one_driver_writes(tmp_path, monkeypatch, server):
    monkeypatch.setattr(cell_writer, "BATCH", 3)
    url = f"s3://bucket/{tmp_path.name}"
    with pytest.raises(Stopped):
        run(PLAN, url, machine=HERE, progress=stopped_after(5))
    on_machine("b", tmp_path, monkeypatch)
    told: list[Any] = []
    monkeypatch.setattr(lease, "DEAD", 5.0)
    with lease.held(url), pytest.raises(ValueError, match="is being written by process"):
        run(PLAN, url, machine=HERE)
    there = run(PLAN, url, machine=HERE, progress=told.append)
    assert told[0].finished == 5
    on_machine("c", tmp_path, monkeypatch)
    assert comparable(there) == comparable(collect(url)) == comparable(run(PLAN, Path("here"), machine=HERE))
    with pytest.raises(RemoteError, match=r"bucket does not exist.*; expected a bucket or folder that is there$"):
        run(PLAN, "s3://nowhere/run", machine=HERE)


def test_a_server_that_is_away_for_a_while_is_waited_for(tmp_path, monkeypatch, server):
    url = f"s3://bucket/{tmp_path.name}"

    def away(told: Any) -> None:
        if told.label and told.finished == 4:
            server.stop()
            threading.Timer(1.0, server.start).start()

    with pytest.warns(RemoteWarning, match="tried again for"):
        there = run(PLAN, url, machine=HERE, progress=away)
    on_machine("b", tmp_path, monkeypatch)
    assert comparable(collect(url)) == comparable(there)
    assert len({row.cell for row in there}) == 8


KILLED = """
import os, signal, sys, time
from structgrad.suites.running import cell_writer
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.simulated import simulated_plan

cell_writer.BATCH = 10

def progress(snapshot):
    time.sleep(0.1)  # what is finished goes out once a second
    if snapshot.finished >= 25:
        os.kill(os.getpid(), signal.SIGKILL)

run(simulated_plan(60), sys.argv[1], machine=Machine(jobs=1), progress=progress)
"""


def test_a_driver_that_is_killed_with_its_machine(tmp_path, monkeypatch, server):
    """It may lose what was finished within the last second, and no more; its lease is left, and not waited for where it is known dead."""
    url = f"s3://bucket/{tmp_path.name}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    assert subprocess.run([sys.executable, "-c", KILLED, url], env=environment, check=False, timeout=300).returncode == -9
    assert ObjectStore(url).names(lease.FOLDER) == [lease._name(1)]
    on_machine("b", tmp_path, monkeypatch)
    told: list[Any] = []
    began = time.monotonic()
    there = run(simulated_plan(60), url, machine=HERE, progress=told.append)
    assert told[0].finished > 0, (told[0], time.monotonic() - began)
    here = run(simulated_plan(60), Path("here"), machine=HERE)
    assert comparable(there) == comparable(here)


def test_the_command_line_takes_urls(tmp_path, monkeypatch, server):
    without_page(monkeypatch)
    url, words = f"s3://bucket/{tmp_path.name}", [*SMALL, *FEW, "-e", "ste", "-e", "rloo"]
    told = call(*words, "-o", f"{url}/whole")
    assert told.exit_code == 0, told.output
    assert f"results: {url}/whole/results.parquet" in told.stdout
    assert f"--out {url}/whole" in told.stdout
    names = [name for name in ObjectStore(f"{url}/whole").names() if "/" not in name]
    assert names == ["plan.jsonl", "report.html", "results.parquet", "run.json"]
    assert call(*words, "-o", f"{url}/whole").exit_code == 0
    for number in (1, 2):
        assert call(*words, "--shard", f"{number}/2", "-o", f"{url}/part-{number}").exit_code == 0
    on_machine("b", tmp_path, monkeypatch)
    merged = call("merge", f"{url}/part-1", f"{url}/part-2", "-o", f"{url}/merged")
    assert merged.exit_code == 0, merged.output
    assert f"results: {url}/merged" in merged.stdout
    status = call("status", f"{url}/merged")
    assert status.stdout.startswith(f"{url}/merged: finished")
    assert " 2 done, 0 failed, 0 left" in status.stdout
    assert "all 0" not in call("compare", f"{url}/whole", f"{url}/merged").stdout
    gate = call("gate", f"{url}/merged", "--baseline", f"{url}/whole/results.parquet")
    assert gate.exit_code == 0, gate.output
    report = call("report", f"{url}/merged", "--format", "md")
    assert f"report: {url}/merged/report.md" in report.stdout, report.output
    assert ObjectStore(f"{url}/merged").get("report.md")
    assert call("export", f"{url}/merged", "-o", "all.csv").exit_code == 0
    assert len(Path("all.csv").read_text().splitlines()) == 1 + len(results.read(Path("structgrad-results") / _only())[0])
    cell = results.read(Path("structgrad-results") / _only())[0]["cell"].iloc[0]
    assert call("replay", cell, "--run", f"{url}/merged").exit_code == 0
    assert f"found nothing at {url}/none" in call("status", f"{url}/none").stderr


def _only() -> str:
    (found,) = os.listdir("structgrad-results")
    return found
