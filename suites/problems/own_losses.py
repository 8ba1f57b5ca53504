"""A loss of one's own, named by its code: ``./mine.py:loss`` or ``module:loss``."""

import inspect
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from ...oracles import Oracle
from ..base import Instance
from ..tasks.own_losses import ends, imported_loss, smoothness


class OwnLoss:
    """A function of structures, ``[..., *event] -> [...]``, as a `ProblemLoss`. Its derivative and its values in the hull are tried out."""

    vertex_degree: int | None = None
    offset: float = 0.0
    varies = True  # `examine_loss` refuses a constant

    def __init__(self, name: str, function: Callable[[Tensor], Tensor], oracle: Oracle, scores: Tensor) -> None:
        self.name, self.function = name, function
        self.differentiable, self.inside_hull = smoothness(function, *ends(oracle, scores.double().unsqueeze(0)))
        self.extension = "formula" if self.inside_hull else "none"

    def __call__(self, structure: Tensor) -> Tensor:
        return self.function(structure)


def is_code(name: str) -> bool:
    """Whether a name means a loss of one's own, such as ``./mine.py:loss``."""
    return ":" in name


def own_loss(name: str, instance: Instance, oracle: Oracle) -> OwnLoss:
    """The loss that a name means for an instance, whose own loss is that of the problem.

    A function with the one parameter ``instance`` is a factory: it is called with the instance, and returns the loss.

    Raises:
        ValueError: what the name means cannot be imported, or is no function, or the factory raises.
    """
    found = imported_loss(name, "expected a function [..., *event] -> [...] of structures")
    function, factory = found, False
    with suppress(TypeError, ValueError):  # some built-in functions have no signature
        factory = [*inspect.signature(found).parameters] == ["instance"]
    if factory:
        try:
            function = found(instance)
        except Exception as error:  # it may be anybody's
            raise ValueError(f"the loss {name!r} raised {type(error).__name__} for the instance {instance.name}: {error}") from error
        if not callable(function):
            raise ValueError(f"the loss {name!r} made a {type(function).__name__} of an instance; expected a function of structures")
    return OwnLoss(name, function, oracle, instance.scores)
