"""Shift-reduce derivations of binary trees."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..capabilities import PolicyOracle
from ..capabilities.indices import NONE, placed
from ..capabilities.marginals import ExactLaw
from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, algorithms
from ..numerics import in_single
from ..tensor_kinds import labels_below
from ..transforms import operation

SHIFT, REDUCE = 0, 1
"""The actions, by their place in the last event dimension."""


@dataclass(frozen=True)
class ShiftReduce(DerivedOracle, PolicyOracle):
    """Shift-reduce derivations: event ``[n + 1, n + 1, 2]``, ``scores[..., i, d, a]`` scores action a after i shifts with stack depth d.

    A derivation of n leaves is 2n − 1 actions from state (0, 0) to (n, 1). Action 0, SHIFT, needs i < n and leads to (i + 1, d + 1); action
    1, REDUCE, needs d ≥ 2 and leads to (i, d − 1). Derivations are the binary trees over n leaves in postorder. Entries that are on no
    derivation are ignored. Of equal scores, the one that shifts first is taken. Indices ``[2n - 1]`` are the actions.

    Dynamic programmes over the states, O(n²), in 2n − 1 steps: state (i, d) is reached after 2i − d actions, so that all states of one step
    are computed at once. Samples walk forward through one backward pass, with 2n − 1 uniforms each. The projection is the active set over
    argmax calls.

    Args:
        normalization: ``"global"``: ``p(z) ∝ exp⟨θ, z⟩`` over derivations. ``"local"``: a policy, at each state the softmax of the scores
            of those actions that can still complete a derivation, and ``p(z)`` the product over the actions. Its natural parameters are
            the log-probabilities of the policy: the log-partition is 0 wherever a derivation is feasible (−inf elsewhere), with gradient
            0, which are not the marginals, and these have the Jacobian ``Cov(z) ∂η/∂θ``. `project` projects the scores themselves.

    References:
        Kuhlmann, Gómez-Rodríguez & Satta 2011, "Dynamic programming algorithms for transition-based dependency parsers", section 3;
        Dyer et al. 2016, "Recurrent neural network grammars", section 3; Andor et al. 2016, "Globally normalized transition-based neural
        networks", section 2 (local and global normalisation).

    Example:
        >>> oracle, scores = ShiftReduce(), torch.zeros(4, 4, 2)
        >>> scores[2, 2, 1] = 1.0
        >>> ShiftReduce.actions(oracle.argmax(scores))
        tensor([0, 0, 1, 0, 1])
        >>> oracle.count((4, 4, 2))
        2
        >>> for law in (ShiftReduce("global"), ShiftReduce("local")):
        ...     theta = scores.clone().requires_grad_()
        ...     law.log_partition(theta).backward()
        ...     print(f"{law.marginals(scores).sum():.3f} {theta.grad.abs().sum():.3f}")
        5.000 5.000
        5.000 0.000
    """

    normalization: Literal["global", "local"] = "global"

    name: ClassVar[str] = "shift_reduce"
    version: ClassVar[int] = 2
    event_ndim: ClassVar[int] = 3
    layout: ClassVar[str] = "Shift-reduce scores of n leaves are [*batch, n + 1, n + 1, 2]"
    references: ClassVar[tuple[str, ...]] = ("kuhlmann2011dynamic", "dyer2016recurrent", "andor2016globally")
    kernel: ClassVar[str] = "shift_reduce"
    _indices_are_parts: ClassVar[bool] = False

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        (length,) = cls._sizes(sizes, "length")
        return (length + 1, length + 1, 2)

    @classmethod
    def structure(cls, actions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Actions ``[*batch, 2n − 1]`` (0 SHIFT, 1 REDUCE) to structures ``[*batch, n + 1, n + 1, 2]``; the inverse of `actions`.

        Example:
            >>> ShiftReduce.structure(torch.tensor([0, 0, 1]))[:, :, 1]
            tensor([[0., 0., 0.],
                    [0., 0., 0.],
                    [0., 0., 1.]])
        """
        if actions.ndim < 1 or actions.shape[-1] % 2 == 0:
            raise ValueError(f"`structure` got actions of shape {tuple(actions.shape)}; expected [*batch, 2n - 1] for n leaves")
        actions = labels_below("structure", "actions", actions, 2)
        size, moves = (actions.shape[-1] + 3) // 2, 1 - 2 * actions
        shifts, depth = (1 - actions).cumsum(-1) - (1 - actions), moves.cumsum(-1) - moves
        if actions.device.type == "cpu" and not bool(((depth + moves >= 1).all(-1) & ((depth + moves)[..., -1] == 1)).all()):
            raise ValueError(
                "`structure` got actions that are no derivation; expected 0 or 1, from an empty stack to one tree over n leaves"
            )
        flat = torch.zeros((*actions.shape[:-1], 2 * size * size), dtype=dtype or torch.get_default_dtype(), device=actions.device)
        return flat.scatter_(-1, (shifts * size + depth) * 2 + actions, 1.0).reshape(*actions.shape[:-1], size, size, 2)

    @classmethod
    def actions(cls, structure: Tensor) -> Tensor:
        """Actions ``[*batch, 2n − 1]``, 0 SHIFT and 1 REDUCE, of structures ``[*batch, n + 1, n + 1, 2]``.

        Example:
            >>> ShiftReduce.actions(ShiftReduce().enumerate((4, 4, 2)))
            tensor([[0, 0, 0, 1, 1],
                    [0, 0, 1, 0, 1]])
        """
        size = structure.shape[-2]
        step, shifts = torch.arange(2 * size - 3, device=structure.device).unsqueeze(-1), torch.arange(size, device=structure.device)
        depth = 2 * shifts - step
        real = (depth >= 2) & (depth <= shifts)
        reduces = structure[..., REDUCE].flatten(-2)[..., torch.where(real, shifts * size + depth, 0)]
        return torch.where(real, reduces, 0).sum(-1).long()

    @operation(gives="event")
    def step_log_probs(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Log-probability of each action at its state: ``[*batch, n + 1, n + 1, 2]``, ``-inf`` where impossible; differentiable.

        ``p(z)`` is the product of ``exp`` of these over the actions of ``z``, under either normalisation: for ``"local"`` they are the
        policy itself, for ``"global"`` the conditional law of the next action. At a state that no derivation can complete both are -inf.

        Example:
            >>> ShiftReduce("local").step_log_probs(torch.zeros(4, 4, 2)).exp()[2]
            tensor([[0.0000, 0.0000],
                    [1.0000, 0.0000],
                    [0.5000, 0.5000],
                    [0.0000, 0.0000]])
        """
        valid, inside = self._parameters("step_log_probs", scores, lengths, raw=True)
        mask = self.read_mask(self._event(scores), scores.device)
        if self.normalization == "local":
            steps = self.natural_parameters(valid)
        else:
            rows = in_single(self._cleaned(valid), self.event_ndim).reshape(-1, *self._event(scores))
            steps = self._action_log_probs(rows).reshape(scores.shape)
        return torch.where(mask if inside is None else mask & inside, steps, -math.inf).to(scores.dtype)

    def steps(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """``[n + 1, n + 1, 2]``: state (i, d) is reached after 2i − d actions."""
        place = torch.arange(event_shape[0], device=device)
        taken = (2 * place.unsqueeze(-1) - place).unsqueeze(-1)
        return torch.where(self.read_mask(event_shape, device), taken, -1)

    def count(self, event_shape: tuple[int, ...]) -> int:
        leaves = event_shape[0] - 1
        return math.comb(2 * leaves - 2, leaves - 1) // leaves

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        place = torch.arange(event_shape[0], device=device)
        shifts, depth, shifting = place.reshape(-1, 1, 1), place.reshape(-1, 1), torch.arange(2, device=device) == SHIFT
        return (depth <= shifts) & (depth >= (shifts > 0).long()) & torch.where(shifting, shifts < event_shape[0] - 1, depth >= 2)

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (2 * event_shape[0] - 3,)

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return 2

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size, step = event_shape[0], torch.arange(indices.shape[-1], device=indices.device)
        before = (indices == SHIFT).long()
        shifts = before.cumsum(-1) - before
        state = (shifts * size + (2 * shifts - step).clamp(min=0)).clamp(max=size * size - 1)
        # Once there is none, there is none.
        return torch.where((indices < 0).cumsum(-1) > 0, NONE, state * 2 + indices)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size, state = event_shape[0], parts // 2
        most = 2 * size - 3
        return placed(parts % 2, torch.where(parts < 0, most, 2 * (state // size) - state % size), most)

    def _indices_of(self, structures: Tensor) -> Tensor:
        event = tuple(structures.shape[-3:])
        parts = torch.arange(math.prod(event), device=structures.device).expand(*structures.shape[:-3], -1)
        return self._from_parts(torch.where(structures.flatten(-3), parts, NONE), event)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per state: what completes a derivation from there; a level per number of actions before, from the last."""
        size = event_shape[0]
        parts = torch.arange(2 * size * size).reshape(event_shape)
        builder = Builder(parts.numel())
        # One more row and column: no state is there.
        nodes = torch.full((size + 1, size + 1), DEAD)
        nodes[size - 1, 1] = UNIT
        for step in range(2 * size - 4, -1, -1):
            shifts = torch.arange((step + 2) // 2 if step else 0, min(step, size - 1) + 1)
            depth = 2 * shifts - step
            first = torch.stack([nodes[shifts + 1, depth + 1], nodes[shifts, (depth - 1).clamp(min=0)]], 1)
            nodes[shifts, depth] = builder.add(first, parts[shifts, depth])
        return builder.finish(nodes[0, 0])

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[0] != event_shape[1] or event_shape[0] < 2 or event_shape[2] != 2:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + 1, n + 1, 2) for n leaves, n at least 1")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1,)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The parts of the shorter derivation, whose shifts end one state before its reductions do."""
        place, length = torch.arange(event_shape[0], device=lengths.device), lengths.reshape(*lengths.shape, 1, 1, 1)
        shifting = torch.arange(2, device=lengths.device) == SHIFT
        return (place.reshape(-1, 1, 1) + shifting <= length) & (place.reshape(-1, 1) <= length)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """From (l, 1) on by SHIFT, REDUCE, SHIFT, REDUCE, ...: each further leaf is joined at once."""
        place, action = torch.arange(event_shape[0], device=lengths.device), torch.arange(2, device=lengths.device)
        first = (place.reshape(-1, 1, 1) == 0) & (place.reshape(-1, 1) == 0) & (action == SHIFT)  # of an item without leaves
        return first | (place.reshape(-1, 1) == action + 1)  # SHIFT at depth 1, REDUCE at depth 2

    def natural_parameters(self, scores: Tensor) -> Tensor:
        """For ``"local"`` the log-probabilities of the policy, which are natural parameters of log-partition 0."""
        if self.normalization == "global":
            return scores
        result: Tensor = _Policy.apply(in_single(scores, self.event_ndim), self)  # type: ignore[no-untyped-call]
        return result

    def _law_of(self, parameters: Tensor, wanted: Literal["A", "μ", "both"], at: Tensor | None = None) -> Any:
        """For ``"local"`` A is the log-probability of the first SHIFT, which has no alternative: exactly 0, and so is its gradient."""
        alone = wanted == "A" and self.normalization == "local"
        return parameters[..., 0, 0, 0] if alone else super()._law_of(parameters, wanted, at)

    def _law(self, rows: Tensor) -> ExactLaw | None:
        """Log-probabilities of a policy are exact as they are."""
        return super()._law(rows) if self.normalization == "global" else None

    def _policy(self, rows: Tensor) -> tuple[Tensor]:
        """Log-probabilities of the actions of rows [b, *event], -inf where no derivation follows; 0 in ignored entries."""
        mask = self.read_mask(tuple(rows.shape[1:]), rows.device)
        allowed = mask & (rows > -math.inf)
        allowed = self._action_log_probs(torch.where(allowed, 0.0, -math.inf)) > -math.inf
        # The log-probability is that of the difference to the other action: exactly 0 where there is none.
        own = torch.where(allowed, rows, -math.inf)
        policy = torch.where(allowed, logsigmoid(own - own.flip(-1)), -math.inf)
        return (torch.where(mask, policy, 0),)

    def _action_log_probs(self, rows: Tensor) -> Tensor:
        """Log-probabilities of actions given their states, of rows [b, *event]; -inf where no derivation follows. Differentiable."""
        return algorithms.decisions(self._tables_for(rows), rows.flatten(1)).reshape(rows.shape)


class _Policy(torch.autograd.Function):
    """Scores to the log-probabilities of a policy, on distinct rows, with a gradient for every row.

    Its backward is written with the policy itself, so that it is exact to any order, and 0 where only one action is possible.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, oracle: ShiftReduce) -> Tensor:
        ctx.oracle = oracle
        ctx.save_for_backward(scores)
        return oracle._run("potentials", scores, (None,), oracle._policy)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scores,) = ctx.saved_tensors
        policy = _Policy.apply(scores, ctx.oracle)  # type: ignore[no-untyped-call]
        possible = ctx.oracle.read_mask(tuple(scores.shape[-3:]), scores.device) & (policy > -math.inf)
        chance = torch.where(possible, policy, -math.inf).exp()
        rates = torch.where(possible, grads[0], 0)
        return chance.flip(-1) * rates - chance * rates.flip(-1), None
