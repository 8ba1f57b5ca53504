"""Composition along trees: by chart, and by a stack."""

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ShiftReduce
from structgrad.suites.tasks.language.listops import ChartDecoder, StackDecoder, TreeDecoder, spans_of


def decoder(kind: type[TreeDecoder] = ChartDecoder) -> TreeDecoder:
    torch.manual_seed(0)
    return kind(6, 4, 5, 3).double()


TOKENS, LENGTHS = torch.tensor([[0, 1, 2, 3, 4], [3, 3, 1, 0, 5]]), torch.tensor([5, 4])


def test_a_tree_by_hand() -> None:
    model, tree = decoder(), torch.eye(5, dtype=torch.float64)
    for i, j in ((0, 1), (2, 3), (2, 4), (0, 4)):
        tree[i, j] = 1

    def composed(left: Tensor, right: Tensor) -> Tensor:
        part = model.composition
        from_left, from_right = part.inner(left)[:5], part.inner(right)[5:]
        return part.norm(left + right + part.outer((from_left + from_right).relu()))

    a, b, c, d, e = model.leaves(TOKENS[0])
    expected = model.top(composed(composed(a, b), composed(composed(c, d), e)))
    assert torch.allclose(model(TOKENS[:1], LENGTHS[:1], tree.unsqueeze(0))[0], expected)
    assert torch.allclose(model(TOKENS[:1], LENGTHS[:1], tree.unsqueeze(0).requires_grad_())[0], expected)


def test_the_gradient_is_the_change_by_a_rotation() -> None:
    """More weight for the span of a rotation moves the logits of a tree towards those of the rotated tree."""
    model = decoder()
    tree = torch.eye(5, dtype=torch.float64)
    tree[0] = 1
    rotated = tree.clone()
    rotated[0, 1], rotated[1, 2] = 0, 1
    z = tree.expand(1, 5, 5).clone().requires_grad_()
    own = model(TOKENS[:1], LENGTHS[:1], z)[0, 0]
    (gradient,) = torch.autograd.grad(own, z)
    assert gradient[0, 1, 2] != 0
    step = 1e-6
    moved = model(TOKENS[:1], LENGTHS[:1], (1 - step) * tree.expand(1, 5, 5) + step * rotated)[0, 0]
    towards = (gradient[0] * (rotated - tree)).sum()
    assert float((moved - own).detach() / step) == pytest.approx(float(towards), rel=1e-4)


DERIVATIONS = ShiftReduce().enumerate((6, 6, 2), dtype=torch.float64)


@pytest.mark.parametrize("same", [True, False])
def test_a_stack_equals_the_chart(same: bool) -> None:
    """Values, and gradients in the parameters."""
    model, chart = decoder(StackDecoder), decoder()
    z = DERIVATIONS.unsqueeze(1).expand(-1, 2, -1, -1, -1)
    z = z if same else torch.stack([DERIVATIONS, DERIVATIONS.flip(0)], 1)
    trees = spans_of(z).double()
    fitting = torch.stack([torch.ones_like(trees[:, 0, 0, 3]), trees[:, 1, 0, 3]], 1) > 0
    expected = chart(TOKENS, LENGTHS, trees)[fitting]
    weights, grads = torch.rand(*z.shape[:2], 3, dtype=torch.float64) * fitting.unsqueeze(-1), []
    for structures in (z, z.clone().requires_grad_()):
        logits = model(TOKENS, LENGTHS, structures)
        assert torch.allclose(logits[fitting], expected, rtol=1e-12)
        grads.append(torch.autograd.grad((weights * logits).sum(), list(model.parameters())))
    assert all(torch.allclose(one, other, rtol=1e-10) for one, other in zip(*grads, strict=True))
