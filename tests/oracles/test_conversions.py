"""Structures from labels and back, and scores from the factors of models: by the definition, with gradients that reach every factor."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from structgrad.oracles import (
    CTC,
    Alignment,
    CardinalitySubset,
    EditAlignment,
    Grammar,
    LabelledConstituency,
    LinearChain,
    SemiMarkov,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    TiedSemiMarkov,
)
from tests.helpers import seeded

LENGTH, TAGS = 4, 3

both = pytest.mark.parametrize("chain", [LinearChain, TiedChain])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(sum(shape)), dtype=torch.float64)


# Labels.


@pytest.mark.parametrize(
    ("oracle", "event", "labels"),
    [
        *((chain(), chain.event_shape(length=LENGTH, tags=TAGS), "tags") for chain in (LinearChain, TiedChain)),
        (SpanningTree(), (4, 4), "heads"),
        *((ShiftReduce(), (leaves + 1, leaves + 1, 2), "actions") for leaves in (1, 2, 5)),
    ],
    ids=str,
)
def test_labels_and_structures_are_inverse(oracle: Any, event: tuple[int, ...], labels: str) -> None:
    every = oracle.enumerate(event)
    read, more = getattr(oracle, labels), (TAGS,) if labels == "tags" else ()
    found = read(every)
    assert torch.equal(oracle.structure(found, *more), every)
    assert oracle.structure(found, *more).dtype == torch.get_default_dtype()
    assert torch.equal(read(oracle.structure(found, *more, dtype=torch.bool)), found)
    pairs = torch.stack([every, every.flip(0)])
    assert torch.equal(oracle.structure(read(pairs), *more), pairs)
    for structure, each in zip(every, found.tolist(), strict=True):
        parts = structure.nonzero().tolist()
        if labels == "heads":
            assert sorted(parts) == sorted([head, word] for word, head in enumerate(each, 1))
        if labels == "actions":
            shifts = [each[:step].count(0) for step in range(len(each))]
            assert parts == sorted([shifts[step], 2 * shifts[step] - step, action] for step, action in enumerate(each))
    if isinstance(oracle, TiedChain):
        edges = LinearChain().enumerate((LENGTH, TAGS, TAGS))
        assert torch.equal(every, torch.cat([edges.sum(-2), edges[:, 1:].sum(1)], 1))


@both
def test_tags_of_shorter_items(chain: type[Any]) -> None:
    tags, lengths = torch.randint(TAGS, (5, LENGTH), generator=seeded()), torch.tensor([4, 1, 2, 3, 1])
    for ragged, row, length in zip(chain.structure(tags, TAGS, lengths=lengths), tags, lengths.tolist(), strict=True):
        assert torch.equal(torch.cat([ragged[:length], ragged[LENGTH:]]), chain.structure(row[:length], TAGS))
        assert not ragged[length:LENGTH].any()


# Factors.


@both
@pytest.mark.parametrize("lengths", [None, torch.tensor([LENGTH, 2])], ids=["whole", "ragged"])
@pytest.mark.parametrize("shared", [True, False])
def test_potentials_score_every_sequence(chain: type[Any], lengths: Tensor | None, shared: bool) -> None:
    """The end of a shorter item is where it ends. Each factor but the first may be left out."""
    batch = () if shared else (2,)
    unary, *others = (normal(2, LENGTH, TAGS), normal(*batch, TAGS, TAGS), normal(*batch, TAGS), normal(*batch, TAGS) + 1)
    leaves = [value.requires_grad_() for value in (unary, *others)]
    for given in (leaves, [unary]):
        found = chain().log_partition(chain.from_potentials(*given, lengths=lengths), lengths=lengths)
        expected = []
        for item, length in enumerate([LENGTH, LENGTH] if lengths is None else lengths.tolist()):
            values = [value.expand(2, *value.shape[-dims:])[item] for value, dims in zip(given[1:], (2, 1, 1), strict=False)]
            transition, start, end = values or (torch.zeros(TAGS, TAGS), torch.zeros(TAGS), torch.zeros(TAGS))
            totals = []
            for tags in itertools.product(range(TAGS), repeat=length):
                total = start[tags[0]] + end[tags[-1]] + torch.stack([unary[item, i, tag] for i, tag in enumerate(tags)]).sum()
                totals.append(total + sum(transition[pair] for pair in itertools.pairwise(tags)))
            expected.append(torch.stack(totals).logsumexp(0))
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=1e-12)
        gradients = (torch.autograd.grad(value.sum(), given) for value in (found, torch.stack(expected)))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@both
def test_forbidden_potentials_give_no_nan(chain: type[Any]) -> None:
    leaves = [value.requires_grad_() for value in (normal(2, LENGTH, TAGS), normal(TAGS, TAGS), normal(TAGS), normal(TAGS))]
    masked = leaves[1].masked_fill(torch.eye(TAGS, dtype=torch.bool), -math.inf)
    scores = chain.from_potentials(leaves[0], masked, *leaves[2:])
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(chain().entropy(scores).sum(), leaves))
    tags = chain.tags(chain().argmax(scores))
    assert bool((tags[:, 1:] != tags[:, :-1]).all())
    assert chain is TiedChain or not scores[:, 0, 1:].any(), "ignored entries are 0"


def test_an_item_of_one_place_reads_no_transition() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.5, 0.0], [math.nan, 0.0], [0.0, 0.0]])
    assert TiedChain().argmax(scores[[0, 2, 3]]).tolist() == [[0, 1], [0, 0], [0, 0]]
    clean = scores.nan_to_num(3.0)
    short = TiedChain().marginals(clean, lengths=torch.tensor(1))
    torch.testing.assert_close(short[[0, 2, 3]], TiedChain().marginals(clean[[0, 2, 3]]))
    assert not short[1:].any()


def test_many_places_use_a_transition_more_often_than_a_byte_counts() -> None:
    for structure in (TiedChain().argmax(torch.zeros(301, 1)), TiedChain().enumerate((301, 1))[0]):
        assert structure[300].item() == 299


def test_scores_of_costs() -> None:
    costs = torch.tensor([[0.0, 2.0], [math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    scores = Alignment.from_costs(costs, 0.5)
    assert scores.tolist() == [[0.0, -4.0], [-math.inf, -2.0]]
    value = -0.5 * Alignment().log_partition(scores)
    assert value.item() == pytest.approx(-0.5 * math.log(math.exp(-2.0) + math.exp(-6.0)))
    (expected,) = torch.autograd.grad(value, costs)
    torch.testing.assert_close(expected, Alignment().marginals(scores.detach()), rtol=1e-12, atol=1e-12)


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


SEGMENTED = TiedSemiMarkov()
SIZES = ((1, 1, 1), (3, 2, 3), (4, 3, 2), (2, 5, 2))
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def drawn(size: tuple[int, int, int], scale: float = 1.0, batch: int = 3) -> dict[str, Tensor]:
    """Factors of a model; transitions, lengths and the last label's scores are shared."""
    length, width, tags = size
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "unary": normal(batch, length, tags),
        "length": normal(width, tags),
        "transition": normal(tags, tags),
        "start": normal(batch, tags),
        "end": normal(tags),
    }


