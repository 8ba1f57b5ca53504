"""The table of `doctor` that lists the kernel of each operation."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from structgrad.oracles import DERIVED, ORACLES, DerivedOracle, Subset, kernels
from structgrad.oracles.kernels import gpu, switch
from structgrad.reports.verbs.doctor import NO_KERNEL, OPERATIONS, KernelRow, kernel_rows, kernel_table
from tests.reports.calling import call, refused


def test_on_the_cpu_it_is_what_the_dispatch_finds() -> None:
    found = {(row.structure, row.operation): row.by for row in kernel_rows() if row.device == "cpu"}
    assert {structure for structure, _ in found} == set(ORACLES)
    assert {operation for _, operation in found} == set(OPERATIONS)
    events = {"subset": (4,), "linear_chain": (2, 2, 2), "shift_reduce": (3, 3, 2)}
    events |= {name: kind.event_of(kind.examples.small[0]) for name, kind in DERIVED.items()}
    for (structure, operation), by in found.items():
        event, oracle = events.get(structure, (3, 3)), Subset(2) if structure == "subset" else ORACLES[structure]()
        if operation == "enumerate":
            kernel = isinstance(oracle, DerivedOracle) or kernels.find_unranking(oracle._unranking, torch.arange(1), event, ())
        elif operation != "project" or structure not in {"categorical", "categories", "subset", "assignment"}:
            kernel = oracle._kernel(operation, torch.zeros(1, *event))
        else:
            continue
        assert by == ("kernel" if kernel else "torch"), (structure, operation)
    assert found["assignment", "project"] == found["categorical", "project"] == "kernel"


def test_the_table_is_printed_and_in_the_json() -> None:
    text = call("doctor").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["cpu", "argmax", "log-partition", "marginals", "covariance", "sample", "project", "enumerate"] in lines
    assert next(line for line in lines if line[:1] == ["linear_chain"])[1:4] == ["kernel"] * 3
    assert next(line for line in lines if line[:1] == ["semi_markov"])[1:] == ["kernel"] * 7
    rows = json.loads(call("doctor", "--json").stdout)["served"]
    assert {"device": "cpu", "structure": "categorical", "operation": "covariance_product", "by": "torch", "why": NO_KERNEL} in rows


@pytest.fixture
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old card, and two new ones."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(gpu, "unserved", lambda device: "compute capability 6.1, below 7.0" if device == 0 else "")


@pytest.mark.usefixtures("_devices")
def test_on_devices_it_depends_on_the_card() -> None:
    rows = kernel_rows()
    found = {(row.device, row.structure, row.operation): (row.by, row.why) for row in rows}
    assert found["cuda:0", "linear_chain", "argmax"] == ("torch", "compute capability 6.1, below 7.0")
    assert found["cuda:1", "linear_chain", "argmax"] == found["cuda:2", "ctc", "sample"] == ("kernel", "")
    for structure, operation in (("linear_chain", "sample"), ("subset", "argmax"), ("spanning_tree", "marginals"), ("ctc", "project")):
        assert found["cuda:1", structure, operation] == ("torch", NO_KERNEL)
    shown = list(kernel_table(rows))
    assert "cuda:0: plain torch for everything, compute capability 6.1, below 7.0" in shown
    assert any(line.startswith("cuda:1, cuda:2 ") for line in shown)


@pytest.mark.usefixtures("_devices")
def test_switched_off_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "CHOSEN", "off")
    assert list(kernel_table(kernel_rows())) == ["cpu, cuda:0, cuda:1, cuda:2: plain torch for everything, STRUCTGRAD_KERNELS=off"]


def test_a_machine_without_oracles_is_no_reason_to_stop_and_a_wrong_wish_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Callable[[], bool]:
        def raises() -> bool:
            raise error

        return raises

    monkeypatch.setattr(torch.cuda, "is_available", raising(OSError("a library is missing")))
    assert kernel_rows() == list(kernel_table([])) == []
    said = "the environment variable STRUCTGRAD_KERNELS got 'no'; expected on"
    monkeypatch.setattr("structgrad.reports.verbs.doctor.kernel_rows", raising(ValueError(said)))
    assert said in refused("doctor")


def test_tables_of_one_row() -> None:
    assert list(kernel_table([KernelRow("cpu", "subset", "argmax", "kernel")])) == [
        "cpu     argmax  log-partition  marginals  covariance  sample  project  enumerate",
        "subset  kernel",
    ]
