"""Tensors of every kind get the right answer or one sentence: sparse, nested, without numbers, made for inference, of odd integers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, SUPERVISED_LOSSES, make_estimator
from structgrad.oracles import CTC, EditAlignment, LinearChain, ProjectiveTree, ShiftReduce, SpanningTree, Subset, TiedChain
from tests.estimator_cases import numbers
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, seeded, structures
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, operations_of
from tests.training_cases import estimator_of, first_space

law = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
INTEGERS = (torch.int8, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def kinds_of(values: Tensor) -> Iterator[Tensor]:
    """Tensors of two rows that are no plain ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield values.to_sparse()
        if values.ndim == 2:
            yield values.to_sparse_csr()
        yield torch.nested.nested_tensor([*values])
        yield torch.nested.nested_tensor([*values], layout=torch.jagged)
    yield values.to("meta")
    with torch.inference_mode():
        yield values.clone()


def answered_or_refused(what: str, call: Callable[[Any], Any], values: Tensor, expected: Tensor) -> None:
    """Others without numbers, the numbers that are expected, or one sentence."""
    for kind in kinds_of(values):
        refusal, found = None, None
        try:
            found = call(kind)
        except ValueError as error:
            refusal = str(error)
        if refusal is None:
            assert found.is_meta or torch.equal(found, expected), (what, kind)
        else:
            named = any(word in refusal for word in ("nested", "layout torch.", "meta", "torch.inference_mode"))
            assert " got " in refusal and "\n" not in refusal and named, (what, refusal)  # noqa: PT018


@law
def test_operations_of_scores_and_structures(case: OracleCase) -> None:
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=2)
    for operation in operations_of(oracle, [name for name in OPERATIONS if name not in ("kl", "kbest")]):
        call = lambda given, operation=operation: OPERATIONS[operation](oracle, given)  # noqa: E731
        answered_or_refused(operation, call, scores, call(scores))
    if hasattr(oracle, "kl"):
        answered_or_refused("kl", lambda given: oracle.kl(given, scores), scores, oracle.kl(scores, scores))
        answered_or_refused("kl", lambda given: oracle.kl(scores, given), scores, oracle.kl(scores, scores))
    if hasattr(oracle, "kbest"):
        answered_or_refused("kbest", lambda given: oracle.kbest(given, 1), scores, oracle.kbest(scores, 1))
    best = oracle.argmax(scores)
    for operation in ("score", "log_prob"):
        if hasattr(oracle, operation):
            of_structures = lambda z, operation=operation: getattr(oracle, operation)(z, scores)  # noqa: E731
            answered_or_refused(operation, of_structures, best, of_structures(best))
    for operation in ("rank", "indices"):
        answered_or_refused(operation, getattr(oracle, operation), best, getattr(oracle, operation)(best))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name: str) -> None:
    estimator: Any = estimator_of(name)
    oracle, event = first_space(estimator)
    scores = numbers(2, *event)

    def loss(z: Tensor) -> Tensor:
        return (0.3 * z).flatten(z.ndim - len(event)).sum(-1).square()

    for method in (estimator.gradient, estimator.surrogate):
        call = functools.partial(method, loss, oracle, generator=seeded())
        for kind in (scores, scores.float()):
            answered_or_refused(name, lambda given: call(given, generator=seeded()), kind, call(kind, generator=seeded()))  # noqa: B023
    with torch.inference_mode(), pytest.raises(ValueError, match=f"^`{name}` got its surrogate called under torch.inference_mode"):
        estimator.gradient(loss, oracle, scores, generator=seeded())

    def on_the_cpu() -> Tensor:
        found: Tensor = estimator.prepared(oracle, event, seeded()).gradient(loss, oracle, scores, generator=seeded())
        return found

    with torch.device("meta"):
        found = on_the_cpu()
    assert torch.equal(found, on_the_cpu())


@pytest.mark.parametrize("name", ["ste", "imle", "sparsemap"])
def test_the_call_that_was_made_is_named(name: str) -> None:
    call = lambda scores: make_estimator(name).gradient(lambda z: z.sum((-2, -1)), SpanningTree(), scores, generator=seeded())  # noqa: E731
    with pytest.raises(ValueError, match=f"^`{name}` got scores on the device meta, or under FakeTensorMode, without numbers; expected"):
        call(torch.zeros(2, 4, 4, device="meta"))
    with pytest.raises(ValueError, match=f"^`{name}` got a tensor of dtype torch.float32 and layout torch.sparse_coo as scores; expected"):
        call(torch.zeros(2, 4, 4).to_sparse())


def test_tensors_on_two_devices() -> None:
    with pytest.raises(ValueError, match=r"^`score` got z on the device meta"):
        Subset(2).score(torch.zeros(4, device="meta"), torch.zeros(4))


@law
def test_parts_are_free_in_scores_alone(case: OracleCase) -> None:
    with pytest.raises(ValueError, match=r"`free_parts` got scores of shape \(\); expected \[\*batch, \*event\] with"):
        case.oracle.free_parts(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"`free_parts` got event shape \(0,.*\); expected at least one part"):
        case.oracle.free_parts(torch.zeros(0, *case.event[1:]))
    with pytest.raises(ValueError, match=r"`free_parts` got scores of dtype torch.int64; expected a floating-point"):
        case.oracle.free_parts(torch.zeros(case.event, dtype=torch.int64))


