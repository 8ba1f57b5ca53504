from __future__ import annotations

import math
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from structgrad.oracles import DERIVED, ORACLES, SemiMarkov
from structgrad.suites.speed import comparison
from structgrad.suites.speed.cases import CASES, OPERATIONS, Case, operations
from structgrad.suites.speed.comparison import SpeedComparison, compare_one, geometric_mean
from structgrad.suites.speed.floor import MachineLimits, floor, measure_machine
from structgrad.suites.speed.peers import PEERS, Peer
from structgrad.suites.speed.ways import WAYS

UNCONSTRAINED = pytest.mark.filterwarnings("ignore:.*does not define `arg_constraints`:UserWarning")
"""Distributions of torch-struct."""

MACHINE = MachineLimits(bytes_per_second=1e9, multiply_adds_per_second=1e9)
SMALL = CASES["subset 20/5"]


def test_every_oracle_is_timed_in_every_operation_that_it_has() -> None:
    assert {case.structure for case in CASES.values()} == set(ORACLES)
    for case in CASES.values():
        assert case.oracle.event_ndim == len(case.event)
        assert case.scores(2).shape == (2, *case.event)
        assert set(operations(case)) | case.without == set(OPERATIONS)
    assert CASES["assignment 16"].without == CASES["assignment 64"].without


COMPILED = [pytest.param(name, marks=pytest.mark.sweep) for name in ("constituency 10", "assignment 8", "shift_reduce 20")]
"""Whose kernels in single precision take longer to compile than all the rest here takes."""


@pytest.mark.parametrize("name", ["subset 20/5", "categorical 1000", *COMPILED])
def test_operations_compute_what_they_say(name: str) -> None:
    case = CASES[name]
    scores = case.scores(3)
    for operation in operations(case):
        result = OPERATIONS[operation](case.oracle, scores, torch.Generator())
        index = case.oracle.index_shape(case.event)
        leading = {"log_partition": (3,), "sample": (1, 3, *case.event), "sample64": (64, 3, *case.event), "kbest16": (16, 3, *case.event)}
        leading |= {"argmax_indices": (3, *index), "sample64_indices": (64, 3, *index)}
        assert tuple(result.shape) == leading.get(operation, (3, *case.event))
        assert bool(result.isfinite().all())


def test_a_peer_is_timed_beside_ours_and_marked_where_it_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Peer("right", "torch", lambda case, operation, scores: lambda: case.oracle.log_partition(scores))
    wrong = Peer("wrong", "torch", lambda case, operation, scores: lambda: 1.5 * case.oracle.log_partition(scores))
    broken = Peer("broken", "torch", lambda case, operation, scores: lambda: 1 / 0)
    lacking = Peer("lacking", "torch", lambda case, operation, scores: None)
    absent = Peer("absent", "no_such_module_of_this_name", lambda case, operation, scores: pytest.fail("was asked"))
    monkeypatch.setattr(comparison, "PEERS", (right, wrong, broken, lacking, absent))
    hot, training = compare_one(SMALL, "log_partition", 2, ("hot", "training"))
    assert (hot.way, training.way) == ("hot", "training")
    assert set(training.seconds) == set(hot.seconds)
    found, named = hot, compare_one(SMALL, "log_partition", 2, ("hot",), ["right"])[0]
    assert set(named.seconds) == {"structgrad", "right"}
    assert not named.failures
    assert set(found.seconds) == {"structgrad", "right", "wrong"}
    assert set(found.disagreements) == {"wrong"}
    assert found.failures == {"broken": "ZeroDivisionError: division by zero"}
    assert found.disagreements["wrong"] == pytest.approx(0.5)
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_the_ratio_is_that_of_the_fastest_peer() -> None:
    found = SpeedComparison("case", "argmax", 1, "hot", {"structgrad": 2.0, "slow": 10.0, "fast": 3.0}, floor=1.0)
    assert found.fastest_peer == "fast"
    assert found.ratio == 1.5
    alone = SpeedComparison("case", "argmax", 1, "hot", {"structgrad": 2.0}, floor=1.0)
    assert alone.fastest_peer is None
    assert math.isnan(alone.ratio)
    assert math.isnan(SpeedComparison("case", "argmax", 1, "hot", {"peer": 1.0}, floor=1.0).ratio)
    assert geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([math.nan]))


def test_floors_count_bytes_and_multiply_adds() -> None:
    case = Case("chain", CASES["linear_chain 32x16"].oracle, (32, 16, 16), multiply_adds=1e6)
    assert floor(case, "argmax", 10, MACHINE) == pytest.approx(2 * 4 * 10 * 8192 / 1e9)
    assert floor(case, "argmax_indices", 10, MACHINE) == pytest.approx(10 * (4 * 8192 + 8 * 32) / 1e9)
    assert floor(case, "log_partition", 10, MACHINE) == pytest.approx(1e-2)
    assert floor(case, "marginals", 10, MACHINE) == pytest.approx(2e-2)
    machine = measure_machine(repeats=1)
    assert 1e7 < machine.bytes_per_second < 1e13
    assert 1e7 < machine.multiply_adds_per_second < 1e14


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.name in {"torch", "scipy"}], ids=lambda peer: peer.name)
def test_peers_that_are_always_there(peer: Peer) -> None:
    assert peer.installed
    offered = [(case, name) for case in CASES.values() for name in operations(case) if peer.prepare(case, name, case.scores(2))]
    assert offered
    for case, operation in offered:
        call = peer.prepare(case, operation, case.scores(2))
        assert call is not None
        result = call()
        if operation in {"log_partition", "marginals", "marginals_backward"}:
            expected = OPERATIONS[operation](case.oracle, case.scores(2), torch.Generator())
            if (case.structure, operation) == ("ctc", "marginals"):  # of states and moves: even ones are blanks
                states = expected.sum(-1)
                expected = torch.cat([states[..., ::2].sum(-1, keepdim=True), states[..., 1::2]], -1)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)
        if peer.name == "scipy":
            ours = case.oracle.argmax(case.scores(2)).argmax(-1).numpy()
            np.testing.assert_array_equal(np.stack(result), ours)


