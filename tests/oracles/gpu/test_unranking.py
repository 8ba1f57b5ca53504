from __future__ import annotations

import pytest
import torch

from structgrad.oracles import kernels, make_oracle

CASES = [
    ("linear_chain", (1, 1, 1)),
    ("linear_chain", (3, 3, 3)),
    ("linear_chain", (31, 4, 4)),
    ("subset[k=1]", (1,)),
    ("subset[k=3]", (7,)),
    ("subset[k=33]", (64,)),
    ("assignment", (1, 1)),
    ("assignment", (4, 4)),
    ("assignment", (16, 16)),
    ("alignment", (1, 3)),
    ("alignment", (4, 3)),
    ("alignment", (14, 16)),
    ("shift_reduce", (2, 2, 2)),
    ("shift_reduce", (6, 6, 2)),
    ("shift_reduce", (20, 20, 2)),
    ("constituency", (1, 1)),
    ("constituency", (6, 6)),
    ("constituency", (22, 22)),
    ("projective_tree", (2, 2)),
    ("projective_tree[single_root=False]", (5, 5)),
    ("projective_tree", (5, 5)),
    ("projective_tree[single_root=False]", (17, 17)),
    ("spanning_tree", (2, 2)),
    ("spanning_tree[single_root=False]", (4, 4)),
    ("spanning_tree", (4, 4)),
    ("spanning_tree[single_root=False]", (14, 14)),
    ("spanning_tree", (15, 15)),
]


@pytest.mark.parametrize(("name", "event"), CASES)
def test_equals_the_reference(name: str, event: tuple[int, ...], gpu_kernels: torch.device) -> None:
    """All structures of a small space; some of a large one, the last among them."""
    oracle = make_oracle(name)
    total = oracle.count(event)
    assert total <= 2**62
    ranks = torch.arange(total) if total < 300 else torch.cat([torch.arange(3), torch.randint(total, (10,)), torch.tensor([total - 1])])
    ranks = ranks.to(gpu_kernels)
    kernel = kernels.find_unranking(oracle.kernel, ranks, event, oracle.kernel_options())
    assert isinstance(kernel, kernels.gpu.DeviceKernel)
    structures = torch.full((len(ranks), *event), 7, dtype=torch.uint8, device=gpu_kernels)
    kernel(ranks, structures)
    assert torch.equal(structures, oracle._unrank(ranks, event).to(torch.uint8))


def test_the_oracle_takes_them(gpu_kernels: torch.device) -> None:
    oracle = make_oracle("linear_chain")
    listed = oracle.enumerate((3, 2, 2), 1, 6, device=gpu_kernels)
    assert oracle.rank(listed).tolist() == [1, 2, 3, 4, 5]
    assert len(oracle.enumerate((3, 2, 2), 2, 2, device=gpu_kernels)) == 0
