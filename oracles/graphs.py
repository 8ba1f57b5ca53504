"""Operations as nodes of graphs: a custom operator of torch, with shapes for `torch.compile` and `torch.export`, and a derivative.

A node holds its tensors, and as text which operation it is, of which oracle, with which options. So a graph that `torch.export.save` wrote
runs in another process, which has imported `structgrad`, if its oracle has a name there.

Source: PyTorch, "The custom operators manual".
"""

import functools
import importlib
import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _dispatch_tls_local_exclude_set, _dispatch_tls_local_include_set, _ForceDispatchKeyGuard
from torch._C._functorch import maybe_current_level
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.autograd import forward_ad

from .functional import Operation, aligned, batch_ndims, derivative_of, mapped_first
from .registry import make_oracle, oracle_name
from .tensor_kinds import explain, with_plain_default


class Kind(NamedTuple):
    """A function that is an operation, and what `transforms.operation` was told of its result and arguments."""

    function: Callable[..., Any]
    gives: str | None
    event_ndims: Mapping[str, int]


KINDS: dict[str, Kind] = {}
"""All operations, by module and name of their function."""

OBJECTS: dict[str, Any] = {}
"""Estimators of this process, and oracles that no name makes, which nodes name by number."""

OLD = torch.__version__ < "2.12"  # whose compiler cannot hold an oracle as a constant of a call: operations break its graphs

PROCESS = secrets.token_hex(4)  # so that a graph of another process finds none of them


def node(key: str, names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """The result of a call as a node of the graph that is traced; None if its random numbers or what its oracle keeps rule that out."""
    if OLD:
        return None
    given = {**dict(zip(names[: len(args)], args, strict=True)), **named}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in given.items() if name not in tensors}
    if "generator" in fixed and getattr(given.get("self"), "deterministic", False):
        fixed["generator"] = None
    for name in ("self", "oracle"):
        if getattr(given.get(name), "_keeps", False):
            kept = vars(given[name])
            if "_warm" in kept or "_lengths" not in kept or "lengths" in tensors:
                return None
            fixed[name], tensors["lengths"] = kept["_plain"], kept["_lengths"]
    if fixed.get("generator") is not None:
        return None
    numbers = {name: value for name, value in fixed.items() if isinstance(value, float)}  # which the compiler may have made variable
    others = {name: value for name, value in fixed.items() if name not in numbers}
    call = written(key, (*tensors, *numbers), tuple(others), *others.values())
    if call is None:
        return None
    result: Tensor = operation([*tensors.values()], [*numbers.values()], call)
    return result


def written(key: str, given: tuple[str, ...], names: tuple[str, ...], *values: Any) -> str | None:
    """An operation as text: its place in the code, the names of its tensors and numbers, and its other arguments.

    None under transforms other than vmap, for which the operator has no rule. To ask here leaves no trace in a graph.
    """
    transforms = retrieve_all_functorch_interpreters() if maybe_current_level() is not None else []
    if forward_ad._current_level >= 0 or not all(isinstance(one, VmapInterpreter) for one in transforms):
        return None
    return json.dumps([key, given, dict(zip(names, values, strict=True))], default=_name)


written._dynamo_marked_constant = True  # type: ignore[attr-defined]  # `torch.compiler.assume_constant_result` would import the compiler


def _name(value: Any) -> dict[str, str]:
    try:
        if make_oracle(oracle_name(value)) == value:
            return {"$oracle": oracle_name(value)}
    except (ValueError, AttributeError):
        pass
    number = f"{PROCESS}{id(value)}"
    OBJECTS[number] = value
    return {"$object": number}


def _object(found: dict[str, Any]) -> Any:
    if "$oracle" in found:
        return make_oracle(found["$oracle"])
    if "$object" in found and found["$object"] not in OBJECTS:
        raise ValueError("a graph got an oracle or estimator of the process that wrote it; expected one with a name, such as subset[k=3]")
    return OBJECTS.get(found.get("$object", ""), found)


@dataclass(frozen=True)
class _Call:
    """The call that a node stands for."""

    kind: Kind
    names: tuple[str, ...]
    fixed: Mapping[str, Any]

    @property
    def oracle(self) -> Any:
        found = self.fixed.get("oracle", self.fixed.get("self"))
        return make_oracle(found) if isinstance(found, str) else found

    def run(self, *values: Tensor | float) -> Tensor:
        given = {**self.fixed, **dict(zip(self.names, values, strict=True))}
        if "lengths" not in inspect.signature(self.kind.function).parameters and (lengths := given.pop("lengths", None)) is not None:
            given["oracle"] = make_oracle(given["oracle"])._keeping(_lengths=lengths)
        if self.fixed.get("generator", given) is None:  # of a deterministic estimator
            given["generator"] = torch.Generator()
        try:
            result: Tensor = with_plain_default(self.kind.function, (), given)
            return result
        except Exception as error:
            explain(self.kind.function.__name__, self.kind.function, (), given, error)