@law
def test_another_default_device_changes_nothing(case: OracleCase) -> None:
    """The device meta, on which nothing can be read, stands for a GPU."""
    event, scores = case.event, make_scores(case, 1.0, rows=2)

    def results() -> Iterator[Tensor]:
        oracle = case.oracle
        for operation in operations_of(oracle, [name for name in OPERATIONS if name != "kbest"]):
            leaf = scores.clone().requires_grad_(operation in DIFFERENTIABLE)
            result = OPERATIONS[operation](oracle, leaf, **({"generator": seeded()} if operation in RANDOM else {}))
            yield result.detach()
            if result.requires_grad:
                yield torch.autograd.grad(result.sum(), leaf)[0]
        listed = oracle.enumerate(event, device="cpu")
        yield from (listed, oracle.rank(listed), oracle.argmax(scores, as_indices=True))

    with torch.device("meta"):
        found = [*results()]
    expected = [*results()]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.device == other.device
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", INTEGERS)
@law
def test_structures_of_every_integer_dtype(case: OracleCase, dtype: torch.dtype) -> None:
    oracle, scores, gold = case.oracle, make_scores(case, 1.0, rows=2), structures(case)[:2].expand(2, *case.event)
    odd = gold.to(dtype)
    for operation in ("score", "log_prob"):
        if hasattr(oracle, operation):
            assert torch.equal(getattr(oracle, operation)(odd, scores), getattr(oracle, operation)(gold, scores)), operation
    for operation in ("rank", "indices"):
        assert torch.equal(getattr(oracle, operation)(odd), getattr(oracle, operation)(gold)), operation
    indices = oracle.indices(gold)
    if int(indices.min()) >= 0:
        assert torch.equal(oracle.score(indices.to(dtype), scores, as_indices=True), oracle.score(indices, scores, as_indices=True))
        assert torch.equal(oracle.dense(indices.to(dtype), case.event), oracle.dense(indices, case.event))
    for name, loss in SUPERVISED_LOSSES.items():
        named = {"generator": seeded()} if name.startswith("perturbed") else {}
        again = {"generator": seeded()} if name.startswith("perturbed") else {}
        try:
            expected = loss(oracle, scores, gold, **named)
        except ValueError:  # another pair
            continue
        torch.testing.assert_close(loss(oracle, scores, odd, **again), expected, msg=name)


# Labels.

LABELLED: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "tags": lambda labels, lengths: LinearChain.structure(labels, 3, lengths=lengths),
    "tags of a tied chain": lambda labels, lengths: TiedChain.structure(labels, 3, lengths=lengths),
    "heads": lambda labels, lengths: ProjectiveTree.structure(labels, lengths=lengths),
    "targets": lambda labels, lengths: CTC.from_log_probs(
        numbers(len(labels), 4, 3), labels, lengths=None if lengths is None else torch.stack([lengths + 1, lengths], -1)
    ),
    "strings": lambda labels, lengths: EditAlignment.from_symbols(
        (labels, labels), numbers(3, 3), numbers(3), numbers(3), lengths=None if lengths is None else torch.stack([lengths, lengths], -1)
    ),
}


@pytest.mark.parametrize("what", LABELLED)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_labels_of_every_integer_dtype_and_their_padding(what: str, dtype: torch.dtype) -> None:
    call, labels, lengths = LABELLED[what], torch.tensor([[2, 0, 1], [0, 2, 0]]), torch.tensor([3, 2])
    torch.testing.assert_close(call(labels.to(dtype), None), call(labels, None), rtol=0, atol=0)
    padded = labels.clone()
    padded[1, 2] = -100
    if dtype.is_signed:
        assert torch.equal(call(padded.to(dtype), lengths.to(dtype)), call(labels, lengths))
        with pytest.raises(ValueError, match=r"got \w+ from -100 to 2; expected 0 to \d, and lengths= for items whose padding is -100$"):
            call(padded.to(dtype), None)
    with pytest.raises(ValueError, match=r"got \w+ from \d to 7; expected 0 to \d$"):
        call((labels.clone() + 5).to(dtype), None)


@pytest.mark.parametrize("what", LABELLED)
def test_labels_that_are_no_integers(what: str) -> None:
    for labels in (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.int64).to_sparse()):
        with pytest.raises(ValueError, match=r"^`\w+` got \w+ of torch.*; expected a dense tensor of integers from 0 to"):
            LABELLED[what](labels, None)


def test_a_structure_of_tags_within_lengths_is_that_of_the_operations() -> None:
    lengths, scores = torch.tensor([3, 1]), numbers(2, 3, 2, 2)
    best = LinearChain().argmax(scores, lengths=lengths)
    tags = torch.where(torch.arange(3) < lengths.unsqueeze(-1), LinearChain.tags(best), -100)
    assert torch.equal(LinearChain.structure(tags, 2, best.dtype, lengths), best)
    heads = torch.tensor([[0, 1, 2], [0, 1, -100]])
    assert not ProjectiveTree.structure(heads, lengths=torch.tensor([3, 2]))[1, :, 3].any()


def test_actions_are_no_padding() -> None:
    with pytest.raises(ValueError, match="got actions from -100 to 1; expected 0 to 1"):
        ShiftReduce.structure(torch.tensor([0, 0, 1, -100, -100]))
    assert torch.equal(ShiftReduce.structure(torch.tensor([0, 0, 1], dtype=torch.uint16)), ShiftReduce.structure(torch.tensor([0, 0, 1])))
