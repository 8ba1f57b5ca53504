"""Exact samples."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor

from .. import kernels
from ..numerics import share_rows
from ..random_streams import check_generator, random_uniform
from ..transforms import operation
from .base import at_least_single, in_dtype
from .marginals import MarginalOracle


class SamplingOracle(MarginalOracle):
    """An oracle that draws exact samples of its Gibbs distribution."""

    @abc.abstractmethod
    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [s, b, *event] from rows [b, *event] and float64 uniforms [s, b, `_noise_size`]; 0 for an infeasible row."""

    @abc.abstractmethod
    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        """How many uniforms one sample takes."""

    @operation(leading="num_samples")
    def sample(
        self,
        scores: Tensor,
        num_samples: int | None = None,
        *,
        generator: torch.Generator,
        lengths: Tensor | None = None,
        as_indices: bool = False,
    ) -> Tensor:
        """Exact samples: ``[*batch, *event]``, or ``[num_samples, *batch, *event]``; not differentiable (see `log_prob`).

        Uniforms are drawn in float64 whatever the scores' dtype: float32 uniforms would make rare structures impossible.
        An infeasible item gives the zero tensor.

        With ``as_indices`` the same samples in compact form, int64 ``[*batch, *index]`` or ``[num_samples, *batch, *index]``, all -1 for an
        infeasible item (see `indices`). Where a kernel writes these, no dense structure is made: of a long chain that is most of the time.

        Example:
            >>> from structgrad.oracles import LinearChain
            >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]))
            >>> LinearChain().sample(scores, 2, generator=torch.Generator().manual_seed(0), as_indices=True)
            tensor([[1, 0, 0],
                    [1, 0, 0]])
        """
        check_generator("sample", generator)
        if num_samples is not None and not (isinstance(num_samples, int) and num_samples >= 1):
            raise ValueError(f"`sample` got num_samples={num_samples}; expected at least 1, or None for one sample without that dimension")
        valid, inside = self._prepared("sample", scores, lengths)
        self.check_marginals("sample", self._event(scores))
        valid, event = kernels.plain(valid), self._event(valid)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])
        leading = 1 if num_samples is None else num_samples
        uniforms = random_uniform(batch, (leading, self._noise_size(event)), generator=generator, device=scores.device)
        plain = len(batch) == 1 and (batch[0] == 1 or valid.stride(0) != 0)  # rows as they are, whose samples need no order
        structures = (self._drawn_plain if plain else self._drawn)(valid, uniforms, as_indices)
        structures = structures if as_indices else in_dtype(structures, scores.dtype)
        structures = structures[0] if num_samples is None else structures
        return self._cut_indices(structures, inside, event) if as_indices else self._cut(structures, inside)

    def _drawn_plain(self, valid: Tensor, uniforms: Tensor, as_indices: bool) -> Tensor:
        """`_drawn` for one batch dimension that shares nothing."""
        drawn = (self._draw_indices if as_indices else self._draw)(self.natural_parameters(at_least_single(valid)), uniforms)
        return drawn.transpose(0, 1)

    def _drawn(self, valid: Tensor, uniforms: Tensor, as_indices: bool) -> Tensor:
        """Structures ``[s, *batch, *event]``, or their indices, by uniforms ``[*batch, s, noise]``."""
        event = self._event(valid)
        batch = valid.shape[: valid.ndim - self.event_ndim]
        # Expanded dimensions join the samples, so that tables are built once per distinct row.
        expanded = [dim for dim, size in enumerate(batch) if size > 1 and valid.stride(dim) == 0]
        distinct = [dim for dim in range(len(batch)) if dim not in expanded]
        order = [*distinct, len(batch), *expanded]
        rows = at_least_single(share_rows(valid, self.event_ndim).reshape(-1, *event))
        shuffled = uniforms.permute(*order, len(batch) + 1)
        repeats = math.prod(shuffled.shape[len(distinct) : -1])
        draw, shape = (self._draw_indices, self.index_shape(event)) if as_indices else (self._draw, event)
        drawn = draw(self.natural_parameters(rows), shuffled.reshape(rows.shape[0], repeats, shuffled.shape[-1]))
        drawn = drawn.reshape(*shuffled.shape[:-1], *shape)
        back = [order.index(dim) for dim in [len(batch), *range(len(batch))]]
        return drawn.permute(*back, *range(len(back), len(back) + len(shape)))

    def _draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [b, s, *event] from rows [b, *event] and uniforms [b, s, noise]: compiled where that applies."""

        def reference(rows: Tensor, uniforms: Tensor) -> tuple[Tensor]:
            return (self._reference_draw(rows, uniforms),)

        kernel = self._kernel("sample", rows)
        if kernel is None:
            return self._reference_draw(rows, uniforms)
        rooms = (((*uniforms.shape[:2], *rows.shape[1:]), rows.dtype),)
        return kernel.computed((rows.contiguous(), uniforms.contiguous()), rooms, reference)[0]

    def _draw_indices(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Indices [b, s, *index] of the samples that `_draw` gives."""

        def reference(rows: Tensor, uniforms: Tensor) -> tuple[Tensor]:
            return (self._numbered(self._of_dense(self._reference_draw(rows, uniforms)), tuple(rows.shape[1:])),)

        parts = self._kernel_parts("sample_parts", (rows.contiguous(), uniforms.contiguous()), tuple(uniforms.shape[:2]), reference)
        return self._of_dense(self._draw(rows, uniforms)) if parts is None else self._from_parts(parts, tuple(rows.shape[1:]))

    def _reference_draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        return self._sample(self._cleaned(rows), uniforms.transpose(0, 1)).transpose(0, 1)
