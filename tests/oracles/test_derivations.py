"""Hypergraphs that authors may state, counted parts, odd forms, and wrong ones, which are refused; and the range of their executor."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Assignment,
    Constituency,
    DerivedOracle,
    LabelledConstituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    Subset,
    kernels,
)
from structgrad.oracles.derivations import DEAD, UNIT, Builder, Derivations, cpu, cpu_kbest, cpu_maxima, executor, walked
from structgrad.oracles.derivations.packing import pack
from structgrad.suites.truth.laws import derivations_of
from tests.helpers import seeded


@dataclass(frozen=True)
class Repeated(DerivedOracle):
    """Part 0 and part 2 once, or part 1 and part 2 four times."""

    name = "repeated"
    axes = ("size",)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        builder = Builder(3)
        node = once = builder.add(torch.tensor([[UNIT]]), torch.tensor([[2]]))
        for _ in range(3):
            node = builder.add(node.unsqueeze(0), torch.tensor([[2]]))
        return builder.finish(builder.add(torch.stack([node, once], 1), torch.tensor([[1, 0]])))

    def binary_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.tensor([True, True, False], device=device)


@pytest.mark.parametrize("serving", [True, False])
def test_parts_of_several_rules_are_counted(serving: bool) -> None:
    oracle, scores = Repeated(), torch.tensor([0.5, 0.0, 0.25], dtype=torch.float64)
    with nullcontext() if serving else kernels.disabled():
        assert oracle.enumerate((3,)).tolist() == [[0, 1, 4], [1, 0, 1]]
        assert oracle.argmax(scores).tolist() == [0, 1, 4]
        assert oracle.kbest(scores, 2).tolist() == [[0, 1, 4], [1, 0, 1]]
        assert oracle.rank(oracle.enumerate((3,))).tolist() == [0, 1]
        drawn = oracle.sample(scores, 500, generator=seeded(0)).mean(0)
    chances = torch.tensor([1.0, 0.75], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(oracle.marginals(scores), chances @ oracle.enumerate((3,)).double())
    torch.testing.assert_close(drawn, oracle.marginals(scores), rtol=0, atol=0.3)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (torch.ones(2), r"got sizes of shape \(2,\) and torch.float32, from 1.0 on; expected torch.int64, \(3,\), from 0 on"),
        (torch.tensor([1, -1, 1]), r"from -1 on; expected torch.int64, \(3,\), from 0 on"),
        (torch.tensor([1, 2, 1]), "got sizes of parts that do not add up to the same over every structure"),
    ],
)
def test_refuses_sizes_that_are_none(sizes: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack((builder := Builder(3, sizes)).finish(builder.add(torch.tensor([[UNIT, UNIT]]), torch.tensor([[0, 1]]))))


def test_an_oracle_without_a_completion_has_no_lengths() -> None:
    with pytest.raises(ValueError, match="got lengths for the oracle repeated, which has none; implement `_completion`, or cut the scores"):
        Repeated().marginals(torch.zeros(2, 3), lengths=torch.tensor([1, 2]))


def _nothing(builder: Builder) -> Tensor:
    return builder.add(torch.tensor([[UNIT]]))


def _nothing_beside_others(builder: Builder) -> Tensor:
    builder.add(torch.tensor([[UNIT]]), torch.tensor([[1]]))
    return builder.add(torch.tensor([[UNIT]]))


def _one_edge_each(builder: Builder) -> Tensor:
    return builder.add(builder.add(torch.tensor([[UNIT]]), torch.tensor([[1]])).unsqueeze(0))


def _mostly_unread(builder: Builder) -> Tensor:
    either = builder.add(torch.tensor([[UNIT, UNIT, DEAD]]), torch.tensor([[1, 4, 2]]))
    return builder.add(torch.stack([either, torch.tensor([DEAD])], 1))


def _dead_before_others(builder: Builder) -> Tensor:
    return builder.add(torch.tensor([[DEAD, UNIT, DEAD, UNIT, UNIT]]), torch.tensor([[0, 1, 2, 4, 3]]))


def _below_others(builder: Builder) -> Tensor:
    leaves = builder.add(torch.tensor([[UNIT], [UNIT]]), torch.tensor([[1], [2]]))
    builder.add(leaves.unsqueeze(1))
    return leaves[0]


def _joined(builder: Builder) -> Tensor:
    """Edges that join two nodes and take a part each."""
    leaves = builder.add(torch.full((2, 1), UNIT), torch.tensor([[0], [1]]))
    first, second = leaves[[0, 0]].unsqueeze(0), torch.stack([leaves[1], torch.tensor(UNIT)]).unsqueeze(0)
    return builder.add(first, torch.tensor([[2, 3]]), second)


@dataclass(frozen=True)
class Odd(DerivedOracle):
    """What an author may state, though there is little use for it."""

    root: Callable[[Builder], Tensor | int]

    name = "odd"
    axes = ("length",)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        builder = Builder(event_shape[0])
        return builder.finish(self.root(builder))


@pytest.mark.parametrize("serving", [True, False])
@pytest.mark.parametrize(
    ("root", "structures"),
    [
        (_nothing, [[]]),
        (_nothing_beside_others, [[]]),
        (_one_edge_each, [[1]]),
        (_mostly_unread, [[1], [4]]),
        (_dead_before_others, [[1], [4], [3]]),
        (_below_others, [[1]]),
        (_joined, [[0, 1, 2], [0, 3]]),
    ],
)
def test_odd_hypergraphs(root: Callable[[Builder], Tensor | int], structures: list[list[int]], serving: bool) -> None:
    oracle, listed = Odd(root), torch.zeros(len(structures), 5, dtype=torch.float64)
    for structure, parts in zip(listed, structures, strict=True):
        structure[parts] = 1
    scores = torch.randn(3, 5, generator=seeded(), dtype=torch.float64)
    scores[:, ~oracle.read_mask((5,))] = math.nan
    scores[2] = -math.inf
    allowed = (listed @ scores.nan_to_num(0, neginf=-1e9).mT).mT  # of each row, the score of each structure
    expected = allowed.softmax(1) @ listed
    close: Callable[..., None] = torch.testing.assert_close
    with nullcontext() if serving else kernels.disabled():
        assert oracle.count((5,)) == len(structures)
        assert torch.equal(oracle.enumerate((5,), dtype=torch.float64), listed)
        close(oracle.log_partition(scores)[:2], allowed.logsumexp(1)[:2])
        assert oracle.feasible(scores).tolist() == [bool(structures), bool(structures), [] in structures]
        close(oracle.marginals(scores)[:2], expected[:2])
        assert torch.equal(oracle.marginals(scores)[2], torch.zeros(5).double())
        leaf = scores.clone().requires_grad_()
        (found,) = torch.autograd.grad(oracle.marginals(leaf)[:, 1].sum(), leaf)
        close(found[:2], ((allowed.softmax(1) * listed[:, 1]) @ listed - expected[:, 1:2] * expected)[:2])
        if structures:
            assert torch.equal(oracle.argmax(scores)[:2], listed[allowed.argmax(1)][:2])
            assert torch.equal(oracle.kbest(scores, 1)[0, :2], oracle.argmax(scores)[:2])
        means = oracle.sample(scores, 2000, generator=seeded()).mean(0)
        close(means, expected.masked_fill(~oracle.feasible(scores).unsqueeze(1), 0), rtol=0, atol=0.05)
        close(oracle.relax(scores, "entropy")[:2], expected[:2])
        assert oracle.relax(scores, "l2").shape == scores.shape


@dataclass(frozen=True)
class Stated(DerivedOracle):
    """One square of parts, derived as a function says."""

    rules: Callable[[Builder], Any]
    parts: int = 4

    name = "stated"
    axes = ("side", "side")

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        found: Derivations = self.rules(Builder(self.parts))
        return found


def _one(builder: Builder) -> Derivations:
    return builder.finish(builder.add(torch.tensor([[UNIT, UNIT]]), torch.tensor([[0, 3]])))


def test_axes_are_the_shape_the_sizes_and_the_check() -> None:
    assert Stated.event_shape(side=2) == (2, 2)
    assert Stated(_one).count((2, 2)) == 2
    with pytest.raises(ValueError, match=r"`argmax` got event shape \(2, 3\); expected \(side, side\)"):
        Stated(_one).argmax(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"`stated.event_shape` got sizes nothing; expected side"):
        Stated.event_shape()
    with pytest.raises(ValueError, match=r"`Wrong` got axes 'n'; expected a tuple of names"):
        type("Wrong", (DerivedOracle,), {"axes": "n"})
    with pytest.raises(ValueError, match=r"`Bare` has no axes; expected"):
        type("Bare", (DerivedOracle,), {}).event_shape()


@pytest.mark.parametrize(
    ("rules", "parts", "message"),
    [
        (_one, 5, r"`stated.derivations` has 5 parts for event shape \(2, 2\); expected 4, one for each entry: Builder\(4\)"),
        (lambda builder: None, 4, r"`stated.derivations` returned NoneType; expected what `Builder.finish` returns"),
        (lambda builder: builder.finish(builder.add(torch.tensor([[DEAD]]))), 4, r"`stated` has no structure of event shape \(2, 2\)"),
        (lambda builder: builder.finish(9), 4, r"`Builder.finish` got node 9; expected one that `add` returned, 2 to 1"),
        (lambda builder: builder.finish(torch.tensor([2, 3])), 4, r"`Builder.finish` got 2 nodes; expected one"),
        (lambda builder: Builder(0), 4, r"`Builder` got 0 parts; expected an integer >= 1"),
    ],
)
def test_refuses_rules_that_derive_nothing_right(rules: Callable[[Builder], Any], parts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stated(rules, parts).argmax(torch.zeros(2, 2))


def test_a_walk_lists_every_derivation_as_often_as_there_are() -> None:
    assert walked(_one(Builder(4))) == [(0,), (3,)]
    twice = Builder(1)
    one = twice.add(torch.tensor([[UNIT]]), torch.tensor([[0]]))
    node = twice.add(torch.stack([one, one], 1), None, torch.stack([one, torch.tensor([UNIT])], 1))
    assert walked(twice.finish(node)) == [(0, 0), (0,)]
    assert sorted(map(sum, walked(LabelledConstituency().derivations((3, 3, 2))))) == sorted(
        int((z.flatten() * torch.arange(18)).sum()) for z in LabelledConstituency().enumerate((3, 3, 2))
    )
    with pytest.raises(ValueError, match=r"got a node with 2 derivations; expected at most 1"):
        walked(_one(Builder(4)), most=1)


CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((Subset(3), (9,)), (LinearChain(), (5, 3, 3)), (Alignment(), (4, 6)), (Constituency(), (7, 7)), (ShiftReduce(), (6, 6, 2))),
    *((ProjectiveTree(single_root=False), (6, 6)), (ProjectiveTree(), (6, 6)), (Assignment(), (5, 5)), (Alignment(), (1, 1))),
)


def test_long_sums_leave_no_range() -> None:
    """Log-partitions of thousands, from scores of a moderate size that no shift by a constant brings near 0."""
    builder, node = Builder(600), torch.tensor([UNIT])
    for part in range(300):
        node = builder.add(node.expand(2).unsqueeze(0), torch.tensor([[part, part + 300]]))
    packed = pack(builder.finish(node))
    assert packed is not None
    rows = torch.cat([torch.full((3, 150), 20.0), torch.full((3, 150), -20.0)], 1).repeat(1, 2).double()
    found, totals = executor.kernel(packed, "marginals", 3).computed(
        (rows,), ((rows.shape[1:], None), ((), None)), lambda _: pytest.fail("refused")
    )
    torch.testing.assert_close(totals, torch.full((3,), 300 * math.log(2), dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.full_like(rows, 0.5), rtol=0, atol=1e-14)


def test_scores_beyond_every_range_are_refused() -> None:
    derivations = derivations_of(LinearChain(), (5, 3, 3))
    assert derivations is not None
    packed, rows = pack(derivations), torch.randn(3, derivations.parts, generator=seeded(), dtype=torch.float64)
    assert packed is not None
    rows[1] *= 1e9
    for operation, inputs, shape in (
        ("log_partition", (rows,), ()),
        ("covariance_product", (rows, rows), rows.shape[1:]),
        ("sample", (rows, torch.rand(3, 1, 6, dtype=torch.float64)), (1, rows.shape[1])),
    ):
        refused = torch.full((1, *shape), 7.0)
        (found,) = executor.kernel(packed, operation, 3).computed(inputs, ((shape, None),), lambda *_, refused=refused: (refused,))
        assert (found == 7).reshape(3, -1).all(1).tolist() == [False, True, False]


def test_one_compilation_serves_all_structures_and_dtypes() -> None:
    for oracle, event in CASES:
        for dtype in (torch.float32, torch.float64):
            scores = torch.randn(9, *event, generator=seeded(), dtype=torch.float64).to(dtype)
            scores[0] *= 1e4
            oracle.marginals(scores.requires_grad_()).sum().backward()
            oracle.sample(scores, 2, generator=seeded())
            oracle.kbest(scores, 1)
            oracle.argmax(scores)
    assert [len(function.signatures) for function in (cpu.evaluate, cpu.sample, cpu_maxima.argmax, cpu_kbest.kbest)] == [1, 1, 1, 1]
