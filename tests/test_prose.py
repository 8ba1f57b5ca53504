"""Pages and help texts are plain English: short sentences, no private words, headings that people search for."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from structgrad.reports.cli import app

ROOT = Path(__file__).parents[1]
GENERATED = {"docs/reference/estimators.md"}
"""The catalogue: its sentences are docstrings."""
PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/README.md", "docs/architecture.md", "docs/how-to/*", "docs/reference/**/*.md")
PAGES = sorted({str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)} - GENERATED)

README_WORDS = 700
LONG_SENTENCE = 30
MAX_LONG_SHARE = 0.15
MAX_WHAT = 3.0
"""Per 1,000 words; a text of less than 400 may have one."""
HEADING_WORDS = 8
MAX_WHAT_OF_DOCSTRINGS = 1.5
FRAGMENT = re.compile(r"(Of|By|With|In|For|From|To|On|At|As|Under|Over|Without|The same)\b")
"""The beginning of a docstring that continues its name."""
PRIVATE = re.compile(r"\b(whoever|nobody|somebody|anew|foretell|foretold|likewise|to be had|is told|beside)\b", re.IGNORECASE)


class Prose(NamedTuple):
    headings: list[str]
    sentences: list[str]
    text: str


def prose(markdown: str) -> Prose:
    """Split a page into headings and sentences, without code; a table cell counts as a sentence from 10 words on."""
    plain = re.sub(r"^( *)```.*?^\1```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"<!--.*?-->|^\|[-| :]+\|$", "", plain, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"(`+).+?\1", "code", plain, flags=re.DOTALL))
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    lines = re.sub(r"^#+ .*$", "", plain, flags=re.MULTILINE)
    cells = [cell.strip() for row in re.findall(r"^ *\|(.*)\|$", lines, re.MULTILINE) for cell in row.split("|")]
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", re.sub(r"^ *\|.*$", "\n", lines, flags=re.MULTILINE))
    sentences = [sentence for paragraph in paragraphs for sentence in split(paragraph)]
    sentences += [sentence for cell in cells for sentence in split(cell) if len(words(sentence)) >= 10]
    return Prose(headings, sentences, lines)


def split(paragraph: str) -> list[str]:
    """Sentences end with a full stop, question or exclamation mark before a space and a capital, a digit or code."""
    found = re.split(r"(?<=[.!?])[)*_\"]*\s+(?=[A-Z0-9*\[(`]|code)", " ".join(paragraph.split()))
    return [sentence for sentence in found if words(sentence)]


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z][\w'’-]*", text)


def complaints(markdown: str) -> list[str]:
    """The broken rules of a text, each with the sentences that break it."""
    page, found = prose(markdown), []
    long = [sentence for sentence in page.sentences if len(words(sentence)) > LONG_SENTENCE]
    if len(long) > MAX_LONG_SHARE * len(page.sentences):
        found.append(f"{len(long)} of {len(page.sentences)} sentences have over {LONG_SENTENCE} words: {long}")
    whats = len(re.findall(r"\bwhat(?:ever)?\b", page.text, re.IGNORECASE))
    if whats > max(1, MAX_WHAT * len(words(page.text)) / 1000):
        found.append(f'"what" occurs {whats} times in {len(words(page.text))} words')
    private = {word.lower() for word in PRIVATE.findall(page.text)}
    found += [f"private word: {word}" for word in sorted(private)]
    found += [
        f"heading: {heading}"
        for heading in page.headings
        if len(heading.split()) > HEADING_WORDS or re.match(r"(what|who|whose|whatever|those|that)\b", heading, re.IGNORECASE)
    ]
    return found


def helps() -> Iterator[tuple[str, str]]:
    """The help of every verb with its options, and of the verbs of `baseline`."""
    group: Any = typer.main.get_command(app)
    for name in group.commands:
        command = group.get_command(None, name)
        for verb in (command, *getattr(command, "commands", {}).values()):
            texts = [verb.help or "", *(getattr(parameter, "help", None) or "" for parameter in verb.params)]
            yield f"{name} {verb.name}", "\n\n".join(re.sub(r"^\s+", "", text, flags=re.MULTILINE) for text in texts)


def text_of(page: str) -> str:
    """The text cells of a notebook."""
    content = (ROOT / page).read_text()
    if not page.endswith(".ipynb"):
        return content
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(content)["cells"] if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_plain_english(page: str) -> None:
    assert complaints(text_of(page)) == []


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in helps()])
def test_a_help_text_is_plain_english(text: str) -> None:
    assert complaints(text) == []


@pytest.mark.parametrize("room", ["suites", "reports"])
def test_docstrings_are_plain_english(room: str) -> None:
    found, whats, length = [], 0, 0
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                plain = re.sub(r"(`+).+?\1", "code", text.partition("Example:")[0], flags=re.DOTALL)
                where = f"{path.relative_to(ROOT)}, {getattr(node, 'name', 'module')}"
                whats += len(re.findall(r"\bwhat(?:ever)?\b", plain, re.IGNORECASE))
                length += len(words(plain))
                found += [f"{where}: {word}" for word in PRIVATE.findall(plain)]
                found += [f"{where}: begins with {start[0]}" for start in [FRAGMENT.match(plain)] if start]
    assert found == []
    assert whats <= MAX_WHAT_OF_DOCSTRINGS * length / 1000


def test_the_readme_is_short() -> None:
    assert len([word for word in (ROOT / "README.md").read_text().split() if re.search(r"\w", word)]) <= README_WORDS


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("One " + "very " * 30 + "long sentence.", "1 of 1 sentences"),
        ("It shows what it is and what it does.", '"what" occurs 2 times'),
        ("Nobody is told.", "private word: is told"),
        ("# What you can do\n", "heading"),
        ("```text\nNobody is told.\n```\n", None),
        ("`anew` is an option.", None),
    ],
)
def test_each_rule_is_enforced(text: str, rule: str | None) -> None:
    found = complaints(text)
    assert any(complaint.startswith(rule) for complaint in found) if rule else found == []
