"""RecModel: a Model that trains on a stream without end.

Named and shaped after ``mindspore_rec.RecModel`` (mindspore_rec 0.3, MindSpore 2.7). Differences:

* A stop that a callback requests ends training; there it is ignored.
* ``on_train_end`` is called when training ends by a request, by Ctrl-C or with the stream; there it never is. An
  exception ends training without it, there and here.
* A generator, or any stream of unknown length, is trained on from its first batch; there training hangs.
* Without a sink on the device, callbacks see every step whatever ``dataset_sink_mode`` says, there on a CPU only.
* A batch that cannot be trained on is skipped and counted; there it ends training or spoils the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.metrics import output_kind
from workbench.mindspore.batch_calls import called_with, checked_loss
from workbench.mindspore.callbacks import CallbackList, CallbackParameters, RunContext
from workbench.mindspore.model import Callbacks, Model
from workbench.mindspore.model_arguments import check_kind, check_sink
from workbench.online.feed import Interrupts
from workbench.online.page_hinkley import DriftDetector
from workbench.online.prequential import Prequential
from workbench.online.publishing import SnapshotPublisher
from workbench.online.record_rules import RecordRules
from workbench.online.session import OnlineSession, RefusedBatchError, StepSink
from workbench.online.stream import OpenStream, check_stream
from workbench.training.boosted import Boosted
from workbench.training.checkpoint import with_threads_of
from workbench.training.checkpoint_folder import CheckpointFolder as OnlineCheckpoints
from workbench.training.loop import training_loop
from workbench.training.outcome import StepOutcome

_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)  # what torch raises for a batch of the wrong form


@dataclass(frozen=True, slots=True)
class OnlineSummary:
    """What an online training did."""

    ended_by: Literal["request", "interrupt", "end of stream"]  # by a callback, by Ctrl-C, or by itself
    n_steps: int  # of this call
    n_records: int  # that were trained on; those of resumed checkpoints are among them
    n_rejected: int  # that were not
    n_drifts: int  # changes that the detector saw
    auc: float  # area under the ROC curve over the last window, NaN where it is unknown
    log_loss: float  # mean over the last window, NaN where it is unknown


class RecModel(Model):
    """A network that goes on learning from what comes in. Takes the same arguments as ``Model``.

    Example:
        >>> from torch import randn, manual_seed
        >>> _ = manual_seed(0)
        >>> network = nn.Linear(3, 1)
        >>> model = RecModel(network, nn.BCEWithLogitsLoss(), torch.optim.SGD(network.parameters(), lr=0.5))
        >>> def clicks():
        ...     for x in randn(200, 32, 3):
        ...         yield x, (x.sum(1, keepdim=True) > 0).float()
        >>> summary = model.online_train(clicks(), prequential=Prequential(window=1000))
        >>> summary.ended_by, summary.n_steps, summary.auc > 0.99
        ('end of stream', 200, True)
    """

    _session: OnlineSession | None = None

    def online_train(
        self,
        train_dataset: Iterable[Any] | OpenStream,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = True,
        sink_size: int = 1,
        *,
        queue_size: int = 0,
        records: RecordRules | None = RecordRules(),  # noqa: B008  # a frozen value
        prequential: Prequential | None = None,
        drift: DriftDetector | None = None,
        checkpoints: OnlineCheckpoints | None = None,
        resume: bool = False,
        publisher: SnapshotPublisher | None = None,
        recorder: StepSink | None = None,
        record_gradients: bool = False,
    ) -> OnlineSummary:
        """Train from the first batch on until asked to stop; called again, training goes on.

        It ends when a callback calls ``run_context.request_stop()``, after Ctrl-C, and when a stream that can be read
        only once is used up. Ctrl-C waits for the step under way; pressed again it raises ``KeyboardInterrupt``. Data
        that can be iterated again is replayed for ever. On several ranks all of them must be asked to stop at the same
        step; checkpoints and snapshots are each rank's own, and all go on from the newest step that every rank has.

        Args:
            train_dataset: Iterable of batches (list, generator, ``IterableDataset``, ``DataLoader``), or a callable
                that opens a stream after a number of batches: ``lambda n: stream(seed, start=n)``. With a criterion a
                batch is a pair ``(data, label)``; without one the network gets all its items and returns the loss, or
                ``(loss, prediction, label)``.
            callbacks: A callback or several; see ``workbench.mindspore.callbacks``.
            dataset_sink_mode: Has no effect: batches are passed one by one, and callbacks see every step.
            sink_size: Has no effect; on an accelerator in sink mode it must be 1.
            queue_size: Batches that a thread reads ahead, at most; 0 reads each when it is needed. It pays where the
                source waits for a disk or a network, and costs where it computes in Python: threads take turns there.
            records: What is checked of records before they are trained on; None checks nothing.
            prequential: Measures the predictions of each step before its update.
            drift: Looks at the mean log loss of each step and reports a change as an event; needs ``prequential``.
            checkpoints: Where and when checkpoints are written; one is written at the end, too.
            resume: Whether to continue the newest checkpoint, if there is one, where its stream stopped. Without an
                opener the batches before that are read and dropped.
            publisher: Where and when snapshots for serving are published; one is published at the end, too. They hold
                the weights that `predict` uses: an average where one is taken.
            recorder: Keeps steps and events, for example ``workbench.runs.RunRecorder``.
            record_gradients: Whether it also keeps norm and maximum of the gradients.

        Raises:
            ValueError: When data that is replayed holds no batch, or a checkpoint belongs to another setup.
            RecordLimitError: When more records were rejected than ``records`` allows.
        """
        check_sink(dataset_sink_mode, sink_size)
        if dataset_sink_mode and sink_size != 1 and self._device.type != "cpu":
            raise ValueError(f"`sink_size` must be 1 in sink mode on an accelerator, got {sink_size}")
        check_stream(train_dataset)
        check_kind("resume", resume, bool)
        checked_count("queue_size", queue_size, 0, kind="a whole number of batches")
        if not isinstance(records, (RecordRules, type(None))):
            raise TypeError(f"`records` must be RecordRules or None, got {type(records).__name__}")
        if drift is not None and prequential is None:
            raise ValueError("`drift` looks at the losses that `prequential` measures; give `prequential`, too")
        if resume and checkpoints is None:
            raise ValueError("`resume` needs `checkpoints`, which name the folder to resume from")
        boosted = self._boosted
        if boosted is None:
            raise ValueError("`optimizer` is None, and training needs one; give RecModel a torch optimizer")
        if prequential is not None:
            prequential.kind = output_kind(self._loss_fn)
        interrupts = Interrupts()
        rules = _fitted(records, self._loss_fn)
        files = (checkpoints, publisher, recorder, record_gradients)
        session = OnlineSession(boosted, interrupts, rules, prequential, drift, *files)
        state = checkpoints.load(self._device) if resume and checkpoints is not None else None
        if state is not None:
            session.load_state_dict(state)
        listeners = [*CallbackList(callbacks).callbacks, session]
        first_step = boosted.step_index
        self._session = session
        try:
            with interrupts.taken(), with_threads_of(state, self._device):
                feed = session.open(train_dataset, queue_size)
                self._train(feed.passes(), None, feed, listeners)
        finally:
            self._session = None
        return OnlineSummary(
            ended_by="interrupt" if interrupts.asked else "end of stream" if feed.is_over else "request",
            n_steps=boosted.step_index - first_step,
            n_records=session.sieve.accepted,
            n_rejected=session.sieve.rejected,
            n_drifts=session.n_drifts,
            auc=prequential.auc() if prequential is not None else float("nan"),
            log_loss=prequential.log_loss() if prequential is not None else float("nan"),
        )

    # What differs from a Model's training

    def _state(
        self, mode: Literal["train", "eval", "fit"], listeners: CallbackList, dataset: Any, epoch_num: int | None
    ) -> CallbackParameters:
        session = self._session
        shown = dataset if session is None or mode != "train" else session.feed.dataset
        state = super()._state(mode, listeners, shown, epoch_num)
        if session is not None:
            state.online = session.columns
            state.cur_epoch_num, state.cur_step_num = session.numbers
        return state

    def _check_epoch(self, state: CallbackParameters) -> None:
        if self._session is None:
            super()._check_epoch(state)  # a stream decides for itself, see Feed.passes

    def _is_an_ordinary_end(self, error: BaseException) -> bool:
        session = self._session
        if session is None or not isinstance(error, KeyboardInterrupt) or ranks.world_size() > 1:
            return False
        if session.interrupts.asked:
            return False  # pressed twice: do not wait
        session.interrupts.asked = True
        return True

    def _steps(self, boosted: Boosted, batches: Iterator[Any], context: RunContext) -> Iterator[StepOutcome]:
        session = self._session
        if session is None:
            yield from super()._steps(boosted, batches, context)
            return
        while True:
            try:
                for outcome in training_loop(boosted, self._loss_of, batches, trace=session.trace):
                    session.end_step(outcome)
                    yield outcome
                return
            except RefusedBatchError as error:
                session.refuse(error, context.original_args())

    def _loss_of(self, network: nn.Module, batch: Any) -> Tensor:
        session = self._session
        if session is None or not session.begin_forward():  # a method tries its step lengths on the same batch
            return super()._loss_of(network, batch)
        try:
            loss, prediction, label = self._judged(network, batch)
        except torch.OutOfMemoryError:
            raise
        except _REFUSALS as error:
            raise RefusedBatchError from error
        session.saw(prediction, label)
        return loss

    def _judged(self, network: nn.Module, batch: Any) -> tuple[Tensor, Any, Any]:
        """As in training on epochs; online a network may return prediction and label with its loss."""
        if self._session is None or self._loss_fn is not None:
            return super()._judged(network, batch)
        outputs = called_with(network, batch)
        if isinstance(outputs, tuple) and len(outputs) == 3:
            return checked_loss(outputs[0], "network"), outputs[1], outputs[2]
        return checked_loss(outputs, "network"), None, None


def _fitted(rules: RecordRules | None, criterion: Any) -> RecordRules | None:
    """Return the rules with the labels that a criterion takes, where they do not say."""
    functions = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
    binary = isinstance(criterion, (nn.BCELoss, nn.BCEWithLogitsLoss)) or criterion in functions
    if rules is None or rules.label_range is not None or not binary:
        return rules
    return replace(rules, label_range=(0.0, 1.0))
