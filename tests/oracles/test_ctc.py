"""The log-partition of CTC is torch's loss, with repeated labels and items of several lengths."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import ctc_loss

from structgrad.oracles import CTC
from tests.helpers import seeded

FRAMES, LABELS = torch.tensor([9, 8, 7, 5]), torch.tensor([4, 3, 2, 1])


@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("symbols", [2, 6])
def test_is_the_loss_of_torch(scale: float, symbols: int) -> None:
    """With two symbols every label repeats the one before."""
    log_probs = (scale * torch.randn(4, 9, symbols, generator=seeded(), dtype=torch.float64)).log_softmax(-1).requires_grad_()
    targets = torch.randint(1, symbols, (4, 4), generator=seeded(1))
    scores = CTC.from_log_probs(log_probs, targets)
    for frames, labels in ((torch.full((4,), 9), torch.full((4,), 4)), (FRAMES, LABELS)):
        found = -CTC().log_partition(scores, lengths=torch.stack([frames, labels], -1))
        expected = ctc_loss(log_probs.transpose(0, 1), targets, frames, labels, reduction="none")
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_states_spell_the_labels() -> None:
    scores = CTC.from_log_probs(torch.randn(5, 8, 4, generator=seeded()), torch.tensor([1, 1, 3]).expand(5, 3))
    for states in CTC.states(CTC().argmax(scores)):
        kept = [int(state) for state, before in zip(states, [-1, *states.tolist()], strict=False) if state != before and state % 2]
        assert kept == [1, 3, 5]
        # Between equal labels there is a blank.
        assert 2 in states
