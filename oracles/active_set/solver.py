"""SparseMAP from argmax calls: a batched active-set solver, and the entry to its compiled form.

Source: Niculae, Martins, Blondel & Cardie 2018, "SparseMAP", section 3.2; the method is Wolfe's min-norm-point algorithm (Wolfe 1976) for
the point ``θ``. All items of a batch move in lockstep; each step solves a small dense system for the weights and, where these are feasible,
asks the oracle for the best atom along the residual ``θ − μ``. The largest improvement along any atom is the certified gap.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import kernels
from .atoms import AtomLists
from .solution import Projection, Start, affine_factor, solve_factored

ROUNDING = 1e-15
"""A gap below this much of the sums that it is the difference of is rounding."""

DEPENDENT = 1e-11
"""An atom that adds less than this much of its own square to the affine hull of the others adds nothing."""

MAP_CALLS = 32
"""How many MAP calls one projection is worth where only its order of magnitude counts."""


def solve(
    argmax: Callable[[Tensor, Tensor], Tensor],
    rows: Tensor,
    max_steps: int | None = None,
    *,
    empty: Callable[[], bool] = lambda: False,
    start: Start | None = None,
) -> Projection:
    """Project rows [b, *event] on the convex hull of the structures that ``argmax`` can return.

    Args:
        argmax: MAP of float64 directions [i, *event] for the rows of these indices [i]; forbidden parts are given as -inf.
        rows: float64 scores, -inf where a part is forbidden.
        max_steps: cap on argmax calls; the default, ``20·(d + 1)`` for d parts, was never reached in tests at score scales 0.05 to 50.
            Where it stops the solver, the gap in the result says how far from optimal the answer is.
        empty: whether having no part is a structure, asked once such an argmax is met; else it says that the row has none.
        start: atoms to begin with, of rows that differ little.

    Cost: per step one argmax, products of all m atoms with one vector, and one Cholesky factorisation (m³/3); typically 2 to 3 steps per
    atom of the answer.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> rows = torch.tensor([[1.0, 0.8, -1.0]], dtype=torch.float64)
        >>> solution = solve(lambda directions, items: Categorical().argmax(directions), rows)
        >>> atoms, weights = solution.decompose()
        >>> (weights.unsqueeze(-1) * atoms).sum(1)
        tensor([[0.6000, 0.4000, 0.0000]], dtype=torch.float64)
    """
    event = rows.shape[1:]
    theta = rows.flatten(1)
    state = _ActiveSet(theta, lambda direction, items: argmax(direction.unflatten(1, event), items).flatten(1).to(theta.dtype), empty)
    if start is not None:
        state.resume(*start.dense(theta))
    closed = []
    for _ in range(max_steps or 20 * (theta.shape[1] + 1)):
        if not state.step():
            break
        if int(state.open.sum()) <= len(state.open) // 2:
            closed.append(state.split_closed())
    return _joined([*closed, state], event)


def solve_compiled(kernel: kernels.Kernel, rows: Tensor, inside: Tensor | None = None, start: Start | None = None) -> Projection:
    """Project rows [b, *event] with the compiled active set of a structure; the mean is known at once, the atoms are decoded on first use.

    Args:
        kernel: ``project`` of the structure's module in `structgrad.oracles.kernels`.
        rows: float64 scores with their padding completed, so that every structure of a short item goes on there in one way.
        inside: [b, *event] bool, the parts that count; all where it is None. Its event may be smaller than that of the completed rows.
        start: atoms to begin with, of rows that differ little.

    Cost: per step one MAP, and O(m²) for the m atoms; memory for the atoms of the answers alone.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> rows = torch.tensor([[[[0.4, 0.0], [0.0, 0.0]]]], dtype=torch.float64)
        >>> kernel = LinearChain()._kernel("project", rows)
        >>> solve_compiled(kernel, rows).mean[0, 0, 0]
        tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    event, count = rows.shape[1:], len(rows)
    counted = torch.zeros(count, 0, dtype=torch.bool) if inside is None else _completed(inside, event).flatten(1)
    mean, gap, support = (
        torch.zeros(count, event.numel(), dtype=torch.float64),
        torch.zeros(count, dtype=torch.float64),
        torch.zeros(count, dtype=torch.int64),
    )
    found: dict[int, tuple[Any, ...]] = {}

    solver: Callable[..., Any] = kernel.function

    @functools.wraps(solver)
    def project(items: Any, *arrays: Any) -> None:
        found[items[0] if len(items) else 0] = solver(*arrays)

    none = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
    begin, atoms = (torch.zeros(count, 3, dtype=torch.int64), none) if start is None else start.lists(event)
    arrays = (torch.arange(count), rows.contiguous(), counted.contiguous(), begin, mean, gap, support)
    kernels.launch(project, [*map(Tensor.numpy, arrays)], (atoms, *kernel.options), MAP_CALLS * kernel.operations)
    columns = zip(*(found[item] for item in sorted(found)), strict=True)
    # In memory of torch, like all results.
    parts, sizes, weights = (torch.cat([torch.from_numpy(piece) for piece in column]) for column in columns)
    kept = event if inside is None else inside.shape[1:]
    completed = AtomLists(parts.numpy(), sizes.numpy(), weights, support, event)
    lists = dataclasses.replace(completed, parts=completed.parts_in(kept), event=kept)
    return Projection(gap=gap, decompose=lists.decompose, mean=mean.unflatten(1, event)[(slice(None), *map(slice, kept))], lists=lists)


