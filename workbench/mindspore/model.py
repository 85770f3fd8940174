"""Model: train, evaluate and predict with a network, its criterion and its optimizer in one object.

Named and shaped after ``mindspore.train.Model`` (MindSpore 2.7). It adds no step of its own: batches go through
`training_loop`, and so through the step that everything here shares (``boosted.py``). Differences: boosting needs
only an optimizer (there also metrics or an evaluation network, and without them it silently trains unboosted), any
iterable of batches is a dataset, metrics are torchmetrics, and an evaluation leaves no trace on the training.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.config import LEVELS, BoostConfig, ConfigLike
from workbench.core import distributed as ranks
from workbench.core.batch import move_batch, n_batches_of, widened
from workbench.core.devices import device_of
from workbench.core.evaluation_mode import evaluation_mode
from workbench.core.wrapped_model import unwrapped
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.mindspore import model_arguments as arguments
from workbench.mindspore.batch_calls import called_with, checked_loss, data_and_label
from workbench.mindspore.callbacks import Callback, CallbackList, CallbackParameters, RunContext
from workbench.mindspore.epochs import check_equal_lengths, epochs_of, resumed_training
from workbench.mindspore.evaluation import Evaluator, prepare_for_evaluation_
from workbench.mindspore.resuming import ResumedTraining, folder_of
from workbench.mindspore.train_step_cells import WithLossCell, scaling_of_manager
from workbench.training.apply import apply
from workbench.training.boosted import Boosted
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.loop import training_loop
from workbench.training.outcome import BoostStep, StepOutcome

Callbacks = Callback | Iterable[Callback] | None


class Model:
    """A network with everything that training, evaluating and predicting need.

    Datasets are any iterables of batches (a list, a ``DataLoader``, a class of your own) and are iterated again for
    every epoch. Tensors are moved to the network's device. With a criterion a batch is a pair ``(data, label)``;
    without one the network gets all items of a tuple or list, or those of a mapping by name, and returns the loss.

    On several ranks (torch.distributed) each trains on the batches that its own dataset yields, and gradients are
    averaged; each evaluates what it is given. Every rank has to get equally many batches.

    Args:
        network: What is trained. Boosting and ``amp_level`` O3 change it in place.
        loss_fn: Criterion, called as ``loss_fn(output, label)``; None when the network returns the loss.
        optimizer: Any torch optimizer over the network's parameters. None for a Model that does not train.
        metrics: Names (``"acc"``, ``"auc"``, ``"loss"``, ``"mse"``, ..., see ``workbench.core.metrics``) or
            torchmetrics objects: a set or list of them, or a dictionary from the name of the result to either.
        eval_network: Module that is evaluated in place of network and criterion. It gets all items of a batch and
            returns ``(loss, prediction, label)``, ``(prediction, label)`` or a loss.
        eval_indexes: Positions of loss, prediction and label in what ``eval_network`` returns.
        amp_level: ``"O0"`` as built; ``"O2"`` autocast with float32 weights, BatchNorm in float32 and, in float16, a
            dynamic loss scale; ``"O3"`` weights cast; ``"auto"`` O2 on CUDA, O3 on NPU, O0 elsewhere. At ``"O0"`` the
            configuration's section ``amp`` decides.
        boost_level: ``"O0"``, ``"O1"`` or ``"O2"``: the algorithms that the configuration does not decide about.
        loss_scale_manager: A ``FixedLossScaleManager``, ``DynamicLossScaleManager``, ``GroupLossScaleManager`` or
            another object with ``get_loss_scale()``, ``get_update_cell()`` and ``get_drop_overflow_update()``; None for
            what the configuration's section ``loss_scale`` says.
        keep_batchnorm_fp32: Whether BatchNorm stays in float32 under O2 and O3; None for the level's own rule.
        boost_config_dict: Configuration: a dictionary, a ``BoostConfig``, the path of a ``boost_config.json``, or None.

    Raises:
        ValueError: When a level, a metric or an index is unknown, or arguments do not fit together.

    Example:
        >>> from torch import manual_seed, nn, optim, randn
        >>> _ = manual_seed(0)
        >>> network = nn.Linear(3, 1)
        >>> model = Model(network, nn.MSELoss(), optim.SGD(network.parameters(), lr=0.1), metrics={"mse"})
        >>> batches = [(x, x.sum(1, keepdim=True)) for x in randn(4, 16, 3)]
        >>> model.train(20, batches)
        >>> model.eval(batches)["mse"] < 0.01
        True
    """

    def __init__(
        self,
        network: nn.Module,
        loss_fn: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        metrics: Any = None,
        eval_network: nn.Module | None = None,
        eval_indexes: Sequence[int] | None = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: bool | None = None,
        boost_config_dict: ConfigLike = None,
    ) -> None:
        arguments.check_kind("network", network, nn.Module)
        arguments.check_criterion(loss_fn)
        arguments.check_kind("optimizer", optimizer, Optimizer, None)
        arguments.check_kind("eval_network", eval_network, nn.Module, None)
        arguments.check_word("amp_level", amp_level, ("O0", "O2", "O3", "auto"))
        arguments.check_word("boost_level", boost_level, tuple(LEVELS))
        arguments.check_manager(loss_scale_manager)
        arguments.check_kind("keep_batchnorm_fp32", keep_batchnorm_fp32, bool, None)
        arguments.check_kind("boost_config_dict", boost_config_dict, BoostConfig, Mapping, str, Path, None)
        self._network = network
        self._loss_fn = loss_fn
        self._device = device_of(network)
        self._evaluator = Evaluator(network, loss_fn, metrics, eval_network, eval_indexes)
        given = amp_level, boost_level, keep_batchnorm_fp32, loss_scale_manager
        self._settings = settings = arguments.settings_from(boost_config_dict, *given)
        self._boosted = self._new_boosted(settings, optimizer, boost_level, loss_scale_manager)
        self._precision = prepare_for_evaluation_(
            network, eval_network, self._boosted, settings, boost_level, self._device
        )

    # What it consists of

    @property
    def boosted(self) -> Boosted | None:
        """The boosted pair that takes the steps; its ``state_dict()`` resumes training. None without an optimizer."""
        return self._boosted

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer in use; learning-rate schedulers belong on it."""
        return None if self._boosted is None else self._boosted.optimizer

    @property
    def train_network(self) -> nn.Module:
        """The module that returns the loss of a batch: network and criterion, or the network."""
        criterion: Any = self._loss_fn  # any callable will do
        return self._network if criterion is None else WithLossCell(self._network, criterion)

    @property
    def eval_network(self) -> nn.Module | None:
        """The module that is evaluated, or network and criterion; None without metrics."""
        if not self._evaluator.metrics:
            return None
        given = self._evaluator.eval_network
        return self.train_network if given is None else given

    @property
    def predict_network(self) -> nn.Module:
        """The module that predicts: the network."""
        return self._network

    # Training

    def train(
        self,
        epoch: int,
        train_dataset: Iterable[Any],
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        checkpoint_every: int | None = None,
        resume: CheckpointFolder | Path | str | None = None,
    ) -> None:
        """Train for a number of epochs; called again, training goes on.

        Args:
            epoch: Number of the last epoch, at least 1.
            train_dataset: Batches, iterated again for each epoch.
            callbacks: A callback or several; see ``workbench.mindspore.callbacks``.
            dataset_sink_mode: Has no effect: callbacks see every step.
            sink_size: Has no effect.
            initial_epoch: Epochs that were trained before; ``epoch`` counts them.
            checkpoint_every: Steps between two checkpoints in the folder that ``resume`` names; None is 1000.
            resume: Folder of checkpoints. An interrupted training goes on from the newest that is whole, on a CPU with
                the same bits, and where there is none a new one begins. A larger ``epoch`` goes on with one that ended.
                What a callback steps, such as a learning-rate scheduler, belongs into a
                ``CheckpointFolder(..., also={"name": scheduler})``.

        Raises:
            ResumeError: When the checkpoints belong to another configuration, dataset or network.
            ValueError: Without an optimizer, when a number is out of range, an epoch holds no batch, a batch does not
                fit the criterion, or ranks have unequal numbers of batches.
        """
        sinks = dataset_sink_mode, False, sink_size
        kept: Any = {"checkpoint_every": checkpoint_every, "resume": resume}
        self.fit(epoch, train_dataset, None, 1, callbacks, *sinks, initial_epoch, **kept)

    def fit(
        self,
        epoch: int,
        train_dataset: Iterable[Any],
        valid_dataset: Iterable[Any] | None = None,
        valid_frequency: int | Sequence[int] = 1,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        checkpoint_every: int | None = None,
        resume: CheckpointFolder | Path | str | None = None,
    ) -> None:
        """Train, with evaluations in between; ``LossMonitor`` prints their results.

        Args:
            epoch: Number of the last epoch, at least 1.
            train_dataset: Batches to train on.
            valid_dataset: Batches to evaluate; None trains only.
            valid_frequency: Evaluate after every so many epochs, or after the epochs of these numbers.
            callbacks: A callback or several. Those of the evaluation find its results in ``eval_results``.
            dataset_sink_mode: Has no effect; see ``train``.
            valid_dataset_sink_mode: Has no effect.
            sink_size: Has no effect.
            initial_epoch: Epochs that were trained before.
            checkpoint_every: As in ``train``.
            resume: As in ``train``; an evaluation that was interrupted is made again.

        Raises:
            ValueError: As ``train``, and without metrics when there is something to evaluate.
        """
        due = arguments.due_epochs(valid_frequency)
        arguments.check_sink(dataset_sink_mode, sink_size)
        arguments.check_kind("valid_dataset_sink_mode", valid_dataset_sink_mode, bool)
        evaluate = None
        if valid_dataset is not None:
            self._evaluator.require_metrics("fit")
            evaluate = functools.partial(self._evaluate_between, valid_dataset, due)
        epochs, kept = arguments.epoch_numbers(epoch, initial_epoch), folder_of(resume, checkpoint_every)
        self._train(epochs, epoch, train_dataset, callbacks, evaluate, kept)

    def _train(
        self,
        epochs: Iterable[int],
        epoch_num: int | None,
        dataset: Iterable[Any],
        callbacks: Callbacks,
        evaluate: Callable[[RunContext], None] | None = None,
        kept: CheckpointFolder | None = None,
    ) -> None:
        """Train one epoch after the other: the only loop over epochs there is."""
        arguments.check_dataset("train_dataset", dataset)
        boosted = self._boosted
        if boosted is None:
            raise ValueError("`optimizer` is None, and training needs one; give Model a torch optimizer")
        check_equal_lengths(dataset)
        listeners = CallbackList(callbacks)
        state = self._state("train", listeners, dataset, epoch_num)
        context = RunContext(state)
        resumed = None
        if kept is not None:
            resumed = resumed_training(kept, boosted, self._settings, dataset, epochs)
            state.cur_epoch_num, state.cur_step_num = max(0, resumed.progress.epoch - 1), resumed.progress.steps
        self._set_training_mode(boosted)
        with listeners, contextlib.nullcontext() if resumed is None else resumed.running():
            try:
                listeners.notify("on_train_begin", context)
                for number, batches in epochs_of(boosted, dataset, epochs, resumed):
                    state.cur_epoch_num = number
                    self._train_epoch(boosted, batches, context, evaluate, resumed)
                    if context.get_stop_requested():
                        break
                else:
                    if resumed is not None:
                        resumed.ended(state)
            except BaseException as error:
                boosted.unfreeze()
                if not self._is_an_ordinary_end(error):
                    raise
            else:
                boosted.finish()
            listeners.notify("on_train_end", context)

    def _train_epoch(
        self,
        boosted: Boosted,
        dataset: Iterable[Any],
        context: RunContext,
        evaluate: Callable[[RunContext], None] | None,
        resumed: ResumedTraining | None,
    ) -> None:
        state = context.original_args()
        listeners = state.list_callback
        goes_on = resumed is not None and resumed.progress.epoch == state.cur_epoch_num
        state.cur_step_in_epoch, state.eval_results = resumed.progress.step if resumed and goes_on else 0, {}
        listeners.notify("on_train_epoch_begin", context)
        batches = self._announced(dataset, context)
        for outcome in self._steps(boosted, batches, context):
            state.outcome, state.net_outputs = outcome, self._net_outputs(boosted, outcome)
            listeners.notify("on_train_step_end", context)
            if resumed is not None:
                resumed.step_ended(state, stopping=context.get_stop_requested())
            if context.get_stop_requested():
                break
        batches.close()
        self._check_epoch(state)
        if evaluate is not None:
            evaluate(context)
        listeners.notify("on_train_epoch_end", context)

    def _is_an_ordinary_end(self, error: BaseException) -> bool:
        """Return whether what ended training is no failure, so that callbacks are notified of its end."""
        return False

    def _check_epoch(self, state: CallbackParameters) -> None:
        if state.cur_step_in_epoch == 0:
            raise ValueError(
                f"`train_dataset` held no batch in epoch {state.cur_epoch_num}; an iterator can be read only once, "
                "give something that can be iterated again, such as a list or a DataLoader"
            )

    def _steps(self, boosted: Boosted, batches: Iterator[Any], context: RunContext) -> Iterator[StepOutcome]:
        return training_loop(boosted, self._loss_of, batches)

    def _announced(self, dataset: Iterable[Any], context: RunContext) -> Generator[Any, None, None]:
        """Yield batches on the device, each after its step was announced."""
        state = context.original_args()
        for batch in dataset:
            state.cur_step_num += 1
            state.cur_step_in_epoch += 1
            state.train_dataset_element = move_batch(batch, self._device)
            state.list_callback.notify("on_train_step_begin", context)
            yield state.train_dataset_element

    def _loss_of(self, network: nn.Module, batch: Any) -> Tensor:
        return self._judged(network, batch)[0]

    def _judged(self, network: nn.Module, batch: Any) -> tuple[Tensor, Any, Any]:
        """Return the loss of a batch, and prediction and label where they are known."""
        if self._loss_fn is None:
            return checked_loss(called_with(network, batch), "network"), None, None
        data, label = data_and_label(batch)
        prediction = network(data)
        return checked_loss(self._criterion(prediction, label), "loss_fn"), prediction, label

    @property
    def _criterion(self) -> Any:
        """What it trains with: the one given, or what the configuration makes of it (label smoothing)."""
        return self._loss_fn if self._boosted is None else self._boosted.criterion

    def _net_outputs(self, boosted: Boosted, outcome: StepOutcome) -> Tensor | BoostStep:
        in_effect = boosted.plan.in_effect() if boosted.plan is not None else ()
        if boosted.loss_scaling.is_unit and not in_effect:
            return outcome.loss  # what TrainOneStepCell would return
        return BoostStep(outcome.loss, outcome.overflow, outcome.loss_scale_after.reshape(()))

    def _set_training_mode(self, boosted: Boosted) -> None:
        self._network.train()
        if isinstance(self._loss_fn, nn.Module):
            self._loss_fn.train()
        if isinstance(boosted.optimizer, FreezeOpt) and boosted.window.position == 0:
            boosted.use_freezing_group(boosted.frozen_groups)  # finish() of an earlier call has thawed everything

    # Evaluation and prediction

    def eval(
        self, valid_dataset: Iterable[Any], callbacks: Callbacks = None, dataset_sink_mode: bool = False
    ) -> dict[str, float]:
        """Return the metrics over a dataset.

        Args:
            valid_dataset: Batches to evaluate.
            callbacks: A callback or several.
            dataset_sink_mode: Has no effect.

        Returns:
            Name of each metric, as it was given (the class of a torchmetrics object without a name), and its value over
            all samples; the mean loss counts samples, not batches.

        Raises:
            ValueError: Without metrics, without a batch, or when a batch or the outputs do not fit the metrics.
        """
        arguments.check_kind("dataset_sink_mode", dataset_sink_mode, bool)
        arguments.check_dataset("valid_dataset", valid_dataset)
        self._evaluator.require_metrics("eval")
        with CallbackList(callbacks) as listeners:
            return self._evaluate(valid_dataset, RunContext(self._state("eval", listeners, valid_dataset, 1)))

    def predict(self, *inputs: Any) -> Any:
        """Return the network's outputs for inputs, in float32, computed in evaluation mode and without gradients."""
        with self._evaluating(), evaluation_mode([self._network], self._device), self._precision.autocast():
            return widened(self._network(*move_batch(inputs, self._device)))

    def _evaluate_between(self, dataset: Iterable[Any], due: Callable[[int], bool], context: RunContext) -> None:
        training = context.original_args()
        if not due(training.cur_epoch_num):
            return
        state = self._state("fit", training.list_callback, dataset, training.epoch_num)
        state.cur_epoch_num = training.cur_epoch_num
        evaluation = RunContext(state)
        training.eval_results = self._evaluate(dataset, evaluation)
        if evaluation.get_stop_requested():
            context.request_stop()

    def _evaluate(self, dataset: Iterable[Any], context: RunContext) -> dict[str, float]:
        return self._evaluator.run(dataset, context, self._device, self._precision, self._evaluating)

    def _evaluating(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._boosted is None else self._boosted.evaluating()

    # Construction

    def _new_boosted(
        self, settings: BoostConfig, optimizer: Optimizer | None, boost_level: str, manager: Any
    ) -> Boosted | None:
        if optimizer is None:
            return None
        boosted = apply(settings, self._network, optimizer, level=boost_level, criterion=self._loss_fn)
        if manager is not None:
            scaling = scaling_of_manager(manager, unwrapped(self._network))
            scaling.agree = boosted.loss_scaling.agree
            boosted.loss_scaling = scaling
        if ranks.world_size() > 1 and not isinstance(self._network, DistributedDataParallel):
            boosted.distribute()
        return boosted

    def _state(
        self, mode: Literal["train", "eval", "fit"], listeners: CallbackList, dataset: Any, epoch_num: int | None
    ) -> CallbackParameters:
        role = "train_dataset" if mode == "train" else "valid_dataset"
        return CallbackParameters(
            mode=mode,
            network=self._network,
            list_callback=listeners,
            loss_fn=self._loss_fn,
            optimizer=self.optimizer,
            train_network=self.train_network,
            eval_network=self.eval_network,
            boosted=self._boosted,
            epoch_num=epoch_num,
            batch_num=n_batches_of(dataset),
            **{role: dataset},
        )

    def __repr__(self) -> str:
        effect = "no optimizer" if self._boosted is None or self._boosted.plan is None else self._boosted.plan.summary()
        return f"Model({type(self._network).__name__}, {effect})"
