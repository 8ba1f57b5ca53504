"""Adapters of other libraries: each converts scores to the inputs of a library, untimed, and returns the timed call.

A peer is used if it is installed (extra ``peers``; synjax and lp-sparsemap separately), and imported when it is first used. Some
libraries can only do less: one transition matrix for all positions, or several roots. Then the smaller task is timed.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, TiedSemiMarkov
from tests.asv_benchmarks.tasks import backward
from tests.benchmarks.operations import Case

FORBIDDEN = -1e5
"""A finite score of forbidden parts, for libraries that add to it."""

Call = Callable[[], Any]
Adapter = Callable[[Any, Case, str, Tensor], Call | None]


@dataclass(frozen=True)
class Peer:
    """A library.

    Attributes:
        name: the name of its package.
        module: the module that is imported.
        adapt: returns the call for the module, a case, an operation and scores; None if the library has no such operation.
    """

    name: str
    module: str
    adapt: Adapter

    @property
    def installed(self) -> bool:
        """Whether the package is installed."""
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    def prepare(self, case: Case, operation: str, scores: Tensor) -> Call | None:
        """The timed call; None if the library does not offer the operation.

        A library without compact structures is timed with its own form of them: heads, permutations, mostly dense ones.
        """
        library = importlib.import_module(self.module)
        call = self.adapt(library, case, operation, scores)
        dense = operation.removesuffix("_indices")
        return self.adapt(library, case, dense, scores) if call is None and dense != operation else call


def torch_struct(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """Chains as edges between neighbours, segments by where they begin, trees with the root's scores on the diagonal."""

    def distribution(theta: Tensor) -> Any:
        match case.structure:
            case "linear_chain" | "tied_chain":
                theta = _edges(case, theta)
                edges = theta[:, 1:].mT.clone()
                edges[:, 0] += theta[:, 0, 0].unsqueeze(-2)
                return library.LinearChainCRF(edges)
            case "constituency":
                return library.TreeCRF(theta.triu().unsqueeze(-1))
            case "labelled_constituency":
                return library.TreeCRF(theta)
            case "semi_markov" | "tied_semi_markov":
                return library.SemiMarkovCRF(_segments_by_start(_labelled_pairs(case, theta)))
            case "projective_tree" | "spanning_tree":
                # It writes into its input, which must not be a leaf.
                theta = theta if theta.requires_grad else theta.detach().requires_grad_()
                inner = theta[:, 1:, 1:] + torch.diag_embed(theta[:, 0, 1:] - theta[:, 1:, 1:].diagonal(dim1=-2, dim2=-1))
                kind = library.DependencyCRF if case.structure == "projective_tree" else library.NonProjectiveDependencyCRF
                return kind(inner, multiroot=False)
        return None

    served = {"linear_chain", "tied_chain", "constituency", "labelled_constituency", "semi_markov", "tied_semi_markov"}
    served |= {"projective_tree", "spanning_tree"}
    if case.structure not in served:
        return None
    if case.structure == "spanning_tree" and operation not in {"log_partition", "marginals", "marginals_backward"}:
        return None
    return {
        "argmax": lambda: distribution(scores).argmax,
        "log_partition": lambda: distribution(scores).partition,
        "marginals": lambda: distribution(scores).marginals,
        "marginals_backward": lambda: backward(lambda leaf: distribution(leaf).marginals, scores),
        "sample": lambda: distribution(scores).sample((1,)),
        "sample_64": lambda: distribution(scores).sample((64,)),
        "kbest_8": lambda: distribution(scores).topk(8),
    }.get(operation)


def _segments_by_start(theta: Tensor) -> Tensor:
    """[b, n, w, t, t] by last token, length − 1, label before, label -> [b, n, w + 1, t, t] by first token, length, label, label before.

    The first segment has any label before it there, of which one must do.
    """
    batch, size, width, tags, _ = theta.shape
    moved = theta.new_full((batch, size, width + 1, tags, tags), FORBIDDEN)
    for longer in range(min(width, size)):
        moved[:, : size - longer, longer + 1] = theta[:, longer:, longer].mT
    moved[:, 0, :, :, 1:] = FORBIDDEN
    return moved


