"""Small files of the data of tasks, written by hand: patterns with words and names of their own in every sentence."""

import gzip
from pathlib import Path

import numpy as np

from structgrad.suites.tasks.language.matching import Matching
from structgrad.suites.tasks.language.ner import NamedEntities
from structgrad.suites.tasks.language.treebank import TreebankTask
from structgrad.suites.tasks.speech import SpokenDigits

HEADER = "book\tid\tfr\ten\tlinks\n"

TREES = (
    (("DET", 2, "det"), ("NOUN", 3, "nsubj"), ("VERB", 0, "root"), ("NOUN", 3, "obj")),
    (("VERB", 0, "root"), ("DET", 3, "det"), ("NOUN", 1, "obj"), ("ADV", 1, "advmod:x"), ("PUNCT", 1, "punct")),
    (("NOUN", 2, "nsubj"), ("VERB", 0, "root"), ("ADV", 2, "advmod"), ("PUNCT", 2, "punct")),
    (("NOUN", 2, "compound"), ("NOUN", 3, "nsubj"), ("VERB", 0, "root"), ("DET", 5, "det"), ("NOUN", 3, "obj")),
)

TAGGED = (
    (("Mr", "O"), ("Doe", "B-PER"), ("X", "I-PER"), ("sleeps", "O")),
    (("in", "O"), ("Town", "B-LOC")),
    (("the", "O"), ("Firm", "B-ORG"), ("sells", "O"), ("in", "O"), ("Town", "B-LOC"), (".", "O")),
    (("no", "O"),),  # too short
    (("nothing", "O"), ("here", "O"), ("of", "O"), ("any", "O"), ("kind", "O"), ("at", "O"), ("all", "O")),  # too long
)


def write(folder: Path) -> None:
    """Write the files of all tasks except ListOps."""
    for task in (SpokenDigits, Matching, NamedEntities, TreebankTask):
        (folder / task.files[0]).parent.mkdir(parents=True)
    trained, tested = TreebankTask.files
    generator = np.random.default_rng(0)
    (folder / trained).write_bytes(gzip.compress(_trees(generator, 60).encode()))
    (folder / tested).write_text(_trees(generator, 20))
    trained, tested = NamedEntities.files
    generator = np.random.default_rng(0)
    (folder / trained).write_bytes(gzip.compress(_entities(generator, 80).encode()))
    (folder / tested).write_text(_entities(generator, 30))
    _recordings(folder / SpokenDigits.files[0])
    _alignments(*(folder / name for name in Matching.files))


def _trees(generator: np.random.Generator, count: int) -> str:
    sentences = []
    for _ in range(count):
        rows = enumerate(TREES[generator.integers(len(TREES))], 1)
        lines = [f"{i}\t{tag.lower()}{generator.integers(9)}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for i, (tag, head, name) in rows]
        sentences.append("\n".join(["# text", *lines]))
    return "\n\n".join(sentences) + "\n\n"


def _entities(generator: np.random.Generator, count: int) -> str:
    sentences = []
    for _ in range(count):
        rows = enumerate(TAGGED[generator.integers(len(TAGGED))], 1)
        lines = [f"{i}\t{word if tag == 'O' else word + str(generator.integers(99))}\t{tag}\t-\t-" for i, (word, tag) in rows]
        sentences.append("\n".join(["# text", *lines]))
    return "\n\n".join(sentences) + "\n\n"


def _recordings(path: Path) -> None:
    """Six recordings of each digit, of 10 to 15 frames; the second fifth of the frames shows the digit, the others are random."""
    generator = np.random.default_rng(0)
    digit = np.repeat(np.arange(10), 6)
    lengths = 5 * generator.integers(2, 4, len(digit))
    frames = []
    for label, length in zip(digit, lengths, strict=True):
        shown = np.eye(10)[generator.integers(0, 10, length)]
        shown[length // 5 : 2 * length // 5] = np.eye(10)[label]
        frames.append(shown + 0.1 * generator.standard_normal((length, 10)))
    offsets = np.concatenate([[0], lengths.cumsum()])
    arrays = {"offsets": offsets, "digit": digit.astype(np.int32), "recording": np.tile(np.arange(6), 10)}
    np.savez(path, features=np.concatenate(frames).astype(np.float32), **arrays)


def aligned(story: str, french: str, english: str, links: str) -> str:
    """A row of the table of aligned sentences."""
    return f"{story}\t0\t{french}\t{english}\t{links}\n"


def _alignments(links: Path, parallel: Path) -> None:
    """Sentences of nine words, in order, whose translations are the same words with a letter before."""
    generator = np.random.default_rng(0)
    written = HEADER
    for story, count in (("Any", 30), ("ChatBotte_MasterCat", 6), ("LaVision_TheVision", 12)):
        for _ in range(count):
            words = [f"w{number}" for number in generator.choice(60, 9, replace=False)]
            written += aligned(story, " ".join(words), " ".join(f"x{word}" for word in words), " ".join(f"{i}-{i}" for i in range(9)))
    links.write_text(written)
    parallel.write_bytes(gzip.compress(b"book\tfr\ten\nnovel\tL'eau.\tWater.\n"))
