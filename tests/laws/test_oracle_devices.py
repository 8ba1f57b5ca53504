"""Plain torch on a device waits for it nowhere but in what is named here, and copies nothing there from the host."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import DERIVED, DerivedOracle, kernels, make_oracle
from structgrad.oracles.random_streams import SeedBlocks
from structgrad.oracles.tensor_kinds import UnusualTensorError
from tests.covering import sampled
from tests.far import Far, far_device, held
from tests.helpers import GENERIC_CASES, OracleCase, make_scores
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, method_of, operations_of, with_lengths
from tests.waiting import PRETENDED, Unset, WaitsError, watched


def turn(case: OracleCase) -> str:
    """Oracles that state derivations run the same algorithms, and take turns."""
    return case.group or ("stated" if isinstance(case.oracle, DerivedOracle) and not case.potentials else "")


cases = pytest.mark.parametrize("case", [replace(case, group=turn(case)) for case in GENERIC_CASES], ids=str)

PROJECTIONS = frozenset({"project", "project_gap"})
LISTS = frozenset({"kbest", "enumerate"})
OTHERS = tuple(name for name in OPERATIONS if not name.startswith("project_") and name != "relaxed_sample_hard")
CHOICES = frozenset({"argmax", "score", "log_prob"})
"""The last two are asked of the best structure here."""

WAIT: dict[str, frozenset[str]] = {
    **dict.fromkeys(("subset", "categories"), LISTS),
    **dict.fromkeys(
        ("linear_chain", "tied_chain", "alignment", "constituency", "projective_tree", "shift_reduce", *DERIVED), PROJECTIONS | LISTS
    ),
    **dict.fromkeys(("spanning_tree", "assignment"), PROJECTIONS | LISTS | CHOICES),
}
"""The active set, lists, and searches for the best trees and matchings are compiled for the CPU."""


def waits(call: Callable[[], Tensor]) -> str | None:
    """What a call waits for after the first one, which makes tables, its derivative's too; None for nothing."""
    try:
        call()
        with watched(PRETENDED):
            result = call()
            if result.requires_grad:
                result.sum().backward()
    except (WaitsError, NotImplementedError, RuntimeError, UnusualTensorError) as error:
        return str(error)
    return None


