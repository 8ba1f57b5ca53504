"""Results that are computed once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from structgrad.suites.tasks.references import cache_file, cached


def never() -> dict[str, Tensor]:
    return pytest.fail("computed again")


def state(value: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor([value])}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"not parameters", b"PK\x03\x04"])
def test_results_are_read_by_their_names(content: bytes | None) -> None:
    """A file that cannot be read is written again, and no other file is left."""
    if content is not None:
        cache_file(("a", 1)).parent.mkdir(parents=True)
        cache_file(("a", 1)).write_bytes(content)
    assert cached(("a", 1), lambda: state(0.1)) == state(0.1)
    assert cached(("a", 1), never) == state(0.1)
    assert cached(("a", 2), lambda: state(0.2)) == state(0.2)
    assert {path.suffix for path in cache_file(("a", 1)).parent.iterdir()} <= {".pt", ".lock"}


def test_results_that_cannot_be_written_are_computed_again(tmp_path: Path) -> None:
    (tmp_path / "structgrad").write_text("no folder")
    assert cached(("a",), lambda: state(0.4)) == state(0.4)
    assert cached(("a",), lambda: state(0.5)) == state(0.5)


def test_results_are_computed_on_one_thread() -> None:
    """The number of threads does not change the parameters."""
    before, threads = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        cached(("a",), lambda: threads.append(torch.get_num_threads()) or state(0.6))
        assert (threads, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
