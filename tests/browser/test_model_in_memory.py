"""From a fresh kernel to the answer in three cells: a model in memory, `tune`, and what it found."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import run_cells, write_notebook

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
                        epochs=6, minutes=0.2, allowed_drop=0.02, name="in_memory")"""


def test_three_cells_from_a_model_in_memory_to_the_answer(lab: Lab, view: View) -> None:
    write_notebook(lab, "in_memory", MODEL, TUNE, "answer")
    run_cells(view.page, lab, "in_memory")
    shown = view.page.locator(".jp-Cell").nth(2).locator(".jp-OutputArea-output")
    expect(shown).to_contain_text("o1: ")
    expect(shown).to_contain_text("boost_config.o1.json")
    told = view.page.locator(".jp-Cell").nth(1)
    expect(told).to_contain_text("Every run begins with a copy of the model as it is now")
    expect(told).to_contain_text("search: ")
    assert (lab.folder / "notebooks/studies/in_memory/result/boost_config.o1.json").is_file()
