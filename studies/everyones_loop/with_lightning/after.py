"""Lightning's first example, with handwritten digits in the place of MNIST."""

import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from workbench.integrations.lightning import Boost

HERE = Path(__file__).parent
EPOCHS = 10


class Digits(LightningDataModule):
    """Handwritten digits, 8 by 8; three quarters to learn from."""

    def setup(self, stage):
        """Read the images."""
        table = load_digits()
        samples = TensorDataset(torch.tensor(table.images).float().unsqueeze(1) / 16, torch.tensor(table.target))
        self.train, self.held_out = random_split(samples, [0.75, 0.25], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        """Return batches to learn from."""
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        """Return the samples that were kept back."""
        return DataLoader(self.held_out, batch_size=512)


class LitDigits(LightningModule):
    """A convolutional classifier."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        images, digits = batch
        return self.criterion(self.network(images), digits)

    def validation_step(self, batch, batch_idx):
        """Log the accuracy."""
        images, digits = batch
        self.log("val_acc", (self.network(images).argmax(dim=1) == digits).float().mean())

    def configure_optimizers(self):
        """Return what Lightning's example takes."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def train(seed):
    """Train once; return the seconds of CPU it took, and the accuracy on the digits that were kept back."""
    seed_everything(seed, verbose=False)
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[Boost(HERE / "boost_config.o1.json")], **QUIET)
    module = LitDigits()
    began = time.process_time()
    trainer.fit(module, Digits())
    seconds = time.process_time() - began
    return seconds, float(trainer.validate(module, Digits(), verbose=False)[0]["val_acc"])


if __name__ == "__main__":
    print(train(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
