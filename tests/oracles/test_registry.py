from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from structgrad.oracles import AVAILABLE_ORACLES, ORACLES, Categorical, Subset, make_oracle, plugins, registry
from structgrad.oracles.options import Configured, kind_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("subset", ("subset", {})),
        (" subset[] ", ("subset", {})),
        ("subset[k=3]", ("subset", {"k": "3"})),
        ("imle[lambda=2.5, noise=gumbel]", ("imle", {"lambda_": "2.5", "noise": "gumbel"})),
        ("a.b:C[x=None,y=(1,2), z='s',w=-1e-3]", ("a.b:C", {"x": "None", "y": "(1,2)", "z": "'s'", "w": "-1e-3"})),
    ],
)
def test_parse(text: str, expected: tuple[str, dict[str, object]]) -> None:
    assert registry.parse(text) == expected


def test_known_names() -> None:
    assert make_oracle("categorical") == Categorical()
    assert make_oracle("structgrad.oracles:Subset[k=2]") == make_oracle("subset[k=2]") == Subset(2)


@dataclass(frozen=True)
class Holder(Configured):
    place: Path
    size: int = 0


def test_readers_read_options_that_hold_objects() -> None:
    assert registry.build("holder[place=/tmp, size=3]", {"holder": Holder}, "thing", {Path: Path}) == Holder(Path("/tmp"), 3)
    with pytest.raises(ValueError, match="`holder` got place=/tmp; expected an object of Path"):
        registry.build("holder[place=/tmp]", {"holder": Holder}, "thing")
    with pytest.raises(ValueError, match="`Holder` got place='/tmp'; expected an object of Path"):
        Holder("/tmp")  # type: ignore[arg-type]


def test_somebodys_own_function_is_read_by_its_defaults() -> None:
    known = {"f": lambda first, *, flag=True, count=2, rest=None: (first, flag, count, rest)}
    assert registry.build("f[first=1.5, flag=false, count=3, rest=x]", known, "thing") == (1.5, False, 3, "x")
    with pytest.raises(ValueError, match="`f` got flag=no; expected true or false"):
        registry.build("f[first=1, flag=no]", known, "thing")
    with pytest.raises(ValueError, match=r"`f` got count=2\.5; expected an integer"):
        registry.build("f[first=1, count=2.5]", known, "thing")


def test_unions_of_the_same_types_in_another_order_read_differently() -> None:
    assert kind_of(int | str).read("5", {}) == 5
    assert kind_of(str | int).read("5", {}) == "5"


# Files and plugins.

FILE = """
from dataclasses import dataclass
from typing import ClassVar
from structgrad.oracles import Subset

@dataclass(frozen=True)
class Pair(Subset):
    'Two of n.'
    k: int = 2
    name: ClassVar[str] = "pair"
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "own.py"
    path.write_text(FILE)
    yield path
    plugins.use(())


def test_a_class_of_a_file(pair: Path) -> None:
    oracle = make_oracle(f"{pair}:Pair[k=3]")
    assert (oracle.name, oracle.k) == ("pair", 3)
    assert type(make_oracle(f"{pair}:Pair")) is type(oracle)


def test_the_names_of_a_file_are_known_while_it_is_in_use(pair: Path) -> None:
    plugins.use([str(pair)])
    assert make_oracle("pair[k=4]").k == 4
    assert list(AVAILABLE_ORACLES) == [*ORACLES, "pair"]
    plugins.use(())
    with pytest.raises(ValueError, match="got the unknown oracle 'pair'"):
        make_oracle("pair")


@pytest.mark.parametrize(
    ("name", "message"),
    [("no.py:X", "no.py: no such Python file"), ("{pair}:No", "defines no 'No'"), ("{pair}:Subset[k=9,x=1]", "unknown option 'x'")],
)
def test_a_file_without_the_class(pair: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_oracle(name.format(pair=pair))
