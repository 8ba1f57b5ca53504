"""The page of costs: measured at small sizes, and written from made-up numbers."""

import importlib
import itertools
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[2] / ".ci"))
costs_page = importlib.import_module("costs_page")


def test_tables_are_printed_for_given_structures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_page, "ROUNDS", 1)
    costs_page.main(["-p", "tied_chain[n=3,t=2]", "-p", "subset[n=5,k=2]", "-e", "exact", "-e", "reinmax", "--batch", "3"])
    milliseconds, ratios, megabytes = capsys.readouterr().out.split("\n\n")
    assert milliseconds.startswith("| estimator | `tied_chain[n=3,t=2]` | `subset[n=5,k=2]` |")
    assert "| `ste` | 1, " in ratios
    for text in (milliseconds, ratios, megabytes):
        assert "| `reinmax` | – | – |" in text
        assert text.count("–") == 2


def test_the_page_is_written_from_numbers() -> None:
    names = [*costs_page.ESTIMATORS, *(f"sparsemap, {level}" for level in costs_page.OTHER_LEVELS), costs_page.ENCODER]
    frame = pd.DataFrame(itertools.product(costs_page.STRUCTURES, names), columns=["structure", "estimator"])
    frame = frame.assign(seconds=0.002, rounds=20, bytes=1e6, ste=1.0, structured_attention=1.0)
    frame.loc[frame["estimator"] == "encoder", ["seconds", "rounds"]] = 0.1, 3
    frame.loc[frame["estimator"] == "unordered_set", "seconds"] = math.inf
    text = costs_page.page(frame)
    assert "unordered_set` is too slow for spanning trees**: more than 10,000 ms." in text
    assert "| `encoder` | 100* |" in text
    assert "nan" not in text


@pytest.mark.parametrize("words", ["--to docs -e ste", "-e rlooo", "-p sub[n=5]", "-p subset[n=5,k=2] --batch 0"])
def test_bad_input_is_one_sentence(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        costs_page.main(words.split())
    assert "costs_page.py: error: got " in capsys.readouterr().err
