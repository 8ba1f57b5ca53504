"""Parts of surrogates: losses of structures in either form, their gradients, and values whose gradient is an estimate."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from ..oracles.capabilities import Oracle, SamplingOracle
from ..oracles.numerics import HALF
from ..oracles.tensor_kinds import own
from ..oracles.transforms import applied

Loss = Callable[[Tensor], Tensor]
"""``[..., *batch, *event] -> [..., *batch]``: one value per structure. It may hold parameters, and data per batch row.

For what needs values only, integers and booleans are values too: ``lambda z: (z != gold).sum(-1)``.
"""

IndexLoss = Callable[[Tensor], Tensor]
"""``[..., *batch, *index] -> [..., *batch]``: one value per structure, from its indices; -1 beyond an item's length."""


class of_indices:  # noqa: N801 - is called like a function
    """A loss of compact structures, int64 ``[..., *batch, *index]``, for every estimator that asks a loss for values alone.

    Estimators of the score-function family draw, weigh and differentiate samples in that form, and make no dense ones; the others hand on
    the indices of theirs. Those that need the gradient of a loss in the structure, or its value between structures, refuse it. An attribute
    ``takes_indices = True`` of a loss of one's own says the same.

    Args:
        function: one value per structure, ``[..., *batch]``. What indices mean is said by the oracle; beyond the ``lengths`` of items they
            are -1.

    Example:
        >>> from structgrad.estimators import make_estimator
        >>> gold = torch.tensor([0, 1, 1])
        >>> loss = of_indices(lambda tags: (tags != gold).sum(-1))
        >>> scores, generator = torch.zeros(3, 2, 2), torch.Generator().manual_seed(0)
        >>> estimate = make_estimator("rloo[num_samples=64]").gradient(loss, "linear_chain", scores, generator=generator)
        >>> bool(estimate[0, 0, 0] < 0 < estimate[0, 0, 1])  # the first tag is to be 0
        True
    """

    takes_indices: ClassVar[bool] = True

    def __init__(self, function: IndexLoss) -> None:
        self.function = function

    def __call__(self, indices: Tensor) -> Tensor:
        return self.function(indices)


class OfStructures:
    """A loss of indices as one of structures, with its other attributes. Estimators get every loss of indices like this."""

    takes_indices: ClassVar[bool] = False

    def __init__(self, loss: IndexLoss, oracle: Oracle) -> None:
        self.loss, self.oracle = loss, oracle

    def __call__(self, structures: Tensor) -> Tensor:
        return self.loss(self.oracle.indices(structures.detach()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)


class LossInHalf:
    """A loss of structures in half precision as one of float32: it gets structures of its dtype, and its values are averaged in float32."""

    def __init__(self, loss: Any, dtype: torch.dtype) -> None:
        self.loss, self.dtype = loss, dtype
        self.given: torch.dtype | None = None

    def __call__(self, structures: Tensor) -> Any:
        values = self.loss(structures.to(self.dtype) if structures.is_floating_point() else structures)
        if not isinstance(values, Tensor) or values.dtype not in HALF:
            return values
        self.given = values.dtype
        return values.float()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)


