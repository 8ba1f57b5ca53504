"""The page of the speed table."""

from __future__ import annotations

from pathlib import Path

import pytest

from structgrad.suites.speed.comparison import SpeedComparison
from structgrad.suites.speed.grid import to_frame
from structgrad.suites.studies.speed_page import main, page

RESULTS = [
    SpeedComparison("subset 20/5", "argmax", 1, "hot", {"structgrad": 2e-5, "torch": 5e-6}, floor=1e-6),
    SpeedComparison("subset 20/5", "argmax", 64, "hot", {"structgrad": 1e-3, "torch": 4e-3}, floor=1e-4),
    SpeedComparison("subset 20/5", "sample", 64, "hot", {"structgrad": 3e-3}, floor=1e-4),
    SpeedComparison("alignment 32x32", "argmax", 64, "hot", {"structgrad": 1e-3, "synjax": 9e-3}, floor=1e-4),
    SpeedComparison("alignment 32x32", "argmax", 64, "training", {"structgrad": 1e-3, "synjax": 16e-3}, floor=1e-4),
    SpeedComparison("alignment 32x32", "marginals", 64, "hot", {"synjax": 9e-3}, floor=1e-4, failures={"structgrad": "no memory"}),
]


def test_a_page_says_who_is_faster_where_and_by_how_much() -> None:
    text = page(RESULTS, "On two processors.")
    assert "On two processors." in text
    assert "| argmax | 0.25* (1) | 6.0 (2) |" in text, "geometric means of 4 and 9, and a peer that is faster"
    assert "| argmax | 16 (1) |" in text.replace("– | ", "")
    assert "In 1 of 4 rows that have a peer" in text
    assert "| subset 20/5 | argmax | 1 | hot | 0.0200 | torch | 0.00500 | 0.25 |" in text
    assert "| argmax | 0.0200 | 0.25 | torch | 20 | 1 | 4.0 | torch | 10 |" in text
    assert "| sample | – | – | – | – | 3 | – | – | 30 |" in text
    assert "| marginals |" not in text, "what failed has no time"


def test_nowhere_is_said() -> None:
    assert "Nowhere: of 2 rows that have a peer, ours is the fastest in all." in page(RESULTS[3:5])


def test_the_command_reads_what_the_table_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv = tmp_path / "speed.csv"
    to_frame(RESULTS).to_csv(csv, index=False)
    main([str(csv)])
    assert capsys.readouterr().out == page(RESULTS)
    main([str(csv), "--to", str(tmp_path / "page.md"), "--made", "Here."])
    assert (tmp_path / "page.md").read_text() == page(RESULTS, "Here.")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.csv")])
    assert "found no timings in" in capsys.readouterr().err
