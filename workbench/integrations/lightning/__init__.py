"""A set-up in Lightning's `Trainer`: what its arguments carry, and a callback that does all of it.

One line is added to a training with Lightning::

    trainer = Trainer(max_epochs=10, callbacks=[Boost("boost_config.o1.json")])
    trainer.fit(module, datamodule)

`carried` and `trainer_arguments` answer without Lightning, which is imported for the others only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workbench.integrations.lightning.arguments import carried, trainer_arguments

if TYPE_CHECKING:
    from workbench.integrations.lightning.boost import Boost
    from workbench.integrations.lightning.searched import from_lightning

__all__ = ["Boost", "carried", "from_lightning", "trainer_arguments"]

_HOME = {"Boost": "boost", "from_lightning": "searched"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "lightning":
            raise
        raise ModuleNotFoundError(f'{name} needs Lightning: pip install "boost-workbench[lightning]"') from error
