"""An oracle with an estimator, as a module: one way to train with every estimator, with its state and its random numbers inside."""

import copy
import dataclasses
import io
import operator
import warnings
from collections.abc import Callable, Iterator
from pickle import UnpicklingError
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch._C import _current_graph_task_id
from torch.compiler import is_compiling
from torch.utils.data import get_worker_info

from ..oracles.capabilities import MarginalOracle, Oracle, WarmStart
from ..oracles.capabilities.base import Mask
from ..oracles.capabilities.ragged import Inside, of_lengths
from ..oracles.tensor_kinds import check_dense, naming, own, unusual_kind
from .base import NOTHING, Estimator, PathwiseEstimator, check_call
from .learned_baseline import PooledNetwork
from .surrogates import Loss

Evaluation = Literal["argmax", "relaxed"]

OWN, EVALUATION, COPY, LOADED = range(4)  # purposes that a seed is split for


def _split(seed: int, *key: int) -> int:
    """A seed for one purpose, which no other purpose and no generator that was seeded by hand has."""
    return int(np.random.SeedSequence([seed % 2**64, *key]).generate_state(1, np.uint64)[0] >> 1)


def _rank() -> int:
    """The number of this process among those that train together, or that of a worker of a `DataLoader` in this epoch."""
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    worker = get_worker_info()
    return rank if worker is None else _split(worker.seed, rank)


COPIES: WeakKeyDictionary[torch.Generator, int] = WeakKeyDictionary()  # number of copies of the layers that draw from a generator

PROBES: dict[int, list[Callable[[Tensor, Tensor | None, Loss | None], None]]] = {}  # what sees the training calls of a layer, by its id


@dataclasses.dataclass(eq=False)
class Seen:
    """What one training call gave, for `Estimator.observed`; it waits here until the next call, because estimates come with `backward`."""

    values: Tensor = NOTHING
    estimates: Tensor = NOTHING