def score_of(segments: list[tuple[int, int, int]], item: int, factors: dict[str, Tensor]) -> Tensor:
    """The score by its definition."""
    total = factors["start"][item, segments[0][2]] + factors["end"][segments[-1][2]]
    for first, last, label in segments:
        total = total + factors["unary"][item, first : last + 1, label].sum() + factors["length"][last - first, label]
    for (_, _, before), (_, _, label) in itertools.pairwise(segments):
        total = total + factors["transition"][before, label]
    return total


def test_gradients_reach_every_factor_also_with_lengths_and_forbidden_labels() -> None:
    factors, lengths = drawn((4, 2, 3)), torch.tensor([4, 1, 3])
    factors["unary"][0, 1, 2] = factors["transition"][0, 0] = -math.inf
    leaves = {name: factor.requires_grad_() for name, factor in factors.items()}
    scores = TiedSemiMarkov.from_potentials(**leaves, lengths=lengths)
    found = torch.autograd.grad(SEGMENTED.log_partition(scores, lengths=lengths).sum(), tuple(leaves.values()))
    totals = []
    for item, length in enumerate(lengths.tolist()):
        structures = SEGMENTED.enumerate(SEGMENTED.event_shape(length=length, width=2, tags=3))
        totals.append(torch.stack([score_of(SEGMENTED.segments(z), item, leaves) for z in structures]).logsumexp(0))
    expected = torch.autograd.grad(torch.stack(totals).sum(), tuple(leaves.values()))
    for name, one, other in zip(leaves, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@each_size
def test_it_is_the_chain_of_segments_by_pairs_of_labels(size: tuple[int, int, int]) -> None:
    """Order, best structures and their order among ties, and laws, of `SemiMarkov` with sums."""
    factors, (length, width, tags) = {name: factor.round() for name, factor in drawn(size).items()}, size
    scores = TiedSemiMarkov.from_potentials(**factors)
    token, longer = torch.arange(length).reshape(-1, 1, 1, 1), torch.arange(width).reshape(-1, 1, 1)
    pairs = scores[:, :length].unsqueeze(-2) + torch.where(token == longer, 0, factors["transition"])
    edges = SemiMarkov()
    ours, theirs = (oracle.kbest(found, 3 if length > 1 else 1) for oracle, found in ((SEGMENTED, scores), (edges, pairs)))
    for one, other in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True):
        assert SEGMENTED.segments(one) == SemiMarkov.segments(other)
    event = tuple(scores.shape[1:])
    everything = [SemiMarkov.segments(z) for z in edges.enumerate((length, width, tags, tags))]
    assert [SEGMENTED.segments(z) for z in SEGMENTED.enumerate(event)] == everything
    assert all(torch.equal(SEGMENTED.structure(SEGMENTED.segments(z), event), z) for z in SEGMENTED.enumerate(event))
    torch.testing.assert_close(SEGMENTED.entropy(scores), edges.entropy(pairs), rtol=1e-12, atol=1e-12)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("lengths", [None, torch.tensor([[2, 3], [1, 2]])], ids=["whole", "lengths"])
