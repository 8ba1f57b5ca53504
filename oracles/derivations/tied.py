"""Structures with scores that many places share."""

import abc

import torch
from torch import Tensor

from ..capabilities.derivatives import unsqueeze_event
from .oracle import DerivedOracle


class TiedOracle(DerivedOracle):
    """An oracle with scores that all places share.

    The first lines of its event are those of places, with 0/1 parts. The lines behind them are shared: structures count how often they use
    each entry. Indices have one number for each line of places, and so have lengths, where not overridden.
    """

    @abc.abstractmethod
    def _place_lines(self, event_shape: tuple[int, ...]) -> int:
        """The number of lines of places."""

    def binary_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        of_places = torch.arange(event_shape[0], device=device) < self._place_lines(event_shape)
        return unsqueeze_event(of_places, len(event_shape) - 1).expand(event_shape)

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self._place_lines(event_shape),)

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self._place_lines(event_shape),)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The lines of places of an item, and the shared lines, which come behind the padding."""
        line = torch.arange(event_shape[0], device=lengths.device)
        return unsqueeze_event((line < lengths.unsqueeze(-1)) | (line >= self._place_lines(event_shape)), len(event_shape) - 1)

    def _parts_inside(self, event_shape: tuple[int, ...], inside: Tensor) -> Tensor:
        """Shared parts join neighbours: an item of one place has none of them."""
        joins = inside.narrow(-len(event_shape), 1, 1)
        return inside & (self.binary_mask(event_shape, inside.device) | joins) & self.read_mask(event_shape, inside.device)
