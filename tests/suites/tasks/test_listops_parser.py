"""The parser of ListOps: derivations, and every way to learn a policy."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import ShiftReduce
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language.listops import gold
from structgrad.suites.tasks.language.listops_parser import ListOpsParser
from structgrad.suites.tasks.training import train

TINY = ListOpsParser(shortest=7, longest=8, train=60, heldout=20, generated=True, dimension=8, hidden=8, steps=2, batch_size=8)

WAYS = (
    "reinforce",
    "reinforce_constant",
    "reinforce_running_mean",
    "reinforce_greedy",
    "reinforce_sampled",
    "reinforce_optimal",
    "reinforce_learned",
    "reinforce_conditional_mean",
    "reinforce_normalised",
    "reinforce_ppo[inner_steps=15]",
    "rloo[num_samples=4]",
    "step_reinforce",
    "step_greedy",
    "step_sampled",
    "step_conditional_mean",
    "step_optimal",
    "step_learned",
    "step_leave_one_out",
    "step_ppo[inner_steps=15]",
    "step_ste",
    "step_st_gumbel",
)


def test_by_name() -> None:
    assert make_task("listops_parser") == ListOpsParser()


def test_true_derivations_are_structures_and_judged_right() -> None:
    batch, model = TINY.batch("train", torch.arange(8)), TINY.model(0)
    scores = TINY.scores(model, batch)
    assert scores.shape == (8, 9, 9, 2)
    assert bool(TINY.oracle.log_prob(gold(batch), scores).isfinite().all())
    assert TINY.judge(model, batch, gold(batch))["structure_accuracy"].tolist() == [1] * 8


def test_the_actions_of_a_line() -> None:
    """After an operator SHIFT, after an argument REDUCE, after the end of a list that is an argument REDUCE twice."""
    batch = TINY.batch("train", torch.arange(60))
    assert batch.lengths is not None
    derivations = ShiftReduce.actions(gold(batch))
    for tokens, length, actions in zip(batch.inputs[0].tolist(), batch.lengths.tolist(), derivations.tolist(), strict=True):
        expected: list[int] = []
        open_ = 0
        for token in tokens[:length]:
            expected.append(0)
            if token < 6:
                open_ += 1
            else:
                expected.append(1)
            if token == 16:
                open_ -= 1
                expected.extend([1] * (open_ > 0))
        assert actions[: 2 * length - 1] == expected


@pytest.mark.parametrize("name", WAYS)
def test_every_way_trains_it(name: str) -> None:
    before, after = TINY.model(0), train(TINY, make_estimator(name), rate=0.01, seed=0)
    for part in ("encoder", "decoder"):
        pairs = zip(getattr(before, part).parameters(), getattr(after, part).parameters(), strict=True)
        assert any(not torch.equal(one, other) for one, other in pairs), part
    assert all(bool(parameter.isfinite().all()) for parameter in after.parameters())