def test_edits_have_the_scores_and_gradients_of_their_symbols(lengths: Tensor | None) -> None:
    substitution, deletion, insertion, opening = leaf(3, 4), leaf(3), leaf(4), torch.tensor(-0.7).double().requires_grad_()
    factors = (substitution, deletion, insertion, opening)
    first, second = torch.tensor([[0, 2], [1, 1]]), torch.tensor([[3, 3, 0], [1, 2, 3]])
    oracle, scores = EditAlignment(), EditAlignment.from_symbols((first, second), *factors)
    found = oracle.log_partition(scores, lengths=lengths)
    totals = []
    for item in range(2):
        n, m = (2, 3) if lengths is None else lengths[item].tolist()
        each = []
        for z in oracle.enumerate((n + 1, m + 1, 5)):
            total = torch.zeros((), dtype=torch.float64)
            for i, j, action in z.nonzero().tolist():
                one, two = first[item, i - 1], second[item, j - 1]
                total = total + (substitution[one, two], deletion[one], deletion[one], insertion[two], insertion[two])[action]
                total = total + opening * (action in (1, 3))
            each.append(total)
        totals.append(torch.stack(each).logsumexp(0))
    torch.testing.assert_close(found, torch.stack(totals), rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(torch.stack(totals).sum(), factors)
    for ours, theirs in zip(torch.autograd.grad(found.sum(), factors), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 3, 2)], ids=str)
def test_labelled_spans_have_the_scores_and_gradients_of_both(shape: tuple[int, ...]) -> None:
    spans, labels = leaf(2, 3, 3), leaf(*shape)
    oracle, event = LabelledConstituency(), (3, 3, 2)
    found = oracle.log_partition(LabelledConstituency.from_potentials(spans, labels))
    each = labels.expand(2, *event)
    trees = [z.nonzero().tolist() for z in oracle.enumerate(event)]
    totals = [torch.stack([spans[:, i, j] + each[:, i, j, label] for i, j, label in tree]).sum(0) for tree in trees]
    expected = torch.stack(totals).logsumexp(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(value.sum(), (spans, labels)) for value in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_sentences_have_the_probability_of_their_grammar() -> None:
    """The inside algorithm of Baker (1979) gives the same, for items of several lengths."""
    lengths = torch.tensor([5, 3, 1])
    lexical, rules, root = leaf(3, 5, 3), leaf(3, 3, 3), leaf(3)
    inside = {}
    for j in range(5):
        inside[j, j] = lexical[:, j].exp()
        for i in reversed(range(j)):
            inside[i, j] = sum(torch.einsum("abc,nb,nc->na", rules.exp(), inside[i, k], inside[k + 1, j]) for k in range(i, j))
    expected = torch.stack([(inside[0, length - 1][item] @ root.exp()).log() for item, length in enumerate(lengths.tolist())])
    found = Grammar().log_partition(Grammar.from_potentials(lexical, rules, root, lengths=lengths), lengths=lengths)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    several = Grammar.from_potentials(lexical[0].float(), rules.expand(3, 3, 3, 3))
    assert several.shape == (3, 24, 3)
    assert several.dtype == torch.float64
    for factor in (lexical, rules, root):
        ours, theirs = (torch.autograd.grad(each.sum(), factor, retain_graph=True)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("most", [None, 3])
def test_every_row_has_its_own_number_of_parts(most: int | None) -> None:
    oracle, parts, sizes = CardinalitySubset(most), leaf(4, 6), torch.arange(4)
    scores, generator = CardinalitySubset.from_sizes(parts, sizes), torch.Generator().manual_seed(0)
    values, marginals, means = oracle.log_partition(scores), oracle.marginals(scores), oracle.project(scores).mean
    assert values[0] == 0
    assert (oracle.sample(scores, 20, generator=generator)[..., 0].sum(-1) == sizes).all()
    for k in range(1, 4):
        for found, expected in (
            (values[k], Subset(k).log_partition(parts[k])),
            (marginals[k, :-1, 0], Subset(k).marginals(parts[k])),
            (means[k, :-1, 0], Subset(k).project(parts[k]).mean),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.stack([torch.zeros(()).double(), *(Subset(k).log_partition(parts[0]) for k in range(1, 4))])
    for least, greatest in ((0, 2), (1, 3)):
        torch.testing.assert_close(
            oracle.log_partition(CardinalitySubset.from_sizes(parts[0], least, greatest)), weights[least : greatest + 1].logsumexp(0)
        )
    potentials, shared = leaf(4), CardinalitySubset.from_sizes(parts[0], sizes)
    torch.testing.assert_close(oracle.log_partition(shared), weights)
    found, expected = oracle.log_partition(CardinalitySubset.from_potentials(parts[0], potentials)), (weights + potentials).logsumexp(0)
    for factor in (parts, potentials):
        ours, theirs = (torch.autograd.grad(value, factor, retain_graph=True)[0] for value in (found, expected))
        torch.testing.assert_close(ours, theirs)