@cases
@pytest.mark.parametrize("ragged", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_plain_torch_waits_only_where_it_says_so(case: OracleCase, ragged: bool) -> None:
    limits = case.oracle.length_limits(case.event)
    lengths = torch.empty((2, *[len(limits)] * (len(limits) > 1)), dtype=torch.int64, device=PRETENDED)
    found = {}
    for operation in operations_of(case.oracle, (*OTHERS, "project_gap")):
        named: dict[str, Any] = {"generator": Unset()} if operation in RANDOM else {}
        if ragged and method_of(operation) in with_lengths(type(case.oracle)):
            named["lengths"] = lengths
        scores = torch.empty((2, *case.event), device=PRETENDED, requires_grad=operation in DIFFERENTIABLE)
        found[operation] = waits(functools.partial(OPERATIONS[operation], case.oracle, scores, **named))
    structures = torch.empty((2, *case.event), device=PRETENDED)
    found["rank"] = waits(lambda: case.oracle.rank(structures))
    found["enumerate"] = waits(lambda: case.oracle.enumerate(case.event, device=PRETENDED))
    waiting = {operation: reason for operation, reason in found.items() if reason is not None}
    assert set(waiting) == WAIT.get(case.oracle.name, frozenset()), waiting


def test_what_waits_is_seen() -> None:
    values = torch.empty(3, device=PRETENDED)
    makes = (lambda: torch.tensor([1.0], device=PRETENDED), lambda: torch.ones(2).to(PRETENDED))
    reads = (lambda: bool(values.any()), values.nonzero, values.cpu, lambda: values[values > 0], *makes)
    for read in reads:
        with pytest.raises(WaitsError), watched(PRETENDED):
            read()


NOT_UNIQUE = frozenset({"project_weights", "project_support"})
"""Results that are not unique in Birkhoff's polytope, where a mean has several decompositions."""


@cases
@pytest.mark.parametrize("ragged", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_plain_torch_on_a_device_finds_what_the_cpu_finds(case: OracleCase, ragged: bool) -> None:
    """Rows have normal scores, forbidden parts, ties, or no structure; gradients are compared too."""
    event = case.event
    scores = torch.randn(4, *event, dtype=torch.float64)
    scores[1], scores[2], scores[3] = make_scores(case, "masked")[0], scores[2].round(), -math.inf
    limits = case.oracle.length_limits(event)
    lengths = torch.stack([torch.randint(1, limit + 1, (4,)) for limit in limits], -1).squeeze(-1)
    if case.oracle.name == "subset":
        lengths.clamp_(min=case.oracle.k)  # type: ignore[attr-defined]

    def called(operation: str, scores: Tensor, lengths: Tensor) -> list[Tensor]:
        named: dict[str, Any] = {"generator": SeedBlocks((7,), len(scores))} if operation in RANDOM else {}
        if ragged and method_of(operation) in with_lengths(type(case.oracle)):
            named["lengths"] = lengths
        leaf = scores.clone().requires_grad_(operation in DIFFERENTIABLE)
        result = OPERATIONS[operation](case.oracle, leaf, **named)
        return (
            [result.detach(), *torch.autograd.grad(result.nan_to_num(0, 0, 0).square().sum(), leaf)] if result.requires_grad else [result]
        )

    for operation in operations_of(case.oracle, (*OTHERS, *sampled([name for name in OPERATIONS if name.startswith("project_")], 1))):
        if case.oracle.name != "assignment" or operation not in NOT_UNIQUE:
            # With ties a projection may lie on a face that is no simplex, where atoms and gradients are not unique.
            given = scores.index_copy(0, torch.tensor([2]), scores[:1]) if operation.startswith("project") else scores
            expected = called(operation, given, lengths)
            with far_device():
                found = called(operation, Far(given), Far(lengths))
            for there, here in zip(found, expected, strict=True):
                assert_same(held(there), here, operation, 1e-9)
    count = min(3, case.oracle.count(event))
    structures = case.oracle.enumerate(event, 0, count)
    with far_device() as far:
        listed = case.oracle.enumerate(event, 0, count, device=far)
        ranks = case.oracle.rank(listed)
        drawn = (
            case.oracle.sample_distinct(Far(scores[:2]), 2, generator=SeedBlocks((7,), 2))
            if hasattr(case.oracle, "sample_distinct")
            else None
        )
    assert torch.equal(held(listed), structures)
    assert held(ranks).tolist() == list(range(count))
    if drawn is not None:
        again = case.oracle.sample_distinct(scores[:2], 2, generator=SeedBlocks((7,), 2))
        assert torch.equal(held(drawn.structures), again.structures)
        torch.testing.assert_close(held(drawn.log_rest), again.log_rest)


@pytest.mark.parametrize("name", ["linear_chain", "constituency", "assignment", "subset[k=2]"])
def test_plain_torch_sums_scores_of_float32_in_float64(name: str) -> None:
    """Marginals of scores far apart, with their gradient."""
    oracle: Any = make_oracle(name)
    event = {"linear_chain": (64, 4, 4), "subset[k=2]": (40,)}.get(name, (9, 9))
    scores = 100 * torch.randn(3, *event)

    def found(scores: Tensor) -> list[Tensor]:
        leaf = scores.clone().requires_grad_()
        marginals = oracle.marginals(leaf)
        return [marginals.detach(), *torch.autograd.grad(marginals.square().sum(), leaf)]

    with kernels.disabled():
        for single, double in zip(found(scores), found(scores.double()), strict=True):
            torch.testing.assert_close(single, double.float(), rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("operation", ["argmax", "log_partition", "marginals", "sample"])
@pytest.mark.parametrize(("name", "event"), [("linear_chain", (32, 8, 8)), ("constituency", (12, 12)), ("subset[k=2]", (9,))])
def test_a_cuda_graph_replays_an_operation_on_other_numbers(name: str, event: tuple[int, ...], operation: str) -> None:
    """With its gradient, to the same bits."""
    oracle: Any = make_oracle(name)
    scores, other = (torch.randn(64, *event, device="cuda") for _ in range(2))
    stream = SeedBlocks((7,), 64, device=torch.device("cuda"))

    def call(scores: Tensor) -> list[Tensor]:
        stream.draws = 0
        leaf = scores.detach().requires_grad_(operation in DIFFERENTIABLE)
        result = getattr(oracle, operation)(leaf, **({"generator": stream} if operation == "sample" else {}))
        return [result.detach(), *(torch.autograd.grad(result.square().sum(), leaf) if leaf.requires_grad else ())]

    expected = call(other)  # makes tables
    with watched(torch.device("cuda")):
        call(scores)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(scores)
    scores.copy_(other)
    graph.replay()
    assert all(map(torch.equal, results, expected))


def test_what_mixes_devices_is_seen() -> None:
    with far_device(), pytest.raises(RuntimeError, match="tensors of two devices"):
        _ = Far(torch.zeros(3)) + torch.zeros(3)
