"""The recipes of the page on code of one's own, each run where its library is installed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import structgrad
from tests.reports import examples

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "bring-your-own.md"


def recipe(library: str) -> dict[str, Any]:
    """The names of the block of a library, and of the one that it builds on."""
    if library != "numbers":
        pytest.importorskip(library)
    root = library.partition(".")[0]
    names: dict[str, Any] = {"torch": torch, "structgrad": structgrad}
    names |= {} if library == "numbers" else {root: importlib.import_module(root)}
    for block in ("numbers", library):
        (code,) = re.findall(rf"```py(?:thon)?\n# {re.escape(block)}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        exec(code, names)
    return names


def table() -> pd.DataFrame:
    from structgrad.suites.base import to_frame

    return to_frame(examples.rows())


def test_numbers_are_medians() -> None:
    found = recipe("numbers")["numbers"](table())
    assert found
    assert all(isinstance(value, float) and name.count("/") == 3 for name, value in found.items())


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    recipe("torch.utils.tensorboard")["log_to_tensorboard"](table(), str(tmp_path))
    assert list(tmp_path.glob("events*"))


@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe("wandb")["log_to_wandb"](table(), mode="offline", dir=str(tmp_path))
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    names = recipe("mlflow")
    names["mlflow"].set_tracking_uri((tmp_path / "runs").as_uri())
    names["log_to_mlflow"](table())
    assert list(tmp_path.rglob("metrics/**/*"))


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = recipe("lightning")
    lightning = names["lightning"]

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(5, 5), torch.nn.Linear(5, 1)
            self.layer = structgrad.StructuredLayer("subset[k=2]", "rloo", seed=0)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            (x,) = batch
            return self.layer.surrogate(lambda z: (self.decoder(z).squeeze(-1) - 1).square(), self.encoder(x)).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6, 5)), batch_size=2)
    callback = names["ProbeCallback"]()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet).fit(Model(), data)
    assert (tmp_path / "scores.npz").is_file()
    found = callback.probe.measure(["rloo"]).frame
    assert set(found.loc[found["metric"] == "relative_bias", "verdict"]) == {"unbiased-exact"}
