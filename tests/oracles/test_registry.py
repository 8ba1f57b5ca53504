from __future__ import annotations

import pytest

from structgrad.oracles import Categorical, LinearChain, Subset, make_oracle, registry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("subset", ("subset", {})),
        (" subset[] ", ("subset", {})),
        ("subset[k=3]", ("subset", {"k": 3})),
        ("imle[lambda=2.5, noise=gumbel]", ("imle", {"lambda_": 2.5, "noise": "gumbel"})),
        ("a.b:C[x=None,y=True, z='s',w=-1e-3]", ("a.b:C", {"x": None, "y": True, "z": "s", "w": -1e-3})),
    ],
)
def test_parse(text: str, expected: tuple[str, dict[str, object]]) -> None:
    assert registry.parse(text) == expected


@pytest.mark.parametrize("text", ["", "a b", "subset[k=3", "subset]", "subset[k=3]x", "sub-set"])
def test_a_name_that_does_not_parse(text: str) -> None:
    with pytest.raises(ValueError, match=r"got the name '.*'; expected `name` or `name\[option=value,...\]`"):
        registry.parse(text)


@pytest.mark.parametrize("text", ["subset[3]", "subset[=3]", "subset[k=3, ]"])
def test_an_option_that_does_not_parse(text: str) -> None:
    with pytest.raises(ValueError, match=r"got the option '.*' in 'subset\[.*\]'; expected `option=value`"):
        registry.parse(text)


def test_known_names() -> None:
    assert make_oracle("categorical") == Categorical()
    assert make_oracle("subset[k=3]") == Subset(3)
    assert make_oracle("linear_chain") == LinearChain()
    assert make_oracle("structgrad.oracles:Subset[k=2]") == Subset(2)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"got the unknown oracle 'linear_chian'; did you mean linear_chain\?"):
        make_oracle("linear_chian")


def test_a_strange_name_gets_the_list() -> None:
    with pytest.raises(ValueError, match="got the unknown oracle 'qqq'; expected one of categorical, categories, subset, linear_chain"):
        make_oracle("qqq")


def test_an_option_that_the_constructor_refuses() -> None:
    with pytest.raises(ValueError, match=r"oracle 'subset\[m=3\]': got the unknown option 'm'; expected one of k"):
        make_oracle("subset[m=3]")
    with pytest.raises(ValueError, match=r"oracle 'categorical\[m=3\]': got 'm'; it takes no options"):
        make_oracle("categorical[m=3]")
    with pytest.raises(ValueError, match=r"oracle 'subset' lacks an option; expected subset\[k=\.\.\.\]"):
        make_oracle("subset")
    with pytest.raises(ValueError, match="`Subset` got k=0; expected an integer of at least 1"):
        make_oracle("subset[k=0]")


@pytest.mark.parametrize("name", ["no_such_module:X", "math:no_such_name", ".relative:X", ":X"])
def test_a_module_that_cannot_be_imported(name: str) -> None:
    with pytest.raises(ValueError, match=f"got the oracle '{name}'; could not import it: "):
        make_oracle(name)


@pytest.mark.parametrize("name", ["math:pi", "collections:OrderedDict"])
def test_something_that_is_no_oracle(name: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}', a .*; expected an oracle"):
        make_oracle(name)


def test_readers_read_options_that_are_no_literals() -> None:
    readers = {"noise": str.upper, "size": str.upper, "absent": str.upper}
    built = registry.build("dict[noise=gumbel, size=3]", {"dict": dict}, "thing", readers)
    assert built == {"noise": "GUMBEL", "size": 3}
