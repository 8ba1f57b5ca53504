"""``structgrad audit``: one screen, strict JSON, exit codes, and the page that shows it."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from structgrad.reports.verbs import audit as screen
from structgrad.suites.audit import audit as examine
from tests.reports.calling import call
from tests.suites.audit import planted_faults

ROOT = Path(__file__).parents[2]
ON_CLASSES = ("--quick", "-o", "categorical")


def audit(*words: str) -> Result:
    return call("audit", *words)


def masked(text: str) -> list[str]:
    """Lines without seconds, which differ between machines, and their consequences."""
    return [re.sub(r"[\d.]+ s$", "S", line.rstrip()) for line in text.strip().splitlines()]


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/audit.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    found = audit("./mine.py:BatchMean", "--quick")
    assert found.exit_code == 1
    assert masked(found.stdout) == masked(shown)


def test_every_law_is_on_the_page() -> None:
    table = (ROOT / "docs/how-to/audit.md").read_text().split("## Laws")[1].split("\n\n")[1]
    described = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()))
    pairs = (("gumbel_rao", "st_gumbel"), ("rloo", None), ("ste", None))
    found = [examine(name, quick=True, structures=("categorical",), mean_of=other).checks for name, other in pairs]
    assert sorted(described) == sorted({check.law for checks in found for check in checks})


def test_it_fits_on_one_screen() -> None:
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(screen.as_text(examine(planted_faults.SeveralCosts(), quick=True)))
    assert len(captured.get().splitlines()) <= 45
    assert "\x1b" not in captured.get()


def test_what_a_function_is_said_to_be() -> None:
    name = "tests.suites.audit.published_mistakes:leave_one_out[own_sample=True]"
    assert audit(name, *ON_CLASSES).exit_code == 1
    assert audit(name, *ON_CLASSES, "--scale", "0.75").exit_code == 0
    assert audit(name, *ON_CLASSES, "--biased").exit_code == 0
    assert "is not that of rloo: off by 0.25" in audit(name, *ON_CLASSES, "--biased", "--mean-of", "rloo").stdout


def test_an_oracle_is_audited_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("init", "--oracle", ".").exit_code == 0
    found = audit("--oracle", "./my_structure.py:Spread[n=5,k=2]", "--quick")
    assert found.exit_code == 0
    assert found.stdout.splitlines()[:2] == [
        "RIGHT  ./my_structure.py:Spread[n=5,k=2]: no law is violated",
        "looked at 5: 12 structures, by its own list of structures",
    ]
    source = Path("my_structure.py").read_text()
    Path("wrong.py").write_text(source.replace("torch.tensor([DEAD]), out[:-1]", "torch.tensor([DEAD]), taken[:-1]"))
    wrong = audit("-o", "./wrong.py:Spread", "-o", "subset[n=4,k=2]", "--quick", "--json")
    assert wrong.exit_code == 1
    one, other = json.loads(wrong.stdout)
    assert (one["verdict"], other["verdict"]) == ("wrong", "right")
    assert [check["law"] for check in one["checks"] if check["status"] == "violated"] == ["derivations", "count"]
