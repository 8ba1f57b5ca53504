"""A treebank that is written by hand: every sentence is one of a few patterns with words of its own."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from structgrad.suites.tasks.language.treebank import HELD_OUT, TRAINED

PATTERNS = (
    (("DET", 2, "det"), ("NOUN", 3, "nsubj"), ("VERB", 0, "root"), ("NOUN", 3, "obj")),
    (("VERB", 0, "root"), ("DET", 3, "det"), ("NOUN", 1, "obj"), ("ADV", 1, "advmod:x"), ("PUNCT", 1, "punct")),
    (("NOUN", 2, "nsubj"), ("VERB", 0, "root"), ("ADV", 2, "advmod"), ("PUNCT", 2, "punct")),
    (("NOUN", 2, "compound"), ("NOUN", 3, "nsubj"), ("VERB", 0, "root"), ("DET", 5, "det"), ("NOUN", 3, "obj")),
)


def write(folder: Path, *, train: int = 60, test: int = 20) -> None:
    """The files of a treebank, with these numbers of sentences."""
    generator = np.random.default_rng(0)
    (folder / "conllu").mkdir()
    (folder / TRAINED).write_bytes(gzip.compress(_text(generator, train).encode()))
    (folder / HELD_OUT).write_text(_text(generator, test))


def _text(generator: np.random.Generator, count: int) -> str:
    sentences = []
    for _ in range(count):
        rows = enumerate(PATTERNS[generator.integers(len(PATTERNS))], 1)
        lines = [f"{i}\t{tag.lower()}{generator.integers(9)}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for i, (tag, head, name) in rows]
        sentences.append("\n".join(["# text", *lines]))
    return "\n\n".join(sentences) + "\n\n"