def _labelled_pairs(case: Case, theta: Tensor) -> Tensor:
    """Scores of segments, by the label before too: [b, n, w, t, t]."""
    if case.structure == "semi_markov":
        return theta
    transitions = TiedSemiMarkov.transitions(theta).unsqueeze(-3).unsqueeze(-3)
    width, tags = theta.shape[-2:]
    segments = theta[:, : theta.shape[1] + (-tags // width)].unsqueeze(-2)
    first = torch.arange(segments.shape[1]).reshape(-1, 1, 1, 1) == torch.arange(width).reshape(-1, 1, 1)
    return segments + torch.where(first, 0, transitions)


def _edges(case: Case, theta: Tensor) -> Tensor:
    """Scores of a chain as those of its edges: [b, n, t, t]."""
    tags = theta.shape[-1]
    return LinearChain.from_potentials(theta[:, :-tags], theta[:, -tags:]) if case.structure == "tied_chain" else theta


def synjax(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """Compiled by jax for these shapes, untimed."""
    jax = importlib.import_module("jax")
    kinds: dict[str, Callable[[Any], Any]] = {
        "linear_chain": lambda theta: library.LinearChainCRF(log_potentials=theta),
        "tied_chain": lambda theta: library.LinearChainCRF(log_potentials=edges(theta)),
        "constituency": lambda theta: library.TreeCRF(log_potentials=theta[..., None]),
        "projective_tree": lambda theta: library.SpanningTreeCRF(theta, directed=True, projective=True, single_root_edge=True),
        "spanning_tree": lambda theta: library.SpanningTreeCRF(theta, directed=True, projective=False, single_root_edge=True),
        "alignment": lambda theta: library.AlignmentCRF(theta, alignment_type="monotone_many_to_many"),
    }
    if case.structure not in kinds or (case.structure == "spanning_tree" and operation.startswith("sample")):
        return None
    build, key = kinds[case.structure], jax.random.PRNGKey(0)

    def edges(theta: Any) -> Any:
        tags = theta.shape[-1]
        later = jax.numpy.arange(theta.shape[-2] - tags)[:, None, None] > 0
        return theta[:, :-tags, None] + jax.numpy.where(later, theta[:, None, -tags:], 0)

    def marginals(theta: Any) -> Any:
        return build(theta).marginals()

    functions: dict[str, Callable[[Any], Any]] = {
        "argmax": lambda theta: build(theta).argmax(),
        "log_partition": lambda theta: build(theta).log_partition(),
        "marginals": marginals,
        "marginals_backward": jax.grad(lambda theta: (marginals(theta) ** 2).sum()),
        "sample": lambda theta: build(theta).sample(key),
        "sample_64": lambda theta: build(theta).sample(key, 64),
    }
    if operation not in functions:
        return None
    compiled, values = jax.jit(functions[operation]), jax.numpy.asarray(scores.numpy())
    return lambda: compiled(values).block_until_ready()


def scipy(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """One call per item."""
    if (case.structure, operation) != ("assignment", "argmax"):
        return None
    solve, rows = library.linear_sum_assignment, scores.numpy()
    return lambda: [solve(row, maximize=True)[1] for row in rows]


def lapx(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """One call per item, from its fastest entry for squares."""
    if (case.structure, operation) != ("assignment", "argmax"):
        return None
    solve, rows = library.lapjvs, (-scores).double().numpy()
    return lambda: [solve(row, return_cost=False)[1] for row in rows]


def ufal(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """One call per item, any number of root words."""
    if (case.structure, operation) != ("spanning_tree", "argmax"):
        return None
    solve, rows = library.chu_liu_edmonds, scores.mT.double().contiguous().numpy()
    return lambda: [solve(row)[0] for row in rows]


def entmax(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """Sparsemax by sorting, budgets by bisection."""
    maps: dict[str, Callable[[Tensor], Tensor]] = {
        "categorical": lambda theta: library.sparsemax(theta, dim=-1),
        "subset": lambda theta: library.budget_bisect(theta, budget=case.oracle.k, dim=-1),
    }
    if case.structure not in maps:
        return None
    project = maps[case.structure]
    return {"project": lambda: project(scores), "project_backward": lambda: backward(project, scores)}.get(operation)


def tslearn(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """Soft-DTW of a given cost matrix, one call per item."""
    if case.structure != "alignment" or operation not in {"log_partition", "marginals"}:
        return None
    rows, size = (-scores).double().numpy(), case.event[0]

    def one(costs: np.ndarray, backward: bool) -> Any:
        table = np.zeros((size + 2, size + 2))
        library._njit_soft_dtw(costs, table, gamma=1.0)
        if not backward:
            return -table[size, size]
        expected = np.zeros((size + 2, size + 2))
        padded = np.vstack((costs, np.zeros(size)))
        padded = np.hstack((padded, np.zeros((size + 1, 1))))
        library._njit_soft_dtw_grad(padded, table, expected, gamma=1.0)
        return expected[1:-1, 1:-1]

    return lambda: np.stack([one(row, operation == "marginals") for row in rows])


def lp_sparsemap(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """The active set method of AD3, one factor graph per item; non-projective trees may have several root words."""
    if operation not in {"project", "project_backward"} or case.name == "assignment 64":
        return None
    tree = {"projective_tree": True, "spanning_tree": False}

    def one(theta: Tensor) -> Tensor:
        graph = library.TorchFactorGraph()
        if case.structure == "linear_chain":
            length, tags = case.event[:2]
            unary = graph.variable_from(torch.zeros(length, tags))
            moves = torch.cat([theta[0, 0], theta[1:].reshape(-1), torch.zeros(tags)])
            graph.add(library.Sequence(unary, moves))
            graph.solve()
            value: Tensor = unary.value
            return value
        if case.structure in tree:
            arcs = graph.variable_from(_arcs(theta).mT.contiguous())
            graph.add(library.DepTree(arcs, packed=True, projective=tree[case.structure]))
            graph.solve()
        else:
            arcs = graph.variable_from(theta)
            for i in range(case.event[0]):
                graph.add(library.Xor(arcs[i, :]))
                graph.add(library.Xor(arcs[:, i]))
            graph.solve()
        found: Tensor = arcs.value
        return found

    if case.structure not in {"linear_chain", "assignment", *tree}:
        return None
    if operation == "project":
        return lambda: torch.stack([one(row.double()) for row in scores])
    return lambda: backward(lambda leaf: torch.stack([one(row) for row in leaf]), scores.double())


def _arcs(theta: Tensor) -> Tensor:
    """[n + 1, n + 1] -> [n, n] with the root's scores on the diagonal."""
    inner = theta[1:, 1:]
    return inner + torch.diag_embed(theta[0, 1:] - inner.diagonal())


def plain_torch(library: Any, case: Case, operation: str, scores: Tensor) -> Call | None:
    """Functions of torch. Its CTC posteriors are of symbols, not of states and moves."""

    def one_hot(indices: Tensor) -> Tensor:
        """One-hot vectors in the dtype of the scores."""
        return torch.nn.functional.one_hot(indices, scores.shape[-1]).to(scores.dtype)

    def log_probs(theta: Tensor) -> Tensor:
        """[n, b, v]: blank, then the labels, of a text without repeats."""
        return torch.cat([theta[:, :, :1, 0], theta[:, :, 1::2, 0]], -1).transpose(0, 1)

    both: dict[str, Call] = {
        "argmax": lambda: one_hot(scores.argmax(-1)),
        "argmax_indices": lambda: scores.argmax(-1),
        "marginals": lambda: scores.softmax(-1),
        "marginals_backward": lambda: backward(lambda leaf: leaf.softmax(-1), scores),
    }
    calls: dict[tuple[str, str], Call] = {
        **{(structure, name): call for structure in ("categories", "categorical") for name, call in both.items()},
        ("categories", "log_partition"): lambda: scores.logsumexp(-1).sum(-1),
        ("categorical", "log_partition"): lambda: scores.logsumexp(-1),
        ("categorical", "sample"): lambda: one_hot(torch.multinomial(scores.softmax(-1), 1)),
        ("categorical", "sample_64"): lambda: one_hot(torch.multinomial(scores.softmax(-1), 64, replacement=True)),
        ("categorical", "sample_64_indices"): lambda: torch.multinomial(scores.softmax(-1), 64, replacement=True),
        ("subset", "argmax"): lambda: torch.zeros_like(scores).scatter_(-1, scores.topk(case.oracle.k).indices, 1),
        ("subset", "argmax_indices"): lambda: scores.topk(case.oracle.k).indices.sort().values,
        ("ctc", "log_partition"): lambda: -_ctc_loss(log_probs(scores)),
        ("ctc", "marginals"): lambda: _ctc_posteriors(log_probs(scores)),
    }
    return calls.get((case.structure, operation))


def _ctc_loss(log_probs: Tensor) -> Tensor:
    frames, batch, symbols = log_probs.shape
    targets = torch.arange(1, symbols).expand(batch, -1)
    limits = torch.full((batch,), frames), torch.full((batch,), symbols - 1)
    return torch.nn.functional.ctc_loss(log_probs, targets, *limits, reduction="none")


def _ctc_posteriors(log_probs: Tensor) -> Tensor:
    """[b, n, v]: the gradient is that of normalised scores, from which the posterior is subtracted."""
    leaf = log_probs.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(_ctc_loss(leaf).sum(), leaf)
    return (log_probs.exp() - gradient).transpose(0, 1)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("torch", "torch", plain_torch),
        Peer("torch-struct", "torch_struct", torch_struct),
        Peer("synjax", "synjax", synjax),
        Peer("scipy", "scipy.optimize", scipy),
        Peer("lapx", "lap", lapx),
        Peer("ufal.chu_liu_edmonds", "ufal.chu_liu_edmonds", ufal),
        Peer("entmax", "entmax", entmax),
        Peer("tslearn", "tslearn.metrics.soft_dtw_fast", tslearn),
        Peer("lp-sparsemap", "lpsmap", lp_sparsemap),
    )
}
