"""Checks of a loss on a few structures, before anything is computed from it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...oracles.capabilities import EnumerableOracle, Oracle
from ...oracles.registry import parse
from ...oracles.sources import own_fault
from ..problems import LOSSES, is_code, is_sized, load
from ..problems.regimes import REGIMES

NUM_EXAMPLES = 8  # structures that the loss is checked on
MAX_LOSS = float(torch.finfo(torch.float64).max ** 0.25)  # metrics hold fourth powers of losses, which are finite below about 1e77
MAX_LISTED = 1000  # structures that are all listed to find out that a loss of one's own is a constant
TOLERANCE = 1e-6  # the greatest difference of two values of one structure, as a share of the largest loss

EXPECTED = "expected a function [..., *event] -> [...] of float64 structures, one finite number for each"


def examine_loss(loss: Any, oracle: Oracle, scores: Tensor, *, differentiated: bool = False) -> None:
    """Refuse a loss that cannot be measured, with ValueError.

    Such a loss raises, writes into its argument, or does not return one finite number below 10⁷⁷ for each structure. Or its values change
    from call to call, or with the other structures of a call. One of the user's own may not be a constant either. The best structures of
    scores under noise are evaluated together, once more, in another order, and alone. If ``differentiated``, the gradient is checked too.
    """
    theta = scores.detach().double()
    noise = torch.randn((NUM_EXAMPLES, *theta.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = torch.tensor([0.0, *(2.0**power for power in range(NUM_EXAMPLES - 1))], dtype=torch.float64)
    structures = oracle.argmax(theta + (scales.reshape(-1, *[1] * theta.ndim) * noise).to(theta.device))
    kept = structures.clone()
    losses = checked(values(loss, structures, oracle.event_ndim))
    if not torch.equal(structures, kept):
        raise ValueError("the loss writes into its argument; expected it to leave the structures as they are (clone them first)")
    allowed = TOLERANCE * float(losses.abs().max())
    if _apart(losses, values(loss, kept, oracle.event_ndim), allowed):
        raise ValueError(
            "the loss gave a structure another value in a second call; expected the same value in every call (it must not be random)"
        )
    turned = values(loss, kept.flip(0), oracle.event_ndim).flip(0)
    alone = values(loss, kept[:1], oracle.event_ndim)
    if _apart(losses, turned, allowed) or _apart(losses[:1], alone, allowed):
        raise ValueError(
            "the loss gave a structure another value next to other structures; expected a value that depends on the structure alone "
            "(no batch normalisation, nothing that changes with every call)"
        )
    event = tuple(theta.shape)
    if getattr(loss, "varies", False) and isinstance(oracle, EnumerableOracle) and 1 < oracle.count(event) <= MAX_LISTED:
        every = values(loss, oracle.enumerate(event, dtype=torch.float64, device=theta.device), oracle.event_ndim)
        if float(every.min()) == float(every.max()):
            raise ValueError(f"the loss gave {float(every[0]):g} for every structure; expected one that depends on the structure")
    if differentiated:
        with torch.enable_grad():
            point = kept.clone().requires_grad_()
            losses = loss(point)
            if not losses.requires_grad:
                return  # the estimator refuses a missing gradient
            (gradient,) = torch.autograd.grad(losses.sum(), point, allow_unused=True, materialize_grads=True)
        if not bool(gradient.isfinite().all()):
            worst = gradient[~gradient.isfinite()][0]
            raise ValueError(
                f"the gradient of the loss is {float(worst):g} at a structure; expected finite numbers (a norm has none at distance 0)"
            )


def has_gradients(loss: str, oracle: str) -> bool:
    """Whether a loss has gradients at relaxed inputs. One's own is examined on the structure, at its sizes or those of a built-in one."""
    if not is_code(loss):
        return getattr(LOSSES.get(loss), "inside_hull", True)
    head = parse(oracle)[0]
    sized = oracle if is_sized(oracle) else next((name for name, regime in REGIMES.items() if regime.oracle.name == head), oracle)
    problem = load(f"{sized}@{loss}", "h=0.5", instances=1, data=None)
    examine_loss(problem.instances[0].loss, problem.oracle, problem.instances[0].scores)
    return problem.instances[0].loss.inside_hull


def values(loss: Callable[[Tensor], Tensor], structures: Tensor, event_ndim: int) -> Tensor:
    """The loss of every structure as float64; ValueError unless there is one number for each. The numbers are not checked."""
    shape = tuple(structures.shape[: structures.ndim - event_ndim])
    try:
        with torch.no_grad():
            losses = loss(structures)
    except Exception as error:  # any user-supplied code may run here
        text = ", in ".join([" ".join(str(error).split()), *(own_fault(error) or ())[1:]])
        raise ValueError(f"the loss raised {type(error).__name__}: {text}; {EXPECTED}, here of shape {tuple(structures.shape)}") from error
    if not isinstance(losses, Tensor) or losses.is_complex():
        got = f"a tensor of dtype {losses.dtype}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise ValueError(f"the loss gave {got}; {EXPECTED}")
    if tuple(losses.shape) != shape:
        raise ValueError(f"the loss gave shape {tuple(losses.shape)} for structures {tuple(structures.shape)}; {EXPECTED}, {shape}")
    return losses.double()


def checked(losses: Tensor) -> Tensor:
    """Return the losses, or raise ValueError with the first that is no finite number below 10⁷⁷."""
    fits = losses.abs() <= MAX_LOSS
    if not bool(fits.all()):
        worst = losses[~fits][0]
        raise ValueError(f"the loss gave {float(worst):g}; expected finite numbers below {MAX_LOSS:.0e}, for every structure")
    return losses


def _apart(first: Tensor, second: Tensor, allowed: float) -> bool:
    return bool(((first - second).abs() > allowed).any())
