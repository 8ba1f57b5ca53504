"""Parameters that take seconds to train, kept on disk for the next process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor


def kept(names: tuple[object, ...], train: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``train`` gives, or gave before: for the same names, sources of tasks, and version of torch.

    What cannot be read is trained, and what cannot be written is trained again by the next process. Training is on one thread, because
    sums over several are rounded by their number.
    """
    path = file(names)
    with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
        state: dict[str, Tensor] = torch.load(path, weights_only=True)
        return state
    state = _on_one_thread(train)
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        torch.save(state, written)
        written.replace(path)
    return state


def _on_one_thread(train: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train()
    finally:
        torch.set_num_threads(before)


def file(names: tuple[object, ...]) -> Path:
    """Where it is kept."""
    found = hashlib.blake2b(repr((*names, torch.__version__)).encode(), digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structgrad"
    return folder / f"trained-{found.hexdigest()}.pt"