class StructuredLayer(nn.Module):
    """An oracle with an estimator of the gradient through its structures: what a network trains on, whichever estimator it is.

    In training, `surrogate` serves every estimator and `forward` those that are pathwise; `train_step` is a whole step. The layer draws its
    own random numbers and holds the estimator's state: what a training call gave (the values of the surrogate, the estimates that went to
    the scores) is observed at the next one, so after use, or when the state is saved. Nothing is observed in evaluation, or without
    gradients. `state_dict` has the state and the generator's, so that a run goes on bit for bit; `parameters` has those of what the
    estimator learns along, such as a baseline, and they go to the optimiser with the model's. To change an option during training, such as
    a temperature, replace the estimator: ``layer.estimator = dataclasses.replace(layer.estimator, temperature=0.5)``. `state_dict` has the
    numbers and texts that changed since the layer was made.

    No two layers draw the same numbers. A layer takes its seed from torch's global generator when it is made, so that `torch.manual_seed`
    makes a run repeat. `copy.copy` and `copy.deepcopy` give a layer with a stream of its own, which follows from the first one's seed. In a
    process group of `torch.distributed` every rank has a stream of its own, also after the same seed or checkpoint. In evaluation the layer
    draws from another stream, so that nothing there changes the training. A pickled layer continues its stream, as a saved one does.
    Every worker of a `DataLoader` has a stream of its own in every epoch. If other processes load a layer without a process group, seed
    each one: ``layer.generator.manual_seed(...)``.

    Attributes:
        generator: of the numbers that training draws.

    Args:
        oracle: an oracle or its name, such as ``"subset[k=3]"``.
        estimator: an estimator or its name, such as ``"rloo[num_samples=4]"``.
        seed: of all random numbers: those that training draws, and the first parameters of a baseline. None takes one from torch's global
            generator; a generator is drawn from as it is.
        event_shape: of the scores of one item, to check now whether the estimator takes them.
        evaluation: what `forward` gives in `eval()`: the best structure, or a relaxed one, which is the estimator's own where that is
            deterministic and lies in the hull, as SparseMAP's, and else the marginals.

    Example:
        >>> layer = StructuredLayer("subset[k=2]", "reinforce_running_mean", seed=1)
        >>> scores, target = torch.nn.Parameter(torch.zeros(4)), torch.tensor([1.0, 0.0, 0.0, 1.0])
        >>> optimiser = torch.optim.Adam([scores, *layer.parameters()], lr=0.1)
        >>> for _ in range(60):
        ...     values = train_step(layer, optimiser, scores.expand(8, 4), lambda z: 7 + (z - target).square().sum(-1))
        >>> layer.eval()(scores), layer.estimator.mean > 6
        (tensor([1., 0., 0., 1.]), True)
        >>> StructuredLayer("spanning_tree", "rloo")
        StructuredLayer(oracle=SpanningTree(single_root=True), estimator=LeaveOneOut(num_samples=2))
    """

    def __init__(
        self,
        oracle: Oracle | str,
        estimator: Estimator[Any] | str,
        *,
        seed: int | torch.Generator | None = None,
        event_shape: tuple[int, ...] | None = None,
        evaluation: Evaluation = "argmax",
    ) -> None:
        super().__init__()
        structures, chosen = check_call("StructuredLayer", oracle=oracle, estimator=estimator)
        reason = chosen.incompatibility(structures, event_shape)
        if reason is not None:
            raise ValueError(f"{reason}; choose another pair")
        self.oracle: Oracle = structures
        self.evaluation = evaluation
        try:
            number = (
                0 if isinstance(seed, torch.Generator) else operator.index(torch.randint(2**62, (), device="cpu") if seed is None else seed)
            )
        except TypeError:
            text = "an integer, a torch.Generator, or None for a seed from torch's global generator"
            raise ValueError(f"`StructuredLayer` got seed={seed!r}; expected {text}") from None
        self.generator = seed if isinstance(seed, torch.Generator) else torch.Generator("cpu").manual_seed(_split(number, OWN))
        self.estimator: Estimator[Any] = chosen.prepared(structures, event_shape, self.generator)
        self.learnt = nn.ModuleDict({name: value for name, value in _options(self.estimator).items() if isinstance(value, nn.Module)})
        if self.estimator is not chosen and torch.get_default_device().type != "meta":
            self.learnt.to(torch.get_default_device())  # as other modules are made
        self._kind, self._made = type(self.estimator), _plain_options(self.estimator)
        self._seen: list[Seen] = []
        self._evaluating: torch.Generator | None = None
        self._rank = 0
        if evaluation not in ("argmax", "relaxed"):
            raise ValueError(f'`StructuredLayer` got evaluation={evaluation!r}; expected "argmax" or "relaxed"')
        if evaluation == "relaxed" and not self._own_relaxation and not isinstance(structures, MarginalOracle):
            raise ValueError(
                f"`StructuredLayer` got evaluation='relaxed' for {self.estimator.name} and the oracle {structures.name}; expected "
                "an oracle with marginals or a deterministic relaxation, such as sparsemap: choose evaluation='argmax'"
            )

    def __repr__(self) -> str:
        return super().__repr__() if self.learnt else f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """The oracle and the estimator with their options; modules are listed below them."""
        options = (f"{name}={value!r}" for name, value in _options(self.estimator).items() if name not in self.learnt)
        return f"oracle={self.oracle!r}, estimator={type(self.estimator).__name__}({', '.join(options)})"

    @naming("StructuredLayer")
    def forward(self, scores: Tensor, *, lengths: Tensor | None = None, mask: Mask | None = None, warm: WarmStart | None = None) -> Tensor:
        """A structure ``[*batch, *event]``: differentiable in training, for estimators that are pathwise; see ``evaluation`` else.

        Args:
            scores: ``[*batch, *event]``.
            lengths: of the items, where they differ; what lies beyond is 0 in the structure, and has no gradient.
            mask: True for what is allowed, of items ``[*batch, n]`` or of parts: see `Oracle.masked`.
            warm: what is kept of the projections of this batch, for estimators that project: see `WarmStart`.
        """
        scores, lengths = self.oracle.masked(scores, mask, lengths=lengths)
        if not self.training and not self._own_relaxation:
            evaluate = self.oracle.argmax if self.evaluation == "argmax" else self.oracle.marginals  # type: ignore[attr-defined]
            structure: Tensor = evaluate(scores, lengths=lengths)
            return structure
        if not isinstance(self.estimator, PathwiseEstimator):
            raise ValueError(
                f"`{self.estimator.name}` got forward() in training; expected a pathwise estimator, such as ste or simple, "
                "which hands on a structure with a gradient: train with `surrogate` or `train_step`"
            )
        theta, seen = self._begin(scores, lengths)
        structure = self.estimator.structure(self._oracle(lengths, warm), theta, generator=self._generator(scores))
        self._keep(seen, scores, lengths)
        return structure if lengths is None else self.oracle.unpadded(structure, self._event(scores), lengths)

    @naming("StructuredLayer")
    def surrogate(  # noqa: PLR0913
        self,
        loss: Loss,
        scores: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        warm: WarmStart | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """``[*batch]``: the objective's estimate, whose gradient in scores and decoder is what training follows.

        Args:
            loss: maps structures ``[..., *batch, *event]`` to ``[..., *batch]``; what lies beyond the lengths is 0 in them.
            scores: ``[*batch, *event]``.
            lengths: of the items, where they differ.
            mask: True for what is allowed: see `Oracle.masked`.
            warm: what is kept of the projections of this batch: see `WarmStart`.
            features: ``[*batch, ...]``, what the module of a learned baseline gets instead of the scores, detached.
        """
        scores, lengths = self.oracle.masked(scores, mask, lengths=lengths)
        theta, seen = self._begin(scores, lengths)
        inside = loss if lengths is None else Inside(loss, self.oracle, lengths, self._event(scores))
        estimator, oracle, generator = self._with_features(features), self._oracle(lengths, warm), self._generator(scores)
        value = estimator.surrogate(inside, oracle, theta, generator=generator)
        self._keep(seen, scores, lengths, loss, value)
        return value

    def rounds(  # noqa: PLR0913
        self,
        loss: Loss,
        scores: Callable[[], Tensor],
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        warm: WarmStart | None = None,
        features: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and surrogate of every step of the optimiser that one set of samples serves: one, but for estimators with inner steps."""
        first, sizes = self.oracle.masked(own(scores), mask, lengths=lengths)
        theta, seen = self._begin(first, sizes)
        given, waiting = [first], [theta]

        def padded() -> Tensor:
            if waiting:
                return waiting.pop()
            given.append(self.oracle.masked(own(scores), mask, lengths=lengths)[0])
            return given[-1] if sizes is None else self.oracle.pad(given[-1], sizes)

        inside = loss if sizes is None else Inside(loss, self.oracle, sizes, self._event(first))
        estimator, oracle, generator = self._with_features(features), self._oracle(sizes, warm), self._generator(first)
        for number, surrogate in enumerate(estimator.rounds(inside, oracle, padded, generator=generator)):
            if number == 0:
                self._keep(seen, first, sizes, loss, surrogate)
            yield given[-1], surrogate

    # The state.

    def _begin(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Seen | None]:
        """Padded scores, and where what this call gives is to be kept: None where it is not."""
        if not (self.estimator.deterministic or is_compiling()) and _current_graph_task_id() >= 0:
            raise ValueError(
                f"`StructuredLayer` got a call inside of a backward pass, as torch.utils.checkpoint makes one, where {self.estimator.name} "
                "would draw other random numbers than before; expected one in the forward pass: leave the layer outside of the checkpoint"
            )
        if isinstance(scores, Tensor):
            check_dense("StructuredLayer", "scores", scores)
        theta = scores if lengths is None else self.oracle.pad(scores, lengths)
        if not (self.estimator.state and self.training and torch.is_grad_enabled()):
            return theta, None
        self._observe()
        seen = Seen()
        if isinstance(theta, Tensor) and theta.requires_grad:
            theta = theta.view_as(theta)

            def keep_estimates(estimate: Tensor) -> None:
                if seen.estimates is NOTHING:  # once for each call, whenever its gradient comes
                    seen.estimates = estimate.detach().reshape(-1, *self._event(estimate)).clone()
                    if not any(seen is other for other in self._seen):
                        self._seen.append(Seen(estimates=seen.estimates))

            theta.register_hook(keep_estimates)
        return theta, seen

    def _keep(self, seen: Seen | None, scores: Tensor, lengths: Tensor | None, loss: Loss | None = None, value: Tensor = NOTHING) -> None:
        """After a call that did not fail, so that probes see nothing that the layer refuses."""
        for see in PROBES.get(id(self), ()) if self.training else ():
            see(scores, lengths, loss)
        if seen is not None:
            seen.values = value.detach().flatten().clone()
            self._seen.append(seen)

    def _observe(self) -> None:
        while self._seen:
            seen = self._seen.pop(0)
            self.estimator = self.estimator.observed(seen.values, seen.estimates)

    def get_extra_state(self) -> Tensor:
        """The estimator's state after all that it has seen, and that of the generator: bytes, which every format of checkpoints takes."""
        self._observe()
        written, made = io.BytesIO(), self._made if type(self.estimator) is self._kind else {}
        state = {
            "estimator": self.estimator.name,
            "state": {name: getattr(self.estimator, name) for name in self.estimator.state},
            "options": {name: value for name, value in _plain_options(self.estimator).items() if made.get(name) != value},
            "generator": self.generator.get_state(),
            "device": str(self.generator.device),
            "rank": self._rank,
        }
        torch.save(state, written)
        return torch.frombuffer(written.getbuffer(), dtype=torch.uint8).clone()

    def set_extra_state(self, state: Any) -> None:
        """Go on from what `get_extra_state` gave; a state of earlier versions is a dict."""
        if isinstance(state, Tensor):
            try:  # also after a cast to a floating-point dtype with the weights, which keeps every byte
                written = io.BytesIO(state.cpu().to(torch.uint8).numpy().tobytes())
                state = torch.load(written, map_location="cpu", weights_only=True)
            except (RuntimeError, UnpicklingError, EOFError) as error:
                raise ValueError(
                    f"`StructuredLayer` got an extra state of {state.numel()} numbers of dtype {state.dtype} on {state.device}, not "
                    "readable; expected the bytes that its state_dict() gave, unchanged: copy them from one checkpoint, and do not average "
                    "them"
                ) from error
        if state["estimator"] != self.estimator.name:
            raise ValueError(
                f"`StructuredLayer` got the state of the estimator {state['estimator']}; expected that of {self.estimator.name}: "
                "make the layer with the estimator that was saved"
            )
        self._seen.clear()
        # Options that the state does not hold are those that the layer was made with; earlier states hold none.
        known = "options" in state and type(self.estimator) is self._kind
        if saved := (self._made if known else {}) | state.get("options", {}) | state["state"]:
            options: Any = self.estimator
            self.estimator = dataclasses.replace(options, **saved)
        self.generator, self._rank, self._evaluating = _restored(state["generator"].cpu(), state["device"]), state.get("rank", 0), None

    def __copy__(self) -> Self:
        return self._copied(dict(vars(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._copied(copy.deepcopy(dict(vars(self)), memo), memo)

    def _copied(self, attributes: dict[str, Any], memo: dict[int, Any] | None = None) -> Self:
        """A layer of these attributes, with a stream that neither this layer has nor another copy of it."""
        other = type(self).__new__(type(self))
        if memo is not None:
            memo[id(self)] = other
        COPIES[self.generator] = COPIES.get(self.generator, 0) + 1
        seed = _split(self.generator.initial_seed(), COPY, COPIES[self.generator])
        vars(other).update(attributes, generator=torch.Generator(self.generator.device).manual_seed(seed), _evaluating=None)
        other._seen = list(other._seen)
        return other

    # The parts of a call.

    def _generator(self, scores: Tensor) -> torch.Generator:
        """The stream of this mode, on the device of the scores.

        In training it starts again on another device and on another rank, from a seed that the last one draws.
        """
        device = scores.device if isinstance(scores, Tensor) else self.generator.device
        if device.type == "meta":
            raise ValueError(f"`StructuredLayer` got {unusual_kind('scores', scores)}")
        if self.estimator.deterministic:
            return self.generator  # which it does not draw from
        if not self.training:
            if self._evaluating is None or self._evaluating.device != device:
                seed = _split(self.generator.initial_seed(), EVALUATION, _rank())
                self._evaluating = torch.Generator(device).manual_seed(seed)
            return self._evaluating
        rank = _rank()
        if self.generator.device != device or self._rank != rank:
            seed = int(torch.randint(2**62, (), generator=self.generator, device=self.generator.device))
            self.generator, self._rank = torch.Generator(device).manual_seed((seed + rank) % 2**63), rank
        return self.generator

    def _with_features(self, features: Tensor | None) -> Estimator[Any]:
        """The estimator, whose module gets the features of a batch instead of its scores."""
        if features is None:
            return self.estimator
        options: Any = self.estimator
        module = getattr(options, "module", None)
        if module is None or isinstance(module, PooledNetwork):
            raise ValueError(
                f"`StructuredLayer` got features for {self.estimator.name}; expected an estimator with a module for them, such as "
                "LearnedBaseline(torch.nn.Sequential(torch.nn.Linear(d, 1), torch.nn.Flatten(0)))"
            )
        detached = features.detach()
        of_features: Estimator[Any] = dataclasses.replace(options, module=lambda _: own(module, detached))
        return of_features

    def _oracle(self, lengths: Tensor | None, warm: WarmStart | None) -> Oracle:
        oracle = self.oracle if warm is None else warm(self.oracle)  # type: ignore[type-var]
        return oracle if lengths is None else of_lengths(oracle, lengths)

    def _event(self, scores: Tensor) -> tuple[int, ...]:
        return tuple(scores.shape[scores.ndim - self.oracle.event_ndim :])

    @property
    def _own_relaxation(self) -> bool:
        """Whether what `forward` gives in evaluation is what it gives in training."""
        own = isinstance(self.estimator, PathwiseEstimator) and self.estimator.deterministic and self.estimator.inside_hull
        return self.evaluation == "relaxed" and own


def _restored(state: Tensor, device: str) -> torch.Generator:
    """A generator in a state; where the machine has no such device, a new one that follows from it."""
    try:
        generator = torch.Generator(device)
        generator.set_state(state)
    except RuntimeError:
        warnings.warn(
            f"`StructuredLayer` got the state of random numbers on {device}, which is not available here; the layer goes on with others, "
            "seeded by that state: the run does not repeat bit for bit",
            stacklevel=2,
        )
        return torch.Generator("cpu").manual_seed(_split(0, LOADED, *state.tolist()))
    return generator


def _options(estimator: Estimator[Any]) -> dict[str, Any]:
    """The options of an estimator by name."""
    return {one.name: getattr(estimator, one.name) for one in dataclasses.fields(estimator)} if dataclasses.is_dataclass(estimator) else {}


def _plain_options(estimator: Estimator[Any]) -> dict[str, Any]:
    """Its options that are numbers or texts, which a state can hold."""
    return {name: value for name, value in _options(estimator).items() if isinstance(value, int | float | str | None)}


@naming("train_step")
def train_step(  # noqa: PLR0913
    layer: StructuredLayer,
    optimiser: torch.optim.Optimizer,
    scores: Callable[[], Tensor] | Tensor,
    loss: Loss,
    *,
    lengths: Tensor | None = None,
    mask: Mask | None = None,
    warm: WarmStart | None = None,
    features: Tensor | None = None,
    regulariser: Callable[[Tensor], Tensor] | None = None,
    clip: float | None = None,
) -> Tensor:
    """One step of training, the same for every estimator: ``[*batch]``, the values of the surrogate.

    It is ``layer.surrogate(...).mean().backward()`` and a step of the optimiser, and for estimators with inner steps (PPO) as many steps on
    the same samples.

    A regulariser is a term that is known exactly as a function of the scores. Its gradient is added to the estimate, which is the whole
    gradient of ``E_{z∼p_θ} L(z) + R(θ)`` wherever L does not look at the scores itself: the entropy bonus ``−w H(p_θ)`` and the divergence
    ``KL(p_θ ‖ prior)`` of an evidence lower bound are such terms, of `Oracle.entropy` and `Oracle.kl`, whatever the estimator. A loss that
    reads the scores beside the structure has a gradient there which estimators do not give; write such a term as a regulariser.

    Args:
        layer: in training mode.
        optimiser: of encoder, decoder and the layer's own parameters.
        scores: ``[*batch, *event]``, or a function that gives them with the parameters as they are, called once for each inner step.
        loss: of structures, with the parameters as they are.
        lengths: of the items, where they differ.
        mask: True for what is allowed, of items ``[*batch, n]`` or of parts: see `Oracle.masked`.
        warm: what is kept of the projections of this batch, for estimators that project: see `WarmStart`.
        features: ``[*batch, ...]``, what the module of a learned baseline gets instead of the scores, detached.
        regulariser: ``[*batch]``, of the scores as they were given, -inf where a mask of parts forbids, which is added to the loss.
        clip: the longest gradient, over all parameters of the optimiser.

    Example:
        >>> layer, data = StructuredLayer("categorical", "rloo[num_samples=4]"), torch.tensor([0.5, 0.3, 0.2])  # p(x|z) of the x seen
        >>> scores, prior = torch.nn.Parameter(torch.zeros(16, 3)), torch.zeros(3)
        >>> optimiser = torch.optim.Adam([scores, *layer.parameters()], lr=0.05)
        >>> for _ in range(300):  # minus an evidence lower bound
        ...     loss, divergence = lambda z: -(z @ data.log()), lambda theta: layer.oracle.kl(theta, prior)
        ...     values = train_step(layer, optimiser, scores, loss, regulariser=divergence)
        >>> posterior = layer.oracle.marginals(scores.detach()).mean(0)
        >>> bool((posterior - data).abs().max() < 0.03)  # under a uniform prior it is in proportion to p(x|z)
        True
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    _check_step(layer, parameters, scores)
    values = None
    given = (lambda: scores) if isinstance(scores, Tensor) else scores
    for theta, surrogate in layer.rounds(loss, given, lengths=lengths, mask=mask, warm=warm, features=features):
        total = surrogate if regulariser is None else surrogate + regulariser(theta)
        optimiser.zero_grad()
        total.mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimiser.step()
        values = surrogate.detach() if values is None else values
    assert values is not None
    return values


def _check_step(layer: StructuredLayer, parameters: list[Tensor], scores: Any) -> None:
    if not isinstance(scores, Tensor) and not callable(scores):
        raise ValueError(f"`train_step` got scores of {type(scores).__name__}; expected a torch.Tensor, or a function that gives one")
    if isinstance(scores, Tensor) and scores.grad_fn is not None and type(layer.estimator).rounds is not Estimator.rounds:
        raise ValueError(
            f"`train_step` got a tensor of scores that a model computed, which {layer.estimator.name} needs again after each inner step; "
            "expected a function that computes them: lambda: model(x)"
        )
    if not torch.is_grad_enabled():
        raise ValueError("`train_step` got called under torch.no_grad or torch.inference_mode; expected gradients: call it outside of them")
    if not layer.training:
        raise ValueError("`train_step` got a layer in evaluation; expected one in training: call layer.train() first")
    known = {id(parameter) for parameter in parameters}
    if any(parameter.requires_grad and id(parameter) not in known for parameter in layer.parameters()):
        raise ValueError(
            f"`train_step` got an optimiser without the parameters that {layer.estimator.name} learns along; "
            "expected them with the model's: add layer.parameters()"
        )
