"""Examples run, tables agree with the registries, and public names are documented."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from structgrad import estimators, oracles, reports, suites
from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES, Oracle, distributions
from structgrad.suites import audit, tasks
from structgrad.suites.audit import oracles as audits_of_oracles

ROOT = Path(__file__).parents[1]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
LAYERS = (oracles, estimators, suites, reports)
MODULES = sorted(module.name for layer in LAYERS for module in pkgutil.walk_packages(layer.__path__, f"{layer.__name__}."))
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPTIONS = {"subset": "subset[k=2]"}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_examples_in_docstrings_run(layer: ModuleType) -> None:
    for name in (name for name in MODULES if name.startswith(f"{layer.__name__}.")):
        failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
        assert failed == 0, name


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in (ROOT / page).read_text()])
def test_examples_in_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures(ROOT / page) == 0


def test_the_readme_has_examples() -> None:
    assert len(python_blocks(ROOT / "README.md")) == 3


def test_a_wrong_example_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n```\n")
    assert failures(page) == 1


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def failures(page: Path) -> int:
    """Number of failing examples of a page; its blocks share one namespace, and blocks without prompts run as they are."""
    names: dict[str, Any] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for number, block in enumerate(python_blocks(page)):
        if block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, f"{page.name} block {number}", str(page), 0)
            runner.run(example, clear_globs=False)
            names.update(example.globs)
        else:
            exec(block, names)
    return runner.summarize(verbose=False).failed


def test_the_table_of_oracles_is_the_registry() -> None:
    page = (ROOT / "docs/reference/oracles.md").read_text().split("\n## ")[0]
    assert sorted(cells(line)[0] for line in page.splitlines() if line.startswith("| `")) == sorted(ORACLES)


def test_the_readme_counts_the_estimators() -> None:
    assert f"compare {len(ESTIMATORS)} estimators" in (ROOT / "README.md").read_text()


def test_the_catalogue_is_the_registry() -> None:
    """Name, first sentence of the docstring, needs, objective and whether it is unbiased."""
    page = (ROOT / "docs/reference/estimators.md").read_text().split("\n## Under other names\n", 1)[0]
    rows = [cells(line) for line in page.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == list(ESTIMATORS)
    for name, what, needs, objective, unbiased in rows:
        kind = ESTIMATORS[name]
        described = " ".join((kind.__doc__ or "").split()).replace("``", "`").replace("|", "\\|")
        assert described.startswith(what), name
        assert needs == (
            ", ".join(need.__name__.removesuffix("Oracle").lower() for need in kind.needs if need is not Oracle) or "argmax"
        ), name
        assert (objective, unbiased) == (kind.objective, "yes" if kind.unbiased else "no"), name


def cells(line: str) -> list[str]:
    """The cells of a row of a table; a bar within one is escaped."""
    stripped = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
    return [cell.strip("`") if cell.count("`") == 2 else cell for cell in stripped]


def test_public_names_are_documented() -> None:
    missing = [
        f"{name}: {place}" for name in MODULES for place, documented in public_names(importlib.import_module(name)) if not documented
    ]
    assert not missing


def public_names(module: ModuleType) -> list[tuple[str, bool]]:
    """Every public class, function and method that the module defines, and whether it has a docstring of its own or of a base class."""
    found = [(module.__name__, bool(module.__doc__))]
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            member = getattr(module, node.name)
            # What a compiler makes of a function need not pass its docstring on.
            found.append((node.name, bool(inspect.getdoc(member) or ast.get_docstring(node))))
            found += [(f"{node.name}.{method}", bool(inspect.getdoc(getattr(member, method)))) for method in methods(node)]
    return found


def methods(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Public methods that a class defines."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [item.name for item in body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]


ROOMS = (oracles, distributions, estimators, suites, audit, audits_of_oracles, tasks, reports)
"""Those whose public names are on the site; how it reads their docstrings is in `.ci/documentation.py`."""


def test_the_pages_of_the_api_hold_every_public_name_once() -> None:
    """The strict build of the site says whether each of them is there."""
    pages = (ROOT / "docs/reference/api").glob("*.md")
    shown = sorted(name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE))
    assert shown == sorted(f"{room.__name__}.{name}" for room in ROOMS for name in room.__all__)


def test_public_constants_are_documented() -> None:
    """Constants need a string after them; classes and functions are checked where they are defined."""
    named = {name: getattr(room, name) for room in ROOMS for name in room.__all__}
    constants = {name for name, value in named.items() if not inspect.isclass(value) and not inspect.isfunction(value)}
    assert constants <= documented_constants()


def documented_constants() -> set[str]:
    """The names of all modules that are followed by a string."""
    found = set()
    for path in (path for layer in LAYERS for path in Path(layer.__path__[0]).rglob("*.py")):
        for node, after in pairwise(ast.parse(path.read_text()).body):
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_examples_of_what_reads_docstrings_for_the_site_run() -> None:
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("documentation", ROOT / ".ci/documentation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module) == (0, 3)


def test_every_decision_is_in_the_index() -> None:
    """Number and title are those of its page, whose file begins with the number."""
    index = (ROOT / "docs/decisions/README.md").read_text()
    for page in sorted((ROOT / "docs/decisions").glob("0*.md")):
        number, _, title = page.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        assert page.name.startswith(f"{int(number):04}-")
        assert f"| {number} | [{title}]({page.name}) |" in index


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    """The strict build holds the pages of `docs/` to it."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        found = ROOT / (path or page)
        assert found.exists(), target
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target


def test_the_commands_of_the_first_page_are_those_of_the_readme() -> None:
    assert bash_blocks("docs/README.md") == bash_blocks("README.md")[:2]


def bash_blocks(page: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)\n```$", (ROOT / page).read_text(), re.MULTILINE)


def test_the_commands_of_the_readme_are_those_of_ci() -> None:
    """Continuous integration sets up and tests with the very line that the README gives."""
    commands = bash_blocks("README.md")
    assert commands[0].endswith("&& .venv/bin/structgrad run")
    assert commands[1] in (ROOT / ".ci/run").read_text().splitlines()
