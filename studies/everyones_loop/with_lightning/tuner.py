"""The same example with what Lightning itself brings for this: its tuner asks for a learning rate, and a batch size."""

import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))
from before import EPOCHS, QUIET, Digits, LitDigits


class TunedData(Digits):
    """The digits, in batches of a size that may be set."""

    batch_size = 16

    def train_dataloader(self):
        """Return batches to learn from."""
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)


class TunedDigits(LitDigits):
    """The classifier, with a learning rate that may be set."""

    lr = 1e-3

    def configure_optimizers(self):
        """Return what Lightning's example takes, with this rate."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(seed, *, batch_size=False):
    """Let the tuner choose, then train once; return what the tuner chose and took, and what `before.train` returns."""
    warnings.filterwarnings("ignore", module="lightning")
    seed_everything(seed, verbose=False)
    module, data = TunedDigits(), TunedData()
    began = time.process_time()
    tuner = Tuner(Trainer(max_epochs=EPOCHS, accelerator="cpu", **QUIET))
    if batch_size:
        tuner.scale_batch_size(module, datamodule=data, init_val=16)
    tuner.lr_find(module, datamodule=data)
    chosen = {"lr": module.lr, "batch_size": data.batch_size, "tuner_seconds": time.process_time() - began}
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", **QUIET)
    began = time.process_time()
    trainer.fit(module, data)
    seconds = time.process_time() - began
    return chosen, seconds, float(trainer.validate(module, data, verbose=False)[0]["val_acc"])


if __name__ == "__main__":
    print(train(int(sys.argv[1]) if len(sys.argv) > 1 else 0, batch_size="--batch-size" in sys.argv))
