from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import structgrad

ROOT = Path(__file__).parents[1]
ROOMS = ("oracles", "estimators", "suites", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "asv.conf.json",
    "constraints.txt",
    "docs",
    "estimators",
    "mkdocs.yml",
    "oracles",
    "pyproject.toml",
    "reports",
    "setup.py",
    "suites",
    "tests",
}


def installed(path: Path) -> Path:
    """The installed path of a file or folder: the package itself at the top, all others under their layer."""
    top = ROOT / "reports" / "package"
    return "structgrad" / path.relative_to(top if path.is_relative_to(top) else ROOT)


def package_files() -> set[str]:
    """The expected files of a wheel: every file of the layers, under the package's name."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    return {str(installed(path)) for path in files if "__pycache__" not in path.parts}


def constraints() -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from a copy of the tree, so that no stale build folder is packed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copied = [*(ROOT / room for room in ROOMS), *(ROOT / name for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"))]
    subprocess.run(["cp", "-r", *map(str, copied), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(build, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_exactly_the_rooms(wheel_names: set[str]) -> None:
    packed = {name for name in wheel_names if ".dist-info/" not in name}
    assert packed == package_files()


def test_the_wheel_holds_the_licence(wheel_names: set[str]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


def test_nothing_at_the_top_hides_what_is_installed() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "structgrad").exists()


def test_the_top_level_holds_what_is_documented() -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= TOP_LEVEL


def test_the_version_is_that_of_the_distribution() -> None:
    assert structgrad.__version__ == importlib.metadata.version("structgrad") == PROJECT["project"]["version"]


def test_the_package_has_nothing_else_of_its_own() -> None:
    with pytest.raises(AttributeError, match="module 'structgrad' has no attribute 'versoin'"):
        _ = structgrad.versoin  # type: ignore[attr-defined]


def test_the_names_at_the_top_are_typed_and_those_of_their_modules() -> None:
    typed = {
        (node.module.removeprefix("structgrad."), alias.name)
        for node in ast.walk(ast.parse(Path(structgrad.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("structgrad.")
        for alias in node.names
    }
    assert typed == {(place, name) for place, names in structgrad.PLACES.items() for name in names.split()}
    for place, name in typed:
        assert getattr(structgrad, name) is getattr(importlib.import_module(f"structgrad.{place}"), name)
        assert name in dir(structgrad)


def test_the_package_loads_nothing_before_the_version_is_asked_for() -> None:
    code = "import sys; before = set(sys.modules); import structgrad; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"structgrad", "__future__"}


def test_a_wheel_knows_its_version(wheel: Path, tmp_path: Path) -> None:
    """Unpacked apart from the installed package, so that the version comes from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import structgrad; print(structgrad.__version__, structgrad.__file__)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [PROJECT["project"]["version"], str(tmp_path / "structgrad" / "__init__.py")]


def test_the_changelog_knows_the_version_and_its_numbers() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{PROJECT['project']['version']}]" in text
    assert "### Numbers" in text


def test_asv_uninstalls_the_right_distribution() -> None:
    """asv measures the same code for every commit if it has another project name."""
    assert asv_config()["project"] == PROJECT["project"]["name"]


def test_asv_loads_the_thin_benchmarks_alone() -> None:
    assert asv_config()["benchmark_dir"] == "tests/asv_benchmarks"


def test_asv_pins_the_runner_of_the_constraints() -> None:
    pinned = constraints()
    assert asv_config()["matrix"]["req"]["pip+asv_runner"] == [pinned["asv_runner"]]
    assert {"torch", "asv_runner"} <= set(pinned)


def test_what_builds_the_site_is_pinned() -> None:
    """The newest allowed version may warn where an older one does not, and a warning fails the check."""
    wanted = {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["project"]["optional-dependencies"]["docs"]}
    assert wanted <= set(constraints())


def asv_config() -> dict[str, object]:
    return json.loads((ROOT / "asv.conf.json").read_text())


@pytest.mark.parametrize("name", sorted(constraints()))
def test_what_is_pinned_installs_on_every_python_that_is_promised(name: str) -> None:
    """A pin that asks for more sends pip through all versions of everything else, for longer than anybody waits."""
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    try:
        found = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    if found["Version"].partition("+")[0] != constraints()[name]:
        pytest.skip(f"another version of {name} is installed here")
    first = re.fullmatch(r">=\s*(3\.\d+).*", promised)
    assert first is not None
    assert SpecifierSet(found.get("Requires-Python") or "").contains(f"{first[1]}.0")


def test_the_computing_rooms_are_cheap_to_import() -> None:
    """Modules that a fresh interpreter loads; estimators load those of the oracles too."""
    heavy = {"pandas", "pyarrow", "matplotlib", "seaborn", "scipy", "rich", "typer"}
    code = "import structgrad.oracles, structgrad.estimators, sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "torch" in loaded
    assert not heavy & loaded
