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


def test_the_wheel_holds_exactly_the_rooms_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == package_files()
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


def test_nothing_at_the_top_hides_what_is_installed() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "structgrad").exists()


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


def test_asv_measures_this_project_with_the_pinned_runner() -> None:
    """It measures the same code for every commit if it has another project name."""
    config = json.loads((ROOT / "asv.conf.json").read_text())
    assert (config["project"], config["benchmark_dir"]) == (PROJECT["project"]["name"], "tests/asv_benchmarks")
    assert config["matrix"]["req"]["pip+asv_runner"] == [constraints()["asv_runner"]]


def test_what_builds_the_site_is_pinned() -> None:
    """The newest allowed version may warn where an older one does not, and a warning fails the check."""
    wanted = {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["project"]["optional-dependencies"]["docs"]}
    assert wanted <= set(constraints())


@pytest.mark.parametrize("name", sorted(constraints()))
def test_what_is_pinned_installs_on_every_python_that_is_promised(name: str) -> None:
    """A pin that asks for more sends pip through all versions of everything else, for longer than anybody waits."""
    promised = PROJECT["project"]["requires-python"]
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