@functools.lru_cache(maxsize=256)
def _read(call: str) -> _Call:
    key, names, fixed = json.loads(call, object_hook=_object)
    if key not in KINDS and key.startswith(f"{__name__.partition('.')[0]}."):  # of a module that this process has not needed so far
        importlib.import_module(key.partition(":")[0])
    return _Call(KINDS[key], tuple(names), fixed)


def _with_autograd() -> Any:
    """Inside an operator, where torch has switched off what records derivatives, which some operations ask for on their way."""
    recording = DispatchKeySet(DispatchKey.AutogradFunctionality) | DispatchKeySet(DispatchKey.AutogradOther)
    recording |= DispatchKeySet(DispatchKey.ADInplaceOrView)
    return _ForceDispatchKeyGuard(_dispatch_tls_local_include_set(), _dispatch_tls_local_exclude_set() - recording)


@torch.library.custom_op("structgrad::operation", mutates_args=(), schema="(Tensor[] tensors, float[] numbers, str call) -> Tensor")
def operation(tensors: Sequence[Tensor], numbers: Sequence[float], call: str) -> Tensor:
    """The result of an operation on plain tensors."""
    if forward_ad._current_level >= 0:  # whether these tensors have tangents cannot be seen here, which would be lost
        raise ValueError("a graph got called under torch.func.jvp, jacfwd or forward_ad; expected a plain call: transform what is traced")
    with _with_autograd():
        result = _read(call).run(*(value.detach() for value in tensors), *numbers).contiguous()
    shared = any(result.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() for value in tensors)
    return result.clone() if shared else result


@torch.library.custom_op(
    "structgrad::derivative",
    mutates_args=(),
    schema="(Tensor[] tensors, float[] numbers, Tensor gradient, int[] wanted, str call) -> Tensor[]",
)
def derivative(tensors: Sequence[Tensor], numbers: Sequence[float], gradient: Tensor, wanted: Sequence[int], call: str) -> list[Tensor]:
    """The gradients of an operation in some of its tensors, from that of its result."""
    one = Operation("", lambda *values: (_read(call).run(*values, *numbers),))
    with _with_autograd():
        values = (value.detach() for value in tensors)
        return [each.contiguous().clone() for each in derivative_of(one, len(tensors), wanted, False).run(*values, gradient)]


@operation.register_fake
def _shape(tensors: Sequence[Tensor], numbers: Sequence[float], call: str) -> Tensor:
    one = _read(call)
    given = dict(zip(one.names, tensors, strict=False))
    batches = batch_ndims(given, one.fixed, one.oracle, one.kind.event_ndims)
    # Lengths change no shape. Wrong ones are refused when the graph runs, in one sentence.
    batch = torch.broadcast_shapes(*(value.shape[: batches[name]] for name, value in given.items() if name != "lengths"))
    event = given["scores"].shape[batches["scores"] :]
    if one.kind.gives == "padded":
        event = one.oracle._padded_event(tuple(event))
    if one.kind.gives == "batch":
        return given["scores"].new_empty(batch)
    if one.fixed.get("as_indices"):
        return given["scores"].new_empty((*batch, *one.oracle.index_shape(tuple(event))), dtype=torch.int64)
    return given["scores"].new_empty((*batch, *event))


@derivative.register_fake
def _shapes(tensors: Sequence[Tensor], numbers: Sequence[float], gradient: Tensor, wanted: Sequence[int], call: str) -> list[Tensor]:
    return [tensors[place].new_empty(tensors[place].shape) for place in wanted]


@operation.register_vmap
def _mapped(info: Any, in_dims: tuple[Any, ...], tensors: Sequence[Tensor], numbers: Sequence[float], call: str) -> tuple[Tensor, int]:
    """One more dimension of the batch, behind which all batches get as many dimensions."""
    one, size = _read(call), info.batch_size
    given = dict(zip(one.names, mapped_first(tensors, in_dims[0], size), strict=False))
    given = aligned(given, batch_ndims(given, one.fixed, one.oracle, one.kind.event_ndims), mapped=1)
    return operation([*given.values()], numbers, call), 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.numbers, ctx.call = inputs
    ctx.wanted = [place for place, value in enumerate(tensors) if value.requires_grad]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    found = dict(zip(ctx.wanted, derivative(ctx.saved_tensors, ctx.numbers, gradient, ctx.wanted, ctx.call), strict=True))
    # Torch counts a list of numbers as one input, and an empty list as a list of tensors.
    return [found.get(place) for place in range(len(ctx.saved_tensors))], None if ctx.numbers else [], None


operation.register_autograd(_backward, setup_context=_save)
