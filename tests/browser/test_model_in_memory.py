"""From a model in memory to the answer in three cells: the model, `tune`, and what it found."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import add_and_run_cell

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MODEL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(512, 16)
data = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
train_loader, eval_loader = DataLoader(data, 32, shuffle=True), DataLoader(data, 512)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)"""
TUNE = """\
import workbench

answer = workbench.tune(model, train_loader, eval_loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer,
                        epochs=6, minutes=2, trials=2, confirm_seeds=4, allowed_drop=0.02, name="in_memory")"""


def test_three_cells_from_a_model_in_memory_to_the_answer(lab: Lab, notebook: View) -> None:
    add_and_run_cell(notebook.page, MODEL)
    told = add_and_run_cell(notebook.page, TUNE)
    expect(told.filter(has_text="Every run begins with a copy of the model as it is now").first).to_be_visible()
    expect(told.filter(has_text="search: ").first).to_be_visible()
    shown = add_and_run_cell(notebook.page, "answer")
    expect(shown).to_contain_text("o1: ")
    expect(shown).to_contain_text("boost_config.o1.json")
    assert (lab.folder / "notebooks/studies/in_memory/result/boost_config.o1.json").is_file()
