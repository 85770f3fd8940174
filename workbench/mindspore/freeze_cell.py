"""Training cells for gradient freezing: one callable per group, each doing one step for its group.

Translation of MindSpore 2.7.0, ``mindspore/python/mindspore/boost/grad_freeze.py`` (``freeze_cell``): there a cell
holds a compiled gradient function for the weights of one group; here autograd does that, so ``grad`` is not needed.
Freezing together with accumulation works (upstream raises AttributeError).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.methods.grad_accumulation.method import AccumulationWindow
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.mindspore.train_step_cells import checked_sens


@dataclass(eq=False)
class FreezeTrainCell:
    """One training step for one group. Made by :func:`freeze_cell`; call it with the network's inputs."""

    network: nn.Module
    optimizer: FreezeOpt
    index: int  # of the group it trains
    sens: float
    window: AccumulationWindow  # shared by the cells of one training
    owner: list[int]  # holds the index of the group whose window is open; shared likewise
    degree: int | None  # ranks to reduce gradients over; None for a single process
    mean: bool

    def __call__(self, *inputs: Any) -> Tensor:
        """Run one micro-batch, update the group when its window is complete, and return the detached loss before that.

        A cell does not move on in the strategy: call ``cells[optimizer.begin_step()](*inputs)`` for each micro-batch
        and ``optimizer.advance()`` after each update. Amid another group's window this is a RuntimeError.
        """
        if not self.window.at_start and self.owner[0] != self.index:
            raise RuntimeError(
                f"the accumulation window of group {self.owner[0]} is not complete "
                f"({self.window.position} of {self.window.n_steps} micro-batches); keep calling its cell first"
            )
        if self.window.at_start:
            self.owner[0] = self.index
            self.optimizer.enter_group(self.index)
            self.optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self.network(*inputs)
        torch.autograd.backward(loss * (self.sens * self.window.weight))
        if self.window.advance():
            if self.degree is not None:
                self._reduce(self.degree)
            self.optimizer.optimizer_of(self.index).step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _reduce(self, degree: int) -> None:
        for parameter in self.optimizer.group_parameters(self.index):
            if not parameter.requires_grad:
                continue
            # Every rank must join every reduction, with or without a gradient of its own.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            torch.distributed.all_reduce(parameter.grad)
            if self.mean:
                parameter.grad /= degree


def freeze_cell(
    reducer_flag: bool,
    network: nn.Module,
    optimizer: FreezeOpt,
    sens: float | None,
    grad: Any,
    use_grad_accumulation: bool,
    mean: bool | None = None,
    degree: int | None = None,
    max_accumulation_step: int = 1,
) -> tuple[FreezeTrainCell, ...]:
    """Return the training cells of a freezing optimizer, one per group.

    Args:
        reducer_flag: Whether to reduce gradients over the ranks of ``torch.distributed`` (leave it False under DDP,
            which does so itself).
        network: Returns the scalar loss.
        optimizer: What :meth:`~workbench.methods.grad_freeze.method.GradientFreeze.freeze_generate` returned.
        sens: Factor of the gradients; None means 1.
        grad: Accepted for the reference's signature and ignored: autograd computes the gradients.
        use_grad_accumulation: Whether several micro-batches make one update.
        mean: Divide the sum over ranks by ``degree``; None means yes, as DDP does (upstream's default depends on its
            parallel context).
        degree: Number of ranks; None means all of them.
        max_accumulation_step: Micro-batches per update with ``use_grad_accumulation``; 1 or less updates every time.

    Returns:
        One :class:`FreezeTrainCell` per group, sharing one accumulation window.

    Raises:
        TypeError: When ``optimizer`` is no FreezeOpt or ``sens`` not a number.
        RuntimeError: When gradients are to be reduced without an initialised process group.

    Example:
        >>> from workbench.nn import WithLossCell
        >>> network = WithLossCell(nn.Linear(2, 1), nn.MSELoss())
        >>> optimizer = FreezeOpt(torch.optim.SGD(network.parameters(), lr=0.1))
        >>> cells = freeze_cell(False, network, optimizer, 1.0, None, False)
        >>> cells[0](torch.ones(3, 2), torch.zeros(3, 1)).shape
        torch.Size([])
    """
    if not isinstance(optimizer, FreezeOpt):
        raise TypeError(f"`optimizer` must be a FreezeOpt, got {type(optimizer).__name__}")
    factor = checked_sens(sens)
    if not reducer_flag:
        degree = None
    elif not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError(
            "`reducer_flag` is set but no process group is initialised; call torch.distributed.init_process_group first"
        )
    elif degree is None:
        degree = torch.distributed.get_world_size()
    window, owner = AccumulationWindow(max_accumulation_step if use_grad_accumulation else 1), [0]
    shared = (window, owner, degree, mean is None or mean)
    return tuple(FreezeTrainCell(network, optimizer, i, factor, *shared) for i in range(optimizer.n_groups))