def evaluate(loss: Loss, structures: Tensor, event_ndim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The loss of every structure, one number each.

    Refused are a loss that reduces, which would mix the rows of a batch, and one that writes into its structures: estimators weigh the same
    ones by their probabilities afterwards.

    Args:
        loss: of structures, or of indices.
        structures: ``[..., *batch, *event]``, or indices.
        event_ndim: how many dimensions one has.
        dtype: of dense structures, that of these where it is None.
    """
    counted = not structures.is_inference()  # how often torch has written into the memory of a tensor
    version = structures._version if counted else 0
    losses = own(loss, structures)
    if counted and structures._version != version:
        raise ValueError(
            "the loss changed its structures in place; expected it to leave them as they are, because they are used again afterwards: "
            "change a copy, structures.clone()"
        )
    expected = tuple(structures.shape[: structures.ndim - event_ndim])
    if not isinstance(losses, Tensor) or losses.is_complex():
        raise ValueError(f"the loss gave {described(losses)}; expected a tensor of one real number per structure, of shape {expected}")
    if tuple(losses.shape) != expected:
        raise ValueError(
            f"the loss gave a tensor of shape {tuple(losses.shape)} for structures of shape {tuple(structures.shape)}; "
            f"expected one value per structure, {expected}: reduce the surrogate instead"
        )
    # A count of errors is an integer, and what is right or wrong a boolean: estimators subtract and average them.
    return losses if losses.is_floating_point() else losses.to(torch.promote_types(dtype or structures.dtype, torch.float32))


def described(value: object) -> str:
    """A value in a message about wrong input: its kind, or itself if it is short."""
    if isinstance(value, Tensor):
        layout = "" if value.layout is torch.strided else f" and layout {value.layout}"
        return f"a {'nested ' * value.is_nested}tensor of dtype {value.dtype}{layout}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def draw(
    loss: Any, oracle: SamplingOracle, scores: Tensor, num_samples: int | None, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """That many exact samples, or one without that dimension, and their losses; indices of the same samples where the loss takes these."""
    if isinstance(loss, OfStructures):
        samples = oracle.sample(scores, num_samples, generator=generator, as_indices=True)
        return samples, evaluate(loss.loss, samples, oracle.index_ndim, scores.dtype)
    samples = oracle.sample(scores, num_samples, generator=generator)
    return samples, evaluate(loss, samples, oracle.event_ndim)


def expand_samples(scores: Tensor, samples: int, event_ndim: int) -> Tensor:
    """[*batch, *event] -> [*batch, samples, *event] without a copy. Samples come after the batch, so that seed blocks cut the batch."""
    batch_dims = scores.ndim - event_ndim
    shape = scores.shape
    return scores.unsqueeze(batch_dims).expand(*shape[:batch_dims], samples, *shape[batch_dims:])


def upstream_gradient(name: str, losses: Tensor, point: Tensor, *, create_graph: bool = False, retain_graph: bool = True) -> Tensor:
    """γ, the gradient of every loss in its own point, for the estimator of this name; a loss without one is refused."""
    gamma = None
    if losses.requires_grad:
        (gamma,) = torch.autograd.grad(losses.sum(), point, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True)
    if gamma is None:
        raise without_gradient(name)
    return gamma


def inferring(name: str, reason: str) -> ValueError:
    """The error of a surrogate in inference mode."""
    return ValueError(f"`{name}` got its surrogate called under torch.inference_mode, {reason}; use torch.no_grad")


def without_gradient(name: str) -> ValueError:
    """The error of a loss that has no gradient in the structure."""
    if torch.is_inference_mode_enabled():
        return inferring(name, "where no loss has a gradient")
    return ValueError(
        f"`{name}` got a loss without a gradient in the structure; expected a differentiable loss, "
        "or choose an estimator that needs its values only, such as rloo"
    )


def depends(losses: Tensor, point: Tensor) -> bool:
    """Whether the losses were computed from a point that requires a gradient, as far as autograd knows."""
    if not losses.requires_grad:
        return False
    sought = point.grad_fn or get_gradient_edge(point).node
    # What is older than the point is looked at last: it leads to an encoder, but for numbers that another thread gave.
    birth = sought._sequence_nr() if point.grad_fn is not None else 0
    waiting, older, known = [losses.grad_fn or get_gradient_edge(losses).node], list[Node](), set[Node]()
    while waiting or older:
        node = waiting.pop() if waiting else older.pop()
        if node is sought:
            return True
        for following, _ in reversed(node.next_functions):
            if following is not None and following not in known:
                known.add(following)
                (waiting if following._sequence_nr() >= birth else older).append(following)
    return False


def learns_besides(losses: Tensor, point: Tensor) -> bool:
    """Whether anything but a point may get a gradient from losses; what a function of yours holds back counts as such."""
    waiting, known = [losses.grad_fn], {None, point.grad_fn}
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction) or getattr(node, "variable", point) is not point:
            return True
        for following, _ in node.next_functions if node is not None else ():
            if following not in known:
                known.add(following)
                waiting.append(following)
    return False


def straight_through(structure: Tensor, scores: Tensor, oracle: Oracle) -> Tensor:
    """``structure``, with the identity on the moving parts as its backward; ``z + θ − θ.detach()`` would be NaN at a score of -inf."""
    if oracle.all_free(scores):
        return with_backward(structure, scores, lambda gamma: gamma.view_as(gamma))
    moving = moving_parts(structure, scores, oracle)
    return with_backward(structure, scores, lambda gamma: torch.where(moving, gamma, 0))


def moving_parts(structure: Tensor, scores: Tensor, oracle: Oracle) -> Tensor:
    """Boolean, broadcastable to ``[*batch, *event]``: the parts that carry gradient, the free ones, and none in an infeasible row.

    Where nothing is feasible, the structure that an oracle returns uses a forbidden part, or no part at all.
    """
    if oracle.forbids_nothing(scores):
        return oracle.read_mask(tuple(scores.shape[scores.ndim - oracle.event_ndim :]), scores.device)
    free, used, event = oracle.free_parts(scores), structure != 0, tuple(range(-oracle.event_ndim, 0))
    return oracle.parts_within(free, scores) & used.any(event, keepdim=True) & (free | ~used).all(event, keepdim=True)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        ctx.save_for_backward(estimate)
        ctx.event_ndim = scores.ndim - value.ndim
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (estimate,) = ctx.saved_tensors
        gradient = grads[0].reshape(*grads[0].shape, *([1] * ctx.event_ndim)) * estimate
        if torch.is_grad_enabled():
            gradient = _UNDERIVED(gradient.requires_grad_())
        return grads[0], gradient, None


_UNDERIVED = torch._C._functions.DelayedError(
    "the estimate of a gradient got differentiated, as by a gradient penalty; expected no more than its value, because an estimate is a "
    "number that no derivative leads through: take a relaxation with derivatives, such as structured_attention, or detach the estimate",
    1,
)
"""Passes a gradient on, and refuses to be differentiated."""


with_gradient: Callable[[Tensor, Tensor, Tensor], Tensor] = applied(_WithGradient)
"""``value`` [*batch], whose gradient in the scores is ``estimate`` [*batch, *event]; gradients in other parameters are kept."""


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


carry: Callable[[Tensor, Tensor], Tensor] = applied(_Carry)
"""``value``, to whose gradient that of ``carrier`` is added; the carrier's own value, which may be infinite, is dropped."""


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Tensor, scores: Tensor, pull_back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.pull_back = pull_back
        return structure.view_as(structure)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        return None, ctx.pull_back(grads[0]), None


with_backward: Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor] = applied(_WithBackward)
"""``structure``, with ``pull_back`` (from γ to the estimate) as its backward to the scores."""
