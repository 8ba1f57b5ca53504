"""Monotone labellings of frames with blanks."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, Examples
from ..tensor_kinds import inside_lengths, labels_below


@dataclass(frozen=True)
class CTC(DerivedOracle):
    """Which frame says what of a known text: event ``[n, 2l + 1, 3]``.

    ``scores[..., i, s, m]`` scores frame i in state s after move m. The states of l labels are blank, label, blank, …, label, blank. Move 0
    stays, 1 goes to the next state, 2 from one label to the next past the blank between them. A path begins in one of the first two states,
    with move 0, and ends in one of the last two. Entries of no path are ignored; lengths are those of frames and labels. Ties go to the
    last label, and to the least move from the end. O(n l).

    References:
        Graves et al. 2006, "Connectionist temporal classification", section 4.1.

    Example:
        >>> log_probs = torch.tensor([[0.6, 0.4], [0.1, 0.9], [0.8, 0.2]]).log()
        >>> scores = CTC.from_log_probs(log_probs, torch.tensor([1]))
        >>> CTC.states(CTC().argmax(scores)), round(float(CTC().log_partition(scores).exp()), 3)
        (tensor([0, 1, 2]), 0.944)
    """

    name: ClassVar[str] = "ctc"
    event_ndim: ClassVar[int] = 3
    layout: ClassVar[str] = "Scores of n frames and l labels are [*batch, n, 2l + 1, 3]"
    size_names: ClassVar[tuple[str, ...]] = ("frames", "labels")
    references: ClassVar[tuple[str, ...]] = ("graves2006connectionist",)
    examples: ClassVar[Examples] = Examples(small=((7, 2), (8, 2), (9, 3)), usual=(64, 16), like="alignment", counted="frames and labels")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        frames, labels = cls._sizes(sizes, *cls.size_names)
        return (frames, 2 * labels + 1, 3)

    @classmethod
    def from_log_probs(cls, log_probs: Tensor, targets: Tensor, blank: int = 0, lengths: Tensor | None = None) -> Tensor:
        """Scores from log-probabilities ``[*batch, n, v]`` of symbols and labels ``[*batch, l]``; no path skips between equal labels.

        Labels beyond ``lengths``, int ``[*batch, 2]`` of frames and labels as operations take them, may be any padding, such as -100.
        """
        inside = inside_lengths("from_log_probs", None if lengths is None else lengths[..., 1], targets.shape[-1])
        targets = labels_below("from_log_probs", "targets", targets, log_probs.shape[-1], inside)
        spelt = pad(torch.stack([torch.full_like(targets, blank), targets], -1).flatten(-2), (0, 1), value=blank)
        said = log_probs.gather(-1, spelt.unsqueeze(-2).expand(*log_probs.shape[:-1], -1)).unsqueeze(-1)
        repeats = pad(spelt[..., 2:] == spelt[..., :-2], (2, 0)).unsqueeze(-2).unsqueeze(-1)
        return torch.where(repeats & (torch.arange(3, device=said.device) == 2), -math.inf, said)

    @classmethod
    def states(cls, structure: Tensor) -> Tensor:
        """States ``[*batch, n]`` of structures ``[*batch, n, 2l + 1, 3]``; those of labels are odd."""
        return structure.sum(-1).argmax(-1)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per frame and state."""
        frames, states, _ = event_shape
        parts, builder = torch.arange(frames * states * 3).reshape(event_shape), Builder(frames * states * 3)
        state = torch.arange(states)
        nodes = builder.add(torch.where(state < 2, UNIT, DEAD).unsqueeze(1), parts[0, :, :1])
        for i in range(1, frames):
            before = pad(nodes, (2, 0), value=DEAD)
            skipped = torch.where(state % 2 == 1, before[:-2], DEAD)
            nodes = builder.add(torch.stack([nodes, before[1:-1], skipped], 1), parts[i])
        return builder.finish(builder.add(nodes[-2:].unsqueeze(0)))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[1] % 2 == 0 or not 3 <= event_shape[1] <= 2 * event_shape[0] + 1 or event_shape[2] != 3:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, 2l + 1, 3) for l labels in n frames, l from 1 to n")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0], event_shape[1] // 2)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """From where the end is in reach: from a label two states a frame, from a blank one less at first."""
        frames, labels = (length.reshape(*length.shape, 1, 1, 1) for length in lengths.unbind(-1))
        frame, state, _ = (torch.arange(size, device=lengths.device) for size in event_shape)
        after, state = frames - 1 - frame.reshape(-1, 1, 1), state.reshape(-1, 1)
        return (after >= 0) & (state <= 2 * labels) & (state + 2 * after + state % 2 >= 2 * labels)

    def _parts_inside(self, event_shape: tuple[int, ...], inside: Tensor) -> Tensor:
        """The end of the whole event may be out of reach; with frames enough it is not."""
        frames, states, _ = event_shape
        return inside & self.read_mask((frames + states, states, 3), inside.device)[:frames]

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """On from label to label, one a frame, and in the last one to the end; `l` frames more are enough for that."""
        grown = pad(scores, (0, 0, 0, 0, 0, scores.shape[-2] // 2))
        frames, labels = (length.reshape(*length.shape, 1, 1, 1) for length in lengths.unbind(-1))
        frame, state, move = (torch.arange(size, device=scores.device) for size in grown.shape[-3:])
        beyond, state, last = frame.reshape(-1, 1, 1) - frames, state.reshape(-1, 1), grown.shape[-2] - 2
        here, before = ((2 * labels + 2 * beyond + shift).clamp(max=last) for shift in (1, -1))
        onward = torch.where(frame.reshape(-1, 1, 1) == 0, move == 0, (move == 2) | ((move == 1) & (beyond == 0)))
        goes = torch.where(here > before, onward, move == 0) & (state == here)
        free = (beyond >= 0) & (goes | ((2 * labels > last) & (state > last) & (move == 0)))
        completion = torch.zeros_like(grown).masked_fill(~free, -math.inf)
        return torch.where((beyond < 0) & (state <= 2 * labels), grown, completion)
