"""The same input gives the same bits, ten times, at batches that fill a device.

What programs keep in global memory is hidden from checkers of races, which see shared memory alone: a lane that reads there before another
has written, or after it has written again, gives another result now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import DERIVED, ORACLES, make_oracle
from structgrad.oracles.random_streams import SeedBlocks

REPEATS = 10
SAMPLES = 4

CASES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "categorical": (1024, (1000,), (1000,)),
    "categories": (1024, (32, 16), (32, 16)),
    "subset[k=10]": (1024, (1000,), (1000,)),
    "linear_chain": (1024, (128, 32, 32), (32, 16, 16)),
    "tied_chain": (256, (160, 32), (12, 4)),
    "alignment": (64, (512, 512), (32, 24)),
    "constituency": (1024, (40, 40), (20, 20)),
    "constituency, several warps": (256, (100, 100), (60, 60)),
    "projective_tree": (1024, (41, 41), (21, 21)),
    "projective_tree[single_root=False]": (256, (81, 81), (21, 21)),
    "spanning_tree": (1024, (41, 41), (21, 21)),
    "spanning_tree[single_root=False]": (1024, (33, 33), (13, 13)),
    "spanning_tree, logarithms": (1024, (41, 41), (21, 21)),
    "assignment": (1024, (16, 16), (12, 12)),
    "shift_reduce": (1024, (41, 41, 2), (21, 21, 2)),
    "shift_reduce[normalization=local]": (1024, (65, 65, 2), (13, 13, 2)),
    **{name: (256, kind.event_of(kind.examples.usual), kind.event_of(kind.examples.small[-1])) for name, kind in DERIVED.items()},
}
"""Batch, event, and event of projections, whose atoms take memory for every part."""


def backward(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    return gradient


def popped(oracle: Any, scores: Tensor) -> Tensor:
    """Spanning trees by the sampler beside the default one; with a single root, it is given."""
    from structgrad.oracles.spanning_tree.gpu import cycle_popping

    shape = (len(scores), SAMPLES)
    uniforms = torch.linspace(0, 1, 2 * len(scores) * SAMPLES, dtype=torch.float64, device=scores.device).reshape(*shape, 2)
    trees, unfinished = scores.new_empty(*shape, *scores.shape[1:]), torch.empty(shape, dtype=torch.bool, device=scores.device)
    roots = torch.ones(shape, dtype=torch.int64, device=scores.device) if oracle.single_root else None
    cycle_popping.popped(scores, uniforms, trees, unfinished, roots)
    return trees


OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "marginals_backward": lambda oracle, scores: backward(oracle.marginals, scores),
    "sample": lambda oracle, scores: oracle.sample(scores, SAMPLES, generator=SeedBlocks((7,), len(scores), device=scores.device)),
    "popping": popped,
    "project": lambda oracle, scores: oracle.project(scores).mean,
    "project_backward": lambda oracle, scores: backward(lambda leaf: oracle.project(leaf).mean, scores),
}

PAIRS = [(case, operation) for case in CASES for operation in OPERATIONS if operation != "popping" or case.startswith("spanning_tree")]


def scores_of(case: str, operation: str, dtype: torch.dtype, device: torch.device) -> tuple[Any, Tensor]:
    """An oracle and its scores; peaked ones take spanning trees to the branch in logarithms."""
    name, _, regime = case.partition(",")
    batch, event, projected = CASES[case]
    scale = 200.0 if "logarithms" in regime else 1.0
    shape = projected if operation.startswith("project") else event
    return make_oracle(name), scale * torch.randn(batch, *shape, dtype=dtype, device=device)


def others(call: Callable[[], Tensor], repeats: int = REPEATS) -> list[int]:
    """The repetitions whose result has other bits than the first."""
    first = call().clone()
    return [repeat for repeat in range(1, repeats + 1) if not torch.equal(call(), first)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("case", "operation"), PAIRS)
def test_the_same_bits(case: str, operation: str, dtype: torch.dtype) -> None:
    oracle, scores = scores_of(case, operation, dtype, torch.device("cuda"))
    assert not others(lambda: OPERATIONS[operation](oracle, scores))


def test_other_bits_are_seen() -> None:
    results = iter([0.0, 0.0, 1e-45, 0.0])
    assert others(lambda: torch.tensor([next(results)]), repeats=3) == [2]


def test_every_structure_repeats() -> None:
    assert {make_oracle(case.partition(",")[0]).name for case in CASES} == ORACLES.keys()
