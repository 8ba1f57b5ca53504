"""Score tensors from files: `.npz` without pickles and `.safetensors`."""

import contextlib
import difflib
import math
import re
import warnings
import zipfile
import zlib
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...oracles import LinearChain, TiedChain, TiedSemiMarkov
from ...oracles.capabilities import Oracle
from ...oracles.derivations import DerivedOracle, Examples
from ...oracles.registry import unknown
from ..trust import LARGEST_ARRAYS, check_archive, check_size
from .regimes import FileItems
from .sized import oracle_of_arrays

Arrays = dict[str, np.ndarray]

ARRAYS = ("scores", "transition", "start", "end", "gold", "lengths")  # the options of a `ScoreFile` that name an array

_CORRUPT = (OSError, EOFError, ValueError, KeyError, MemoryError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_arrays(path: str | Path) -> Arrays:
    """All arrays of a `.npz` or `.safetensors` file by key. Pickles are refused: loading one can run any code.

    Half precision of a `.safetensors` file comes as float32, because NumPy has no bfloat16.
    """
    file = Path(path)
    if file.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{file}: got a file of kind {file.suffix or 'none'!r}; expected .npz or .safetensors")
    if not file.is_file():
        raise ValueError(f"{file}: no such file; expected the path of an .npz or .safetensors file")
    read, library = (_read_npz, "numpy.savez") if file.suffix == ".npz" else (_read_safetensors, "safetensors")
    try:
        return read(file)
    except _RefusedFileError as error:
        raise ValueError(f"{file}: {error}") from error.__cause__
    except _CORRUPT as error:
        raise ValueError(f"{file}: damaged or cut off ({error}); save it again with {library}") from error


class _RefusedFileError(ValueError):
    """A complete file that is refused."""


def _read_npz(file: Path) -> Arrays:
    if not zipfile.is_zipfile(file):
        raise _RefusedFileError("not an .npz archive, or cut off; save it again with numpy.savez")
    arrays: Arrays = {}
    with file.open("rb") as stream:
        check_archive(stream)
        with np.load(stream, allow_pickle=False) as archive:
            for key in archive.files:
                if archive.files.count(key) > 1:
                    raise _RefusedFileError(f"has the key {key!r} twice; expected each key once, save it again")
                try:
                    arrays[key] = archive[key]
                except ValueError as error:
                    if "allow_pickle" not in str(error):
                        raise
                    raise _RefusedFileError(
                        f"{key!r} is an object array, a pickle, and pickles are refused since loading one can run any code; "
                        "pad the items to one shape and save them as a float array with an integer array of lengths"
                    ) from None
                if not isinstance(arrays[key], np.ndarray):
                    raise _RefusedFileError(f"{key!r} is not an array; expected an archive that numpy.savez wrote")
    return arrays


def _read_safetensors(file: Path) -> Arrays:
    try:
        import safetensors.torch
    except ImportError as error:
        raise _RefusedFileError("reading it needs the package safetensors; install it with `pip install 'structgrad[data]'`") from error
    check_size(file, LARGEST_ARRAYS)
    try:
        tensors = safetensors.torch.load_file(file)  # which also checks the length of the header
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    kept = (torch.float32, torch.float64)
    return {
        key: np.asarray((tensor.float() if tensor.is_floating_point() and tensor.dtype not in kept else tensor).numpy())
        for key, tensor in tensors.items()
    }


COUNTED = {  # the units of lengths of items, for oracles that do not declare them
    "linear_chain": "positions",
    **dict.fromkeys(("spanning_tree", "projective_tree"), "words (the root is none)"),
    **dict.fromkeys(("constituency", "shift_reduce"), "tokens"),
    "alignment": "rows and columns",
    "assignment": "rows",
    "categories": "categories",
}

LENGTH_NAME = re.compile(r"((seq|sequence)_)?len(gth)?s?|sizes?|n|num_words|masks?", re.IGNORECASE)  # of lengths or masks


class PaddingWarning(UserWarning):
    """A warning about a file whose items seem to be padded, and that is read without their lengths."""


def counted_by(oracle: Oracle) -> str:
    """The unit of the length of an item of this oracle."""
    return COUNTED.get(oracle.name, (oracle.examples if isinstance(oracle, DerivedOracle) else Examples()).counted)


@dataclass(frozen=True)
class ScoreFile:
    """A user's own scores: the arrays of a file by their meaning. The first axis of each counts items, except transition, start and end.

    Scores have the layout of the oracle's operations. For example, index 0 of a tree's ``[n + 1, n + 1]`` is the root.

    Attributes:
        path: `.npz` or `.safetensors`.
        oracle: name with options, ``subset[k=3]``.
        scores: key of ``[items, *event]``; for a linear chain also of unary scores ``[items, n, t]``.
        transition, start, end: keys of ``[t, t]`` (previous, next), ``[t]`` and ``[t]`` that go with unary scores; 0 when None.
        gold: key of the gold structures: ``[items, *event]`` of 0/1, padded as the scores are, or their indices (see `Oracle.dense`): tags
            of chains ``[items, n]``, classes ``[items]``. When None, gold is one exact sample of each item (its best structure if the
            oracle does not sample).
        lengths: key of ``[items]`` integers, the sizes of items without padding. Units: positions of a chain, words of a dependency tree
            (without the root), tokens of a constituency tree or a derivation, rows of a permutation, categories, else parts. Alignments
            have ``[items, 2]``, rows and columns. An item is cut to its own size. When None, items have no padding.
        meaning: ``score`` (higher is better) or ``cost`` (negated).
        temperature: divides the scores; above 1 softens.
        loss: a key of `LOSSES` other than ``downstream``.
        instances: number of items, spread evenly by length; all when None.
        seed: of drawn gold structures and of random losses.
    """

    path: str
    oracle: str = "linear_chain"
    _: KW_ONLY
    scores: str = "scores"
    transition: str | None = None
    start: str | None = None
    end: str | None = None
    gold: str | None = None
    lengths: str | None = None
    meaning: Literal["score", "cost"] = "score"
    temperature: float = 1.0
    loss: str = "quadratic"
    instances: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.meaning not in ("score", "cost"):
            raise ValueError(f"`ScoreFile`: {unknown(str(self.meaning), ('score', 'cost'), 'meaning')}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"`ScoreFile` got temperature={self.temperature}; expected a finite number above 0")

    @property
    def problem(self) -> str:
        """The name of its problem, without ``@``, which would begin the name of a loss."""
        return Path(self.path).stem.replace("@", "-")


class ScoreTables(FileItems):
    """The items of a `ScoreFile`, checked and read one by one."""

    def __init__(self, file: ScoreFile) -> None:
        self.file, self.oracle = file, oracle_of_arrays(file.oracle)
        self.name, self.seed, self.source, self.default_loss = file.problem, file.seed, Path(file.path).name, file.loss
        if isinstance(self.oracle, TiedChain):
            raise ValueError(
                f"got a score file with the oracle {file.oracle!r}; expected 'linear_chain', which takes unary scores [items, n, t] and a "
                "transition matrix [t, t] from a file"
            )
        if isinstance(self.oracle, TiedSemiMarkov) and file.lengths is not None:
            raise ValueError(
                f"got a score file of {file.oracle!r} with lengths={file.lengths!r}; expected items of one size, in whose padding no "
                "transitions lie: write a file for each length"
            )
        self.arrays = read_arrays(file.path)
        array = self._array(file.scores)
        self._unary = isinstance(self.oracle, LinearChain) and array.ndim == 3
        dims = 2 if self._unary else self.oracle.event_ndim
        if array.ndim != dims + 1 or 0 in array.shape:
            raise ValueError(f"key {file.scores!r} has shape {array.shape}; expected [items, *event] with {dims} event dimension(s)")
        tags = array.shape[-1]
        for name, shape in (("transition", (tags, tags)), ("start", (tags,)), ("end", (tags,))):
            key = getattr(file, name)
            if key is not None and not self._unary:
                raise ValueError(f"`ScoreFile` got {name}={key!r}; expected it only with unary scores [items, n, t] of a linear chain")
            if key is not None and self._array(key).shape != shape:
                raise ValueError(f"key {key!r} has shape {self._array(key).shape}; expected {shape}")
        self._event = (*array.shape[1:], tags) if self._unary else array.shape[1:]
        try:
            self.oracle.check_event("ScoreFile", self._event)
        except ValueError as error:
            raise ValueError(f"key {file.scores!r} has shape {array.shape}: {error}") from error
        self.lengths = self._read_lengths(len(array))
        gold = None if file.gold is None else self._array(file.gold)
        if gold is not None and (gold.dtype.kind not in "fiub" or gold.shape[:1] != (len(array),)):
            raise ValueError(f"key {file.gold!r} has shape {gold.shape} and dtype {gold.dtype}; expected {len(array)} entries of numbers")
        if file.lengths is None and array.dtype.kind in "fiu":
            self._warn_of_padding(array)

    def item_name(self, index: int) -> str:
        return str(index)

    def scores(self, index: int, stage: str = "file") -> Tensor:
        """The float64 scores of an item, [*event]; ValueError for numbers that are no scores, or an item that forbids every structure."""
        file, key, event = self.file, f"{self.file.scores}[{index}]", self._event_of(index)
        stored = self._array(file.scores)[index]
        if self._unary:
            shared = (None if name is None else self._values(self._array(name), name) for name in (file.transition, file.start, file.end))
            transition, start, end = shared
            scores = LinearChain.from_potentials(self._values(stored[: event[0]], key), transition, start=start, end=end)
        else:
            scores = self._values(_corner(stored, event), key)
        # The structure without parts, which some oracles have, is the best one if every part costs something.
        nothing = bool((scores == -math.inf).any()) and not bool(self.oracle.argmax(scores).any())
        if nothing and bool(self.oracle.argmax(torch.full_like(scores, -1)).any()):
            raise ValueError(
                f"key {key!r} forbids every structure of {self.oracle}; expected an item with a structure of parts "
                "above -inf, leave this one out or mend its scores"
            )
        return scores

    def gold(self, index: int) -> Tensor:
        """The gold structure of an item, or a sample if the file has none: float64 0/1 [*event]."""
        if self.file.gold is None:
            return self.sampled(index, self.scores(index))
        stored = np.asarray(self._array(self.file.gold)[index])
        event = self._event_of(index)
        structure: Tensor | None = None
        # Of any dtype and byte order; torch compares no unsigned integers of more than 8 bits.
        entry = torch.from_numpy(stored.astype(np.float64 if stored.dtype.kind == "f" else np.int64))
        if entry.ndim == len(event):
            structure = _corner(entry.double(), event)
        elif not entry.is_floating_point() and entry.ndim == len(shape := self.oracle.index_shape(event)):
            with contextlib.suppress(ValueError):
                structure = self.oracle.dense(_corner(entry, shape), event, dtype=torch.float64)
        # A 0/1 tensor z is a structure exactly if no structure agrees with it in more entries than itself.
        if structure is None or tuple(structure.shape) != event or not torch.equal(self.oracle.argmax(2 * structure - 1), structure):
            raise ValueError(
                f"key {self.file.gold!r} holds an entry of shape {stored.shape} for item {index} that is no structure of {self.oracle}; "
                f"expected 0/1 of shape {event}, or tag indices of a chain, or the index of a category"
            )
        return structure

    def _array(self, key: str) -> np.ndarray:
        if key in self.arrays:
            return self.arrays[key]
        option = next(name for name in ARRAYS if getattr(self.file, name) == key)
        there = ", ".join(f"{name!r} {array.shape}" for name, array in self.arrays.items()) or "none"
        (name,) = difflib.get_close_matches(key, self.arrays, n=1) or ["NAME"]
        raise ValueError(
            f"found no array {key!r} for {option}, the file has {there}; name one by --field {option}={name} "
            f"(`ScoreFile({option}=...)` in Python)"
        )

    def _values(self, array: np.ndarray, key: str) -> Tensor:
        """Numbers of the file as float64 scores: costs negated, divided by the temperature."""
        if array.dtype.kind not in "fiu":
            raise ValueError(f"key {key!r} has dtype {array.dtype}; expected floating-point numbers or integers")
        sign = -1.0 if self.file.meaning == "cost" else 1.0
        values: Tensor = sign / self.file.temperature * torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape))
        bad = ~(values < math.inf)
        if bool(bad.any()):
            index = tuple(int(i) for i in bad.nonzero()[0])
            allowed = "finite costs, or +inf for a forbidden part" if sign < 0 else "finite scores, or -inf for a forbidden part"
            raise ValueError(f"key {key!r} holds {array[index]} at index {index}; expected {allowed}")
        return values

    def _event_of(self, index: int) -> tuple[int, ...]:
        if self.file.lengths is None:
            return self._event
        inside = self.oracle.length_mask(self._event, torch.as_tensor(self.lengths[index])).expand(self._event)
        return tuple(int(places.max()) + 1 for places in inside.nonzero().unbind(1))

    def _read_lengths(self, items: int) -> np.ndarray:
        limits = self.oracle.length_limits(self._event)
        one = () if len(limits) == 1 else (len(limits),)
        if self.file.lengths is None:
            return np.full((items, *one), limits if one else limits[0], dtype=np.int64)
        lengths = self._array(self.file.lengths)
        if lengths.shape != (items, *one) or lengths.dtype.kind not in "iu" or not bool(((lengths >= 1) & (lengths <= limits)).all()):
            wanted = f"{items} integers" if not one else f"{items} rows of {len(limits)} integers"
            allowed = " and ".join(f"1 to {limit}" for limit in limits)
            values = f" and values from {lengths.min()} to {lengths.max()}" if lengths.dtype.kind in "iu" and lengths.size else ""
            raise ValueError(
                f"key {self.file.lengths!r} has shape {lengths.shape}, dtype {lengths.dtype}{values}; expected {wanted} from {allowed}, "
                f"how many {counted_by(self.oracle)} each item has"
            )
        return lengths.astype(np.int64)

    def _warn_of_padding(self, array: np.ndarray) -> None:
        """Warn if items seem to be padded and no field names their lengths."""
        named = {getattr(self.file, option) for option in ARRAYS}
        limits = self.oracle.length_limits(self._event)
        unnamed: dict[str, str] = {}
        for key, other in sorted(self.arrays.items(), key=lambda item: item[1].ndim):  # lengths before masks
            lengths = other.shape == self.lengths.shape and other.dtype.kind in "iu"
            mask = not lengths and other.ndim > 1 and len(other) == len(array) and other.dtype.kind in "iub" and not other.all()
            # Rows of ones with zeros behind them.
            mask = mask and bool((other <= 1).all() and (np.diff(other.astype(np.int64), axis=-1) <= 0).all())
            if key not in named and LENGTH_NAME.fullmatch(key) and ((lengths and ((other >= 1) & (other < limits)).any()) or mask):
                unnamed[key] = key if lengths else "NAME"
        values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
        scores = values.unsqueeze(-1).expand(-1, *self._event) if self._unary else values
        padded, read = torch.zeros(len(scores), dtype=torch.bool), self.oracle.read_mask(self._event)
        for axis, limit in enumerate(limits):
            # Items whose last parts along an axis are all one number, and not all the others. One part alone shows nothing.
            shorter = torch.tensor(limits)
            shorter[axis] = limit - (2 if len(self._event) == 1 else 1)
            if int(shorter[axis]) < 1:
                continue
            outside = ~self.oracle.length_mask(self._event, shorter if len(limits) > 1 else shorter[0]).expand(self._event) & read
            if int(outside.sum()) > 1:
                last, others = scores[:, outside], scores[:, read & ~outside]
                same = ((last == last[:, :1]) | (last.isnan() & last[:, :1].isnan())).all(-1)  # NaN stands for padding too
                padded |= same & (others != last[:, :1]).any(-1)
        items = padded.nonzero().flatten().tolist()
        signs = [f"{len(items)} of {len(array)} items, such as {item}, end in parts of one value" for item in items[:1]]
        signs += [f"the array {key!r} is named by no field" for key in list(unnamed)[:1]]
        if signs:
            warnings.warn(
                f"{self.file.path}: {' and '.join(signs)}: possible padding is measured as scores; if it is padding, name an "
                f"array of integers, how many {counted_by(self.oracle)} each item has, by --field lengths={[*unnamed.values(), 'NAME'][0]} "
                "(`ScoreFile(lengths=...)` in Python)",
                PaddingWarning,
                stacklevel=2,
            )


def _corner(values: Any, size: tuple[int, ...]) -> Any:
    return values[tuple(map(slice, size))]