def _completed(inside: Tensor, event: torch.Size) -> Tensor:
    """False in what completing the rows added to their event."""
    added = [size - own for size, own in zip(reversed(event), reversed(inside.shape[1:]), strict=True)]
    return pad(inside, [side for extra in added for side in (0, extra)])


def _joined(parts: list[_ActiveSet], event: torch.Size) -> Projection:
    """The results of all items, in their first order."""
    order = torch.cat([part.index for part in parts]).argsort()
    width = max(part.weights.shape[1] for part in parts)
    atoms = torch.cat([pad(part.atoms, (0, 0, 0, width - part.atoms.shape[1])) for part in parts])[order]
    weights = torch.cat([pad(part.weights, (0, width - part.weights.shape[1])) for part in parts])[order]
    gap = torch.cat([part.gap for part in parts])[order]
    return Projection(gap=gap, decompose=lambda: (atoms.unflatten(-1, event), weights))


class _ActiveSet:
    """Items of a batch, each with atoms [m, d], weights [m] (0 for a free slot), inner products and gap.

    Inner products of the atoms with each other (``gram``) and with the scores (``correlations``, relative to the first atom, so that large
    scores cost no precision) are kept, and grow with each new atom. ``newest`` is the slot of an atom that has had no weight yet, or -1.
    """

    def __init__(self, theta: Tensor, argmax: Callable[[Tensor, Tensor], Tensor], empty: Callable[[], bool] = lambda: False) -> None:
        self.argmax = argmax
        self.index = torch.arange(len(theta), device=theta.device)
        self.forbidden = theta == -math.inf
        self.theta = torch.where(self.forbidden, 0, theta)
        first = argmax(theta, self.index)
        # An item without a structure gets an argmax that uses a forbidden part, or no part at all.
        infeasible = (first * self.forbidden).any(-1)
        nothing = first.sum(-1) == 0
        if bool(nothing.any()) and not empty():
            infeasible |= nothing
        self.atoms = first.unsqueeze(1)
        self.gram = self.atoms @ self.atoms.mT
        self.first = first
        self.correlations = torch.zeros_like(self.gram[:, 0])
        self.weights = (~infeasible).to(theta.dtype).unsqueeze(1)
        self.active = ~infeasible.unsqueeze(1)
        self.newest = torch.full_like(self.index, -1)
        self.gap = torch.full_like(theta[:, 0], math.inf)
        self.open = ~infeasible

    def resume(self, atoms: Tensor, weights: Tensor) -> None:
        """Begin with atoms [b, m, d] of these weights [b, m], where some are allowed; before the first step."""
        allowed = (weights > 0) & ~(atoms * self.forbidden.unsqueeze(1)).any(-1)
        resumed = allowed.any(-1) & self.open
        # Where there is none, the best structure stays, in the first slot.
        single = torch.zeros_like(allowed)
        single[:, :1] = self.active
        self.active = torch.where(resumed.unsqueeze(-1), allowed, single)
        given = torch.where(self.active, torch.where(resumed.unsqueeze(-1), weights, 1), 0)
        self.weights = given / given.sum(-1, keepdim=True).clamp(min=1e-300)
        self.atoms = torch.where(resumed.unsqueeze(-1).unsqueeze(-1), atoms, self.first.unsqueeze(1))
        self.gram = self.atoms @ self.atoms.mT
        self.correlations = ((self.atoms - self.first.unsqueeze(1)) * self.theta.unsqueeze(1)).sum(-1)

    def split_closed(self) -> _ActiveSet:
        """Take the closed items out, so that no work is done on them, and give them back."""
        closed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name != "open":
                setattr(closed, name, value[~self.open])
                setattr(self, name, value[self.open])
        self.open = torch.ones_like(self.gap, dtype=torch.bool)
        return closed

    def step(self) -> bool:
        """One weight update for every open item, and one new atom where the update was feasible. False when no item is open."""
        factor = affine_factor(self.gram, self.active)
        target = solve_factored(factor, self.active, self.correlations, total=1.0)
        # So that the weight of an atom alone is 1 to the last bit.
        target = torch.where(self.active, target + (1 - target.sum(-1, keepdim=True)) / self.active.sum(-1, keepdim=True).clamp(min=1), 0)
        self._refuse(target)
        negative = self.active & (target <= 0)
        blocked = negative.any(-1) & self.open
        # Move towards the affine optimum until the first weight reaches zero.
        length = torch.where(negative, self.weights / (self.weights - target).clamp(min=1e-300), math.inf).amin(-1).clamp(max=1.0)
        length = torch.where(blocked, length, 1.0).unsqueeze(-1)
        moved = torch.where(length < 1, self.weights + length * (target - self.weights), target)
        leaving = negative & blocked.unsqueeze(-1) & (moved <= 1e-15 + moved.masked_fill(~negative, math.inf).amin(-1, keepdim=True))
        moved = torch.where(leaving, 0, moved.clamp(min=0))
        self.weights = torch.where(self.open.unsqueeze(-1), moved, self.weights)
        self.active = self.active & ~(leaving & self.open.unsqueeze(-1))
        if bool((self.open & ~blocked).any()):
            self._extend(self.open & ~blocked, factor)
        return bool(self.open.any())

    def _refuse(self, target: Tensor) -> None:
        """Close items whose newest atom would get no weight: it has a gap, so that this is rounding, and all that can be had is had."""
        items = self.newest.clamp(min=0).unsqueeze(-1)
        refused = self.open & (self.newest >= 0) & (target.gather(-1, items).squeeze(-1) <= 0)
        self.active = self.active.scatter(-1, items, self.active.gather(-1, items) & ~refused.unsqueeze(-1))
        self.open = self.open & ~refused
        self.newest = torch.full_like(self.newest, -1)

    def _extend(self, ready: Tensor, factor: Tensor) -> None:
        """Ask for the best atom along the residual; close the items that have none better."""
        mean = (self.weights.unsqueeze(1) @ self.atoms).squeeze(1)
        residual = self.theta - mean
        atom = self.argmax(residual.masked_fill(self.forbidden, -math.inf), self.index)
        gain = residual * (atom - mean)
        gap = gain.sum(-1)
        self.gap = torch.where(ready, gap.clamp(min=0), self.gap)
        products, size = (self.atoms @ atom.unsqueeze(-1)).squeeze(-1), atom.square().sum(-1)
        # What the atom adds to the affine hull of the others, squared; for one of them, nothing.
        column = torch.where(self.active, products + 1, 0).unsqueeze(-1)
        added = size + 1 - (column * torch.cholesky_solve(column, factor)).squeeze(-1).sum(-1)
        finished = ready & ((gap <= ROUNDING * gain.abs().sum(-1) + 1e-15) | ~(added > DEPENDENT * (size + 1)))
        self.open = self.open & ~finished
        self._insert(atom, products, (ready & ~finished).nonzero().squeeze(-1))

    def _insert(self, atom: Tensor, products: Tensor, items: Tensor) -> None:
        """Put the atom of each of these items into its first free slot, with weight 0; make room where one has none."""
        if bool(self.active[items].all(-1).any()):
            room = self.active.shape[1] // 2 + 4
            self.atoms = pad(self.atoms, (0, 0, 0, room))
            self.gram = pad(self.gram, (0, room, 0, room))
            self.weights, self.active = pad(self.weights, (0, room)), pad(self.active, (0, room))
            self.correlations, products = pad(self.correlations, (0, room)), pad(products, (0, room))
        slots = (~self.active[items]).to(torch.int8).argmax(-1)
        self.atoms[items, slots] = atom[items]
        self.gram[items, slots] = products[items]
        self.gram[items, :, slots] = products[items]
        self.gram[items, slots, slots] = atom[items].square().sum(-1)
        self.correlations[items, slots] = ((atom - self.first) * self.theta).sum(-1)[items]
        self.active[items, slots] = True
        self.newest[items] = slots
