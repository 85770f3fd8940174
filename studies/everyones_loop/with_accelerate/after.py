"""Accelerate's loop, with handwritten digits."""

import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from workbench.integrations.accelerate import BoostedAccelerator

HERE = Path(__file__).parent
EPOCHS = 10


def loaders():
    """Return batches of handwritten digits to learn from, and those that were kept back."""
    table = load_digits()
    samples = TensorDataset(torch.tensor(table.images).float() / 16, torch.tensor(table.target))
    train, held_out = random_split(samples, [0.75, 0.25], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(held_out, batch_size=512)


def make_model():
    """Return a fresh network."""
    layers = [part for size, after in pairwise((64, 256, 256, 10)) for part in (nn.Linear(size, after), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def make_optimizer(parameters):
    """Return what trains it today."""
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def train(seed):
    """Train once; return the seconds of CPU it took, and the accuracy on the digits that were kept back."""
    set_seed(seed)
    criterion = nn.CrossEntropyLoss()
    accelerator = BoostedAccelerator(cpu=True, boost=HERE / "boost_config.o1.json", epochs=EPOCHS, criterion=criterion)
    loader, held_out = loaders()
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    criterion = accelerator.boosted.criterion
    began = time.process_time()
    for _ in range(EPOCHS):
        for images, digits in loader:
            loss = criterion(model(images), digits)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    seconds, right = time.process_time() - began, []
    with torch.no_grad():
        for images, digits in held_out:
            right += accelerator.gather_for_metrics(model(images).argmax(dim=1) == digits).tolist()
    return seconds, sum(right) / len(right)


if __name__ == "__main__":
    print(train(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
