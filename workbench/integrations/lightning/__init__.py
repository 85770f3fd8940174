"""A set-up in Lightning's `Trainer`: what its arguments carry, and a callback that does all of it.

One line is added to a training with Lightning::

    trainer = Trainer(max_epochs=10, callbacks=[Boost("boost_config.o1.json")])
    trainer.fit(module, datamodule)

`carried` and `trainer_arguments` answer without Lightning, which is imported for the others only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names
from workbench.integrations.lightning.arguments import carried, trainer_arguments

if TYPE_CHECKING:
    from workbench.integrations.lightning.boost import Boost
    from workbench.integrations.lightning.searched import from_lightning

__all__ = ["Boost", "carried", "from_lightning", "trainer_arguments"]

__getattr__ = lazy_names(
    __name__, {"Boost": f"{__name__}.boost", "from_lightning": f"{__name__}.searched"}, "lightning"
)
