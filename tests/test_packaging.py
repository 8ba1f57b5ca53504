from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import structgrad.oracles

ROOT = Path(__file__).parents[1]
ROOMS = ("oracles", "estimators", "suites", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "asv.conf.json",
    "constraints.txt",
    "docs",
    "estimators",
    "oracles",
    "pyproject.toml",
    "reports",
    "suites",
    "tests",
}


def package_files() -> set[str]:
    """What a wheel must hold: every file of the rooms, under the package's name."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    return {f"structgrad/{path.relative_to(ROOT)}" for path in files if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that is built from a copy of the tree, so that no stale build folder is packed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copied = [*(ROOT / room for room in ROOMS), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]
    subprocess.run(["cp", "-r", *map(str, copied), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(build, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_exactly_the_rooms(wheel_names: set[str]) -> None:
    packed = {name for name in wheel_names if ".dist-info/" not in name}
    assert packed == package_files()


def test_the_wheel_holds_the_licence(wheel_names: set[str]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


def test_every_folder_with_modules_is_a_listed_package() -> None:
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    expected = {".".join(("structgrad", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


def test_the_namespace_has_no_module_of_its_own() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "structgrad").exists()
    assert getattr(structgrad, "__file__", None) is None


def test_the_top_level_holds_what_is_documented() -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= TOP_LEVEL


def test_the_version_is_that_of_the_distribution() -> None:
    assert importlib.metadata.version("structgrad") == PROJECT["project"]["version"]


def test_the_changelog_knows_the_version_and_its_numbers() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{PROJECT['project']['version']}]" in text
    assert "### Numbers" in text


def test_asv_uninstalls_the_right_distribution() -> None:
    """With another project name asv would measure one and the same code for every commit."""
    assert asv_config()["project"] == PROJECT["project"]["name"]


def test_asv_loads_the_thin_benchmarks_alone() -> None:
    assert asv_config()["benchmark_dir"] == "suites/benchmarks"


def test_asv_pins_the_runner_of_the_constraints() -> None:
    pinned = constraints()
    assert asv_config()["matrix"]["req"]["pip+asv_runner"] == [pinned["asv_runner"]]
    assert set(pinned) == {"torch", "triton", "asv_runner"}


def asv_config() -> dict[str, object]:
    return json.loads((ROOT / "asv.conf.json").read_text())


def constraints() -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_the_computing_rooms_are_cheap_to_import() -> None:
    """In a fresh interpreter; what the estimators load, the oracles below them do."""
    heavy = {"pandas", "pyarrow", "matplotlib", "seaborn", "scipy", "rich", "typer"}
    code = "import structgrad.oracles, structgrad.estimators, sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "torch" in loaded
    assert not heavy & loaded
