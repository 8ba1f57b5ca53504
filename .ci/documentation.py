"""Docstrings and pages as the tools that build the site read Markdown: an extension of griffe and hooks of MkDocs (`mkdocs.yml`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

ROOMS = ("oracles", "estimators", "suites", "suites.audit", "suites.tasks")
"""Those whose public names (``__all__``) have a place on the site."""

EXAMPLE = re.compile(r"^( *)Example:\n(?:\1 +.*\n|\s*\n)+", re.MULTILINE)
CODE = re.compile(r"(``.+?``|`[^`\n]+`)", re.DOTALL)
INSTALLED = re.compile(r"(?<=<summary>Source code in <code>)[^<]*?structgrad/(?=\w+/)")
BRACKETS = re.compile(r"\[[^\[\]]*\]")


class Docstrings(griffe.Extension):
    """Examples are examples, shapes in brackets no markup, public names in backticks links, and classes say their names in registries."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite all docstrings, before the first of them is parsed."""
        public = {name: f"{pkg.name}.{room}.{name}" for room in reversed(ROOMS) for name in pkg[room].exports or ()}
        for found in objects(pkg):
            if found.docstring is not None:
                own = {found.name, *found.members, *(parameter.name for parameter in getattr(found, "parameters", ()))}
                links = {name: path for name, path in public.items() if name not in own}
                first, gap, rest = rewritten(found.docstring.value, links).partition("\n\n")
                found.docstring.value = first + registered_name(found, public) + gap + rest


def objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    """Everything that a module or class defines, itself first."""
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from objects(member)


def rewritten(text: str, links: dict[str, str]) -> str:
    r"""Prose as Markdown; griffe knows a section ``Examples``, and what is in it stays as it is.

    >>> rewritten("Scores [*batch, n], see `Subset`.", {"Subset": "structgrad.oracles.Subset"})
    'Scores [\\*batch, n], see [`Subset`][structgrad.oracles.Subset].'
    """
    text, done, position = text + "\n", "", 0
    for example in EXAMPLE.finditer(text):
        done += prose(text[position : example.start()], links) + example[0].replace("Example:", "Examples:", 1)
        position = example.end()
    return (done + prose(text[position:], links)).rstrip("\n")


def prose(text: str, links: dict[str, str]) -> str:
    """Pieces of code become links where they are names, and the rest has no markup within brackets."""
    pieces = CODE.split(text)
    pieces[::2] = [BRACKETS.sub(lambda found: found[0].replace("*", r"\*"), piece).replace("][", r"]\[") for piece in pieces[::2]]
    pieces[1::2] = [f"[{piece}][{links[name]}]" if (name := piece[1:-1]) in links else piece for piece in pieces[1::2]]
    return "".join(pieces)


def registered_name(found: griffe.Object, public: dict[str, str]) -> str:
    """A sentence with the name by which a registry has a public class, if one has."""
    if not found.is_class or found.name not in public:
        return ""
    member = found.members.get("name")
    name = found.keywords.get("name") or (member.value if member is not None and member.is_attribute else None)
    return "" if name is None else f"\n\nIn the registry as ``{ast.literal_eval(str(name))}``."


def on_page_markdown(markdown: str, **_: Any) -> str:
    r"""Cells of tables with their bars as they are in code: there Python-Markdown, unlike GitHub, leaves the backslash before them.

    >>> on_page_markdown(r"| `E[L \| a]` | a \| b |")
    '| `E[L | a]` | a \\| b |'
    """
    return "\n".join(
        CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line for line in markdown.split("\n")
    )


def on_page_content(html: str, **_: Any) -> str:
    """Source code is named by its file in the repository, not by where that is installed.

    >>> on_page_content("<summary>Source code in <code>build/links/structgrad/oracles/subset/oracle.py</code></summary>")
    '<summary>Source code in <code>oracles/subset/oracle.py</code></summary>'
    """
    return INSTALLED.sub("", html)