BESIDE = {
    "torch": {"categorical", "categories", "subset", "ctc"},
    "torch-struct": {
        "linear_chain",
        "tied_chain",
        "constituency",
        "labelled_constituency",
        "semi_markov",
        "tied_semi_markov",
        "projective_tree",
        "spanning_tree",
    },
    "supar": {"linear_chain", "tied_chain", "constituency", "projective_tree", "spanning_tree"},
    "synjax": {"linear_chain", "tied_chain", "constituency", "projective_tree", "spanning_tree", "alignment"},
    "scipy": {"assignment"},
    "lapx": {"assignment"},
    "ufal.chu_liu_edmonds": {"spanning_tree"},
    "entmax": {"categorical", "subset"},
    "jaxopt": {"categorical", "subset"},
    "optax": {"assignment"},
    "tslearn": {"alignment"},
    "pysdtw": {"alignment"},
    "lp-sparsemap": {"linear_chain", "projective_tree", "spanning_tree", "assignment"},
}
"""Which oracles each peer is timed beside."""

ALONE = {"shift_reduce", *DERIVED} - {"semi_markov", "tied_semi_markov", "labelled_constituency", "ctc"}
"""Oracles without a peer: no library offers shift-reduce derivations, alignments with affine gaps, or chains of order 2."""


def test_every_other_oracle_has_a_peer() -> None:
    assert [peer.name for peer in PEERS] == list(BESIDE)
    assert set().union(*BESIDE.values()) == set(ORACLES) - ALONE


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_serves_the_oracles_that_it_is_named_for(peer: Peer) -> None:
    if not peer.installed:
        pytest.skip(f"{peer.name} is not installed")
    served = {case.structure for case in CASES.values() for name in operations(case) if peer.prepare(case, name, case.scores(1))}
    assert served == BESIDE[peer.name]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("tslearn", CASES["alignment 32x32"]),
        ("pysdtw", CASES["alignment 32x32"]),
        ("torch-struct", CASES["constituency 10"]),
        ("torch-struct", CASES["labelled_constituency 10x8"]),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@UNCONSTRAINED
@pytest.mark.parametrize("operation", ["log_partition", "marginals"])
def test_results_of_peers_are_ours(name: str, case: Case, operation: str) -> None:
    peer = next(peer for peer in PEERS if peer.name == name)
    if not peer.installed:
        pytest.skip(f"{name} is not installed")
    call, scores = peer.prepare(case, operation, case.scores(2)), case.scores(2)
    assert call is not None
    theirs, ours = torch.as_tensor(call()).to(scores.dtype), OPERATIONS[operation](case.oracle, scores, torch.Generator())
    torch.testing.assert_close(theirs.reshape(ours.shape), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case", [Case("semi_markov 6x3x2", SemiMarkov(), (6, 3, 2, 2)), Case("semi_markov 2x3x2", SemiMarkov(), (2, 3, 2, 2))]
)
@UNCONSTRAINED
def test_segments_of_torch_struct_are_ours(case: Case) -> None:
    peer = next(peer for peer in PEERS if peer.name == "torch-struct")
    if not peer.installed:
        pytest.skip("torch-struct is not installed")
    scores = case.scores(3)
    partition, marginals = (peer.prepare(case, operation, scores) for operation in ("log_partition", "marginals"))
    assert partition is not None
    assert marginals is not None
    torch.testing.assert_close(partition(), case.oracle.log_partition(scores), rtol=1e-5, atol=1e-5)
    ours = case.oracle.marginals(scores)
    theirs = marginals()
    for longer in range(min(case.event[1], case.event[0])):
        torch.testing.assert_close(theirs[:, : case.event[0] - longer, longer + 1].mT, ours[:, longer:, longer], rtol=1e-4, atol=1e-5)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """``python -m structgrad.suites.speed`` with some words, in this process; what it would end with."""
    monkeypatch.setattr(sys, "argv", ["speed", *map(str, words)])
    monkeypatch.delitem(sys.modules, "structgrad.suites.speed.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("structgrad.suites.speed", run_name="__main__")
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks libraries for one thread by variables that outlast it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_the_command_prints_ratios_and_writes_every_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "speed.csv"
    assert command(monkeypatch, "--case", "subset 20", "--operation", "argmax", "--batch", "1", "--csv", target) == 0
    shown = capsys.readouterr().out
    assert "subset 20/5" in shown
    assert "times faster" in shown
    assert "slower than a peer: " in shown
    frame = pd.read_csv(target)
    assert {"structgrad", "torch"} <= set(frame["contender"])
    assert set(frame["way"]) == set(WAYS)
    assert (frame["seconds"] > 0).all()


@pytest.mark.parametrize(
    ("option", "message"), [("--operation", "operation 'nothing'"), ("--case", "case 'nothing'"), ("--way", "way 'nothing'")]
)
def test_the_command_refuses_what_it_does_not_know(
    option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, option, "nothing") == 2
    assert message in capsys.readouterr().err.replace("\n", " ").replace("│", "")
