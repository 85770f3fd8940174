"""Training on a stream without end: RecModel and what people who train online need.

``stream`` and ``feed`` say what is read, ``record_rules`` what of it can be used, ``prequential`` how good the model
is, ``page_hinkley`` when the world has changed, ``publishing`` how the weights get to those who serve them.
``rec_model`` puts them around the loop that every Model trains with. How to go on after a kill, every training shares
(`workbench.training.checkpoint_folder`).
"""

from workbench.online.page_hinkley import DriftDetector, PageHinkley
from workbench.online.prequential import Prequential
from workbench.online.publishing import Published, SnapshotPublisher, load_published
from workbench.online.rec_model import OnlineSummary, RecModel
from workbench.online.record_rules import RecordRules
from workbench.online.record_sieve import RecordLimitError
from workbench.online.stream import StreamPosition
from workbench.training.checkpoint_folder import CheckpointFolder as OnlineCheckpoints

__all__ = [
    "DriftDetector",
    "OnlineCheckpoints",
    "OnlineSummary",
    "PageHinkley",
    "Prequential",
    "Published",
    "RecModel",
    "RecordLimitError",
    "RecordRules",
    "SnapshotPublisher",
    "StreamPosition",
    "load_published",
]
