"""The k best structures that choose one of several options for each slot, by calls for the best one.

A structure that is listed splits its part of the space: structures that first differ from it at slot 0, at slot 1, and so on. The best one
of every part is known, and the best of these comes next.

Source: Murty 1968, "An algorithm for ranking all the assignments in order of increasing cost"; Lawler 1972, "A procedure for computing the
k best solutions to discrete optimization problems".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Solve = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Of scores [i, n, c], -inf where an option is forbidden: the best choices [i, n], and whether there are any, bool [i]."""


def best_choices(solve: Solve, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Choices [k, b, n] of the k best structures of scores [b, n, c], and which of them there are, bool [k, b]; k n calls' worth."""
    items, slots, options = (torch.arange(size, device=rows.device) for size in rows.shape)

    def best(scores: Tensor) -> tuple[Tensor, Tensor]:
        """Totals [b, p] and choices [b, p, n] for scores [b, p, n, c] of parts."""
        found, feasible = (each.unflatten(0, scores.shape[:2]) for each in solve(scores.flatten(0, 1)))
        return scores.gather(-1, found.unsqueeze(-1)).sum((-2, -1)).masked_fill(~feasible, -math.inf), found

    totals, choices = best(rows.unsqueeze(1))
    # A part has the choices of its structure before this slot, and there another one than those that are banned.
    fixed, banned = torch.zeros_like(choices[..., 0]), torch.zeros_like(rows[:, :1], dtype=torch.bool)
    listed, exist = [], []
    for _ in range(k):
        total, part = totals.max(1)
        chosen, first = choices[items, part], fixed[items, part].unsqueeze(-1)
        listed.append(chosen)
        exist.append(total > -math.inf)
        totals[items, part] = -math.inf
        taken = chosen.unsqueeze(-1) == options
        bans = taken | (banned[items, part].unsqueeze(1) & (slots == first).unsqueeze(-1))
        # By part, slot and option.
        before, here = (slots < slots.unsqueeze(-1)).unsqueeze(-1), (slots == slots.unsqueeze(-1)).unsqueeze(-1)
        more, found = best(rows.unsqueeze(1).masked_fill((before & ~taken.unsqueeze(1)) | (here & bans.unsqueeze(1)), -math.inf))
        more = more.masked_fill((slots < first) | ~exist[-1].unsqueeze(-1), -math.inf)
        totals, choices = torch.cat([totals, more], 1), torch.cat([choices, found], 1)
        fixed, banned = torch.cat([fixed, slots.expand_as(more)], 1), torch.cat([banned, bans], 1)
    return torch.stack(listed), torch.stack(exist)
