from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Oracle, Subset
from structgrad.suites.problems.score_files import Convention, ScoreFile, ScoreTables, as_scores, as_values, read_arrays

RANDOM = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {"scores": RANDOM.standard_normal((3, 4)), "lengths": np.array([2, 3, 4]), "words": np.array(["a", "bc", "d"])}


@dataclass(frozen=True)
class Matrix(Oracle):
    """An oracle of square scores under any name, to see which flags are accepted for it."""

    name: ClassVar[str] = "spanning_tree"
    event_ndim: ClassVar[int] = 2

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return (sizes["length"],) * 2

    def count(self, event_shape: tuple[int, ...]) -> int:
        return 1

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if event_shape[0] != event_shape[1]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + 1, n + 1)")

    def _argmax(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows)


@dataclass(frozen=True)
class Spans(Matrix):
    name: ClassVar[str] = "constituency"


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "file.npz", **arrays)
    return folder / "file.npz"


# Reading.


def test_npz_comes_back_as_it_was(tmp_path: Path) -> None:
    read = read_arrays(saved(tmp_path, **ARRAYS))
    assert list(read) == list(ARRAYS)
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(read[key], array)
        assert read[key].dtype == array.dtype


def test_compressed_npz_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    np.testing.assert_array_equal(read_arrays(str(tmp_path / "a.npz"))["scores"], ARRAYS["scores"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_safetensors_come_back_in_a_dtype_that_numpy_knows(tmp_path: Path, dtype: torch.dtype) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensor = torch.tensor([[1.5, -2.0, 3.25]]).to(dtype)
    safetensors.save_file({"scores": tensor}, tmp_path / "a.safetensors")
    read = read_arrays(tmp_path / "a.safetensors")["scores"]
    assert read.dtype == {torch.float64: np.float64, torch.int64: np.int64}.get(dtype, np.float32)
    np.testing.assert_array_equal(read, tensor.double().numpy())


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scores\.pt: got a file of kind '\.pt'; expected \.npz or \.safetensors"):
        read_arrays(tmp_path / "scores.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.npz: no such file; expected the path of an \.npz or \.safetensors file"):
        read_arrays(tmp_path / "none.npz")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(ValueError, match=r"a\.npz: no such file"):
        read_arrays(tmp_path / "a.npz")


class Trap:
    """Its unpickling would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def test_an_object_array_is_refused_and_not_run(tmp_path: Path) -> None:
    trap = np.empty(1, dtype=object)
    trap[0] = Trap(tmp_path / "mark")
    path = saved(tmp_path, good=np.zeros(2), bad=trap)
    with pytest.raises(
        ValueError, match=r"file\.npz: 'bad' is an object array, a pickle, and pickles are refused .*pad the items .*lengths"
    ):
        read_arrays(path)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_under_another_name_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(ValueError, match=r"file\.npz: not an \.npz archive"):
        read_arrays(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00"])
def test_another_kind_of_content_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: not an \.npz archive, or cut off; save it again with numpy\.savez"):
        read_arrays(tmp_path / "a.npz")


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(ValueError, match=r"a\.npz: 'notes\.txt' is not an array; expected an archive that numpy\.savez wrote"):
        read_arrays(tmp_path / "a.npz")


def test_every_cut_of_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = saved(tmp_path, **ARRAYS).read_bytes()
    cut = tmp_path / "cut.npz"
    for size in range(0, len(whole) - 1, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"^\S*cut\.npz: .*cut off"):
            read_arrays(cut)


def complaint(path: Path) -> str:
    try:
        read_arrays(path)
    except ValueError as error:
        return str(error)
    return ""


def test_damaged_bytes_are_refused_in_one_sentence_or_harmless(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    whole = (tmp_path / "a.npz").read_bytes()
    complaints = []
    for place in range(0, len(whole), 5):
        (tmp_path / "a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        complaints.append(complaint(tmp_path / "a.npz"))
    assert all(text.startswith(f"{tmp_path}/a.npz: ") for text in complaints if text)
    assert sum(map(bool, complaints)) > len(complaints) // 2


@pytest.mark.parametrize("keep", [0, 4, 20, 60])
def test_a_cut_safetensors_file_is_refused(tmp_path: Path, keep: int) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"scores": torch.zeros(4, 4)}, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.safetensors: damaged or cut off \(.*\); save it again with safetensors"):
        read_arrays(tmp_path / "a.safetensors")


def test_a_missing_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"")
    ordinary = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("safetensors"):
            raise ImportError(name)
        return ordinary(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"a\.safetensors: reading it needs the package safetensors; .*`pip install 'structgrad\[data\]'`"):
        read_arrays(tmp_path / "a.safetensors")


# Conventions.


@pytest.mark.parametrize(
    ("flag", "value", "hint"),
    [
        ("meaning", "scores", "did you mean score"),
        ("transition_axes", "previous", "did you mean previous_next"),
        ("root", "zero", "expected one of first, diagonal"),
        ("spans", "open", "expected one of inclusive, exclusive"),
    ],
)
def test_an_unknown_flag_value_is_refused(flag: str, value: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"`Convention`: got the unknown {flag} '{value}'; {hint}"):
        Convention(**{flag: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_is_a_positive_number(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"`Convention` got temperature=.*; expected a finite number above 0"):
        Convention(temperature=temperature)


FLAGS = {
    "transition_axes": ("next_previous", "linear_chain"),
    "root": ("diagonal", "spanning_tree and projective_tree"),
    "spans": ("exclusive", "constituency"),
}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("oracle", [Categorical(), Subset(2), LinearChain(), Matrix(), Spans()], ids=lambda oracle: str(oracle.name))
def test_a_flag_that_does_not_apply_is_refused(flag: str, oracle: Oracle) -> None:
    value, names = FLAGS[flag]
    convention = Convention(**{flag: value})  # type: ignore[arg-type]
    if oracle.name in names:
        convention.check(oracle)
        return
    message = f"`Convention` got {flag}='{value}' for the oracle {oracle.name}; it applies to {names} only, leave it out"
    with pytest.raises(ValueError, match=message):
        as_scores(np.zeros((4, 4)), oracle, convention)


def test_costs_are_negated_and_divided_by_the_temperature() -> None:
    array = np.array([1.0, -2.0, np.inf], dtype=np.float32)
    values = as_values(array, Convention(meaning="cost", temperature=4.0), key="costs")
    assert values.dtype == torch.float64
    assert values.tolist() == [-0.25, 0.5, -np.inf]
    assert as_values(array[:2], Convention(temperature=0.5), key="scores").tolist() == [2.0, -4.0]
    assert as_values(np.array([3, 4]), Convention(), key="scores").tolist() == [3.0, 4.0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_key_and_first_index(value: float) -> None:
    array = np.zeros((2, 3, 4))
    array[1, 0, 2] = array[1, 2, 3] = value
    array[0, 0, 0] = -np.inf
    with pytest.raises(
        ValueError, match=rf"key 'arc' holds {value} at index \(1, 0, 2\); expected finite scores, or -inf for a forbidden part"
    ):
        as_scores(array, Categorical(), Convention(), key="arc")


def test_a_cost_of_minus_infinity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"key 'costs' holds -inf at index \(1,\); expected finite costs, or \+inf for a forbidden part"):
        as_values(np.array([0.0, -np.inf]), Convention(meaning="cost"), key="costs")


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([True]), np.array([1j])])
def test_other_kinds_of_numbers_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=f"key 'scores' has dtype {array.dtype}; expected floating-point numbers or integers"):
        as_scores(array, Categorical(), Convention())


def test_transitions_are_turned_to_previous_next() -> None:
    array = RANDOM.standard_normal((2, 3, 4, 4))
    turned = as_scores(array, LinearChain(), Convention(transition_axes="next_previous"))
    for b, i, p, c in np.ndindex(*array.shape):
        assert float(turned[b, i, p, c]) == array[b, i, c, p]


def test_roots_on_the_diagonal_come_first() -> None:
    array = RANDOM.standard_normal((2, 3, 3))
    arcs = as_scores(array, Matrix(), Convention(root="diagonal"))
    assert arcs.shape == (2, 4, 4)
    for b, h, m in np.ndindex(2, 4, 4):
        expected = -np.inf if m in (0, h) else array[b, m - 1, m - 1] if h == 0 else array[b, h - 1, m - 1]
        assert float(arcs[b, h, m]) == expected


def test_exclusive_spans_become_inclusive() -> None:
    array = RANDOM.standard_normal((5, 5))
    spans = as_scores(array, Spans(), Convention(spans="exclusive"))
    assert spans.shape == (4, 4)
    for i in range(4):
        for j in range(i, 4):
            assert float(spans[i, j]) == array[i, j + 1]


def test_the_default_convention_changes_nothing() -> None:
    array = RANDOM.standard_normal((2, 3, 4, 4))
    np.testing.assert_array_equal(as_scores(array, LinearChain(), Convention()).numpy(), array)


@pytest.mark.parametrize(
    ("shape", "oracle", "message"),
    [
        ((3, 4), LinearChain(), r"key 'scores' has shape \(3, 4\); expected \[\*batch, \*event\] with 3 event dimension\(s\)"),
        ((3, 4, 5), LinearChain(), r"key 'scores' has shape \(3, 4, 5\): .*got event shape \(3, 4, 5\); expected \(n, t, t\)"),
        ((7, 2), Subset(3), r"key 'scores' has shape \(7, 2\): .*got n=2 parts for k=3; expected n >= k"),
        ((7, 0), Categorical(), r"key 'scores' has shape \(7, 0\): got event shape \(0,\); expected at least one part"),
    ],
)
def test_a_wrong_shape_is_refused(shape: tuple[int, ...], oracle: Oracle, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_scores(np.zeros(shape), oracle, Convention())


# Score files.


UNARY, TRANSITION = RANDOM.standard_normal((3, 4, 2)), RANDOM.standard_normal((2, 2))
START, END = RANDOM.standard_normal(2), RANDOM.standard_normal(2)
TAGS = np.array([[0, 1, -1, -1], [1, 1, 0, -1], [0, 0, 1, 1]])
CHAIN = {"unary": UNARY, "transition": TRANSITION, "start": START, "end": END, "tags": TAGS, "lengths": np.array([2, 3, 4])}


def chain_file(path: Path, **options: Any) -> ScoreFile:
    named: dict[str, Any] = {
        "scores": "unary",
        "transition": "transition",
        "start": "start",
        "end": "end",
        "gold": "tags",
        "lengths": "lengths",
    }
    return ScoreFile(str(path), **{**named, **options})


@pytest.mark.parametrize("axes", ["previous_next", "next_previous"])
@pytest.mark.parametrize("meaning", ["score", "cost"])
def test_chain_scores_are_sums_of_potentials(tmp_path: Path, axes: Any, meaning: Any) -> None:
    convention = Convention(meaning=meaning, temperature=2.0, transition_axes=axes)
    tables = ScoreTables(chain_file(saved(tmp_path, **CHAIN), convention=convention))
    assert tables.lengths.tolist() == [2, 3, 4]
    transition = TRANSITION if axes == "previous_next" else TRANSITION.T
    sign = 0.5 if meaning == "score" else -0.5
    for item, length in enumerate((2, 3, 4)):
        scores, gold = tables.scores(item), tables.gold(item)
        assert gold is not None
        assert scores.shape == gold.shape == (length, 2, 2)
        tags = TAGS[item, :length]
        expected = START[tags[0]] + END[tags[-1]] + sum(UNARY[item, i, tags[i]] for i in range(length))
        expected += sum(transition[tags[i - 1], tags[i]] for i in range(1, length))
        assert float((gold * scores).sum()) == pytest.approx(sign * expected)


@pytest.mark.filterwarnings("ignore::structgrad.suites.problems.padding.PaddingWarning")
def test_unary_scores_alone_are_enough(tmp_path: Path) -> None:
    tables = ScoreTables(ScoreFile(str(saved(tmp_path, **CHAIN)), scores="unary"))
    assert tables.gold(0) is None
    assert tables.lengths.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(tables.scores(1)[2, 0].numpy(), UNARY[1, 2])


def test_whole_chain_scores_are_taken_as_they_are(tmp_path: Path) -> None:
    whole = RANDOM.standard_normal((2, 3, 2, 2))
    tables = ScoreTables(ScoreFile(str(saved(tmp_path, scores=whole))))
    np.testing.assert_array_equal(tables.scores(1).numpy(), whole[1])


def test_gold_of_every_form(tmp_path: Path) -> None:
    masks = np.array([[1, 1, 0, 0], [0, 1, 0, 1]])
    path = saved(tmp_path, scores=np.zeros((2, 4)), masks=masks, classes=np.array([2, 0]))
    subset = ScoreTables(ScoreFile(str(path), "subset[k=2]", gold="masks"))
    categorical = ScoreTables(ScoreFile(str(path), "categorical", gold="classes"))
    golds = [subset.gold(0), subset.gold(1), categorical.gold(0), categorical.gold(1)]
    assert [None if gold is None else gold.tolist() for gold in golds] == [[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("oracle", "gold"),
    [
        ("subset[k=2]", np.array([[1, 1, 1, 0], [0, 1, 0, 1]])),
        ("subset[k=2]", np.array([[0.5, 0.5, 1, 0], [0, 1, 0, 1]])),
        ("subset[k=2]", np.array([0, 1])),
        ("subset[k=2]", np.array([[1, 1], [0, 1]])),
        ("categorical", np.array([4, 0])),
        ("categorical", np.array([-1, 0])),
        ("categorical", np.array([1.0, 0.0])),
        ("categorical", np.zeros((2, 2, 2), dtype=np.int64)),
    ],
)
def test_gold_that_is_no_structure_is_refused(tmp_path: Path, oracle: str, gold: np.ndarray) -> None:
    tables = ScoreTables(ScoreFile(str(saved(tmp_path, scores=np.zeros((2, 4)), gold=gold)), oracle, gold="gold"))
    message = r"key 'gold' holds an entry of shape .* for item 0 that is no structure of .*; expected 0/1 of shape \(4,\), or tag indices"
    with pytest.raises(ValueError, match=message):
        tables.gold(0)


@pytest.mark.parametrize("tags", [np.array([[0, 2, 0, 0]] * 3), np.array([[0, 1]] * 3)])
def test_gold_tags_that_do_not_fit_are_refused(tmp_path: Path, tags: np.ndarray) -> None:
    tables = ScoreTables(ScoreFile(str(saved(tmp_path, unary=UNARY, tags=tags)), scores="unary", gold="tags"))
    with pytest.raises(ValueError, match=r"key 'tags' holds an entry of shape .* that is no structure of LinearChain"):
        tables.gold(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scores": "unari"},
            r"^found no array 'unari' for scores, the file has 'unary' \(3, 4, 2\), .*; name one by --field scores=unary \(",
        ),
        (
            {"gold": "heads"},
            r"^found no array 'heads' for gold, the file has .*; name one by --field gold=NAME \(`ScoreFile\(gold=\.\.\.\)`",
        ),
        ({"scores": "lengths"}, r"key 'lengths' has shape \(3,\); expected \[items, \*event\] with 3 event dimension\(s\)"),
        ({"transition": "unary"}, r"key 'unary' has shape \(3, 4, 2\); expected \(2, 2\)"),
        ({"start": "lengths"}, r"key 'lengths' has shape \(3,\); expected \(2,\)"),
        ({"end": "lengths"}, r"key 'lengths' has shape \(3,\); expected \(2,\)"),
        ({"gold": "start"}, r"key 'start' has shape \(2,\) and dtype float64; expected 3 entries of numbers"),
        ({"gold": "words"}, r"key 'words' has shape \(3,\) and dtype <U1; expected 3 entries of numbers"),
        ({"lengths": "start"}, r"key 'start' has shape \(2,\), dtype float64; expected 3 integers from 1 to 4, how many positions each"),
        ({"lengths": "long"}, r"key 'long' has shape \(3,\), dtype int64 and values from 2 to 5; expected 3 integers from 1 to 4"),
        ({"lengths": "empty"}, r"key 'empty' has shape \(3,\), dtype int64 and values from 0 to 4; expected 3 integers from 1 to 4"),
        ({"oracle": "linear_chian"}, "got the unknown oracle 'linear_chian'; did you mean linear_chain"),
        ({"convention": Convention(spans="exclusive")}, r"`Convention` got spans='exclusive' for the oracle linear_chain"),
        ({"oracle": "subset[k=1]", "scores": "flat"}, r"`ScoreFile` got transition='transition'; expected it only with unary scores"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    wrong = {"long": np.array([2, 3, 5]), "empty": np.array([0, 3, 4]), "words": np.array(["a", "b", "c"]), "flat": np.zeros((3, 4))}
    with pytest.raises(ValueError, match=message):
        ScoreTables(chain_file(saved(tmp_path, **CHAIN, **wrong), **options))


def test_spans_of_no_token_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, scores=np.zeros((2, 1, 1)))
    with pytest.raises(
        ValueError, match=r"key 'scores' has shape \(2, 1, 1\): `ScoreFile` got event shape \(0, 0\); expected at least one part"
    ):
        ScoreTables(ScoreFile(str(path), "constituency", convention=Convention(spans="exclusive")))


def test_bad_numbers_are_found_at_their_place_in_the_file(tmp_path: Path) -> None:
    unary = UNARY.copy()
    unary[1, 2, 1] = np.nan
    tables = ScoreTables(chain_file(saved(tmp_path, **{**CHAIN, "unary": unary})))
    tables.scores(0)
    with pytest.raises(ValueError, match=r"key 'unary\[1\]' holds nan at index \(2, 1\)"):
        tables.scores(1)


def test_a_file_of_a_tied_chain_is_one_of_a_chain(tmp_path: Path) -> None:
    np.savez(tmp_path / "tagger.npz", scores=np.zeros((2, 7, 3)))
    with pytest.raises(
        ValueError, match="got a score file with the oracle 'tied_chain'; expected 'linear_chain', which takes unary scores"
    ):
        ScoreTables(ScoreFile(str(tmp_path / "tagger.npz"), "tied_chain"))
