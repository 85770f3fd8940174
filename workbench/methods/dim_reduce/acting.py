"""DimReduce in training: the components that a plan names, and the step in the optimizer's place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from workbench.config import ConfigError, Plan, line_search_trials
from workbench.core import distributed as ranks
from workbench.core.records import Event, EventKind
from workbench.core.sparse_tables import sparse_tables
from workbench.core.step_optimizer import held_parameters
from workbench.methods.dim_reduce.components import component_rows
from workbench.methods.dim_reduce.method import DimReduce
from workbench.methods.dim_reduce.pca_files import (
    load_explained_variance,
    load_pca_matrix,
    prepare_pca_matrix,
    save_pca_matrix,
)
from workbench.methods.plan_mark import prepared_module, trained_parameters
from workbench.methods.protocol import Method, Preparation
from workbench.methods.weight_update import CompleteWindow, WeightUpdate


class DimReduceMethod(Method):
    """Replaces the optimizer, whatever it was, by plain subtraction and computes what is subtracted."""

    def prepare(self, preparation: Preparation) -> None:
        """Replace the optimizer by SGD with a rate of 1."""
        held = held_parameters(preparation.optimizer)
        preparation.optimizer = SGD([parameter for parameter in held if parameter.requires_grad], lr=1.0)

    @staticmethod
    def export(plan: Plan, folder: Path, export: str, snapshots: Path | None) -> Mapping[str, Any]:
        """Write the components that a plan was trained with; return the values that read them."""
        settings, matrix = plan.config.dim_reduce, folder / f"pca_mat.{export}.npy"
        k, given = settings.n_components, Path(settings.pca_mat_path or ".")
        source = given if given.is_file() else _computed_from(snapshots, k)
        shares = load_explained_variance(source)
        save_pca_matrix(matrix, load_pca_matrix(source, n_components=k), None if shares is None else shares[:k])
        # MindSpore asks for an absolute path.
        return {"dim_reduce.pca_mat_path": str(matrix.absolute()), "dim_reduce.weight_load_dir": None}

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return the quasi-Newton update; its components are read, or computed from snapshots.

        A ConfigError says what is missing, broken or foreign. Several ranks share one file: the first one computes it,
        the others wait for it, each reads its own rows.
        """
        settings, arithmetic = self.config.dim_reduce, self.config.compatibility.dim_reduce
        if tables := sparse_tables(model):
            raise ConfigError(
                f"dim_reduce takes dense gradients only, but those of {next(iter(tables))} are sparse; take an "
                "nn.Embedding with sparse=False"
            )
        named = trained_parameters(model, optimizer)
        shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        rank, rank_size, k = ranks.rank(), self.plan.world_size, settings.n_components

        folders = settings.pca_mat_path, settings.weight_load_dir
        n_weights = sum(parameter.numel() for parameter in named.values())
        rows = component_rows(k, rank, rank_size, arithmetic)
        try:
            path = prepare_pca_matrix(*folders, shapes, k, rank=rank, timeout=settings.timeout)
            matrix = load_pca_matrix(path, n_components=k, n_weights=n_weights, rows=rows)
        except (ValueError, OSError) as error:
            raise ConfigError(f"dim_reduce cannot start: {error}") from error
        shares = load_explained_variance(path)
        method = DimReduce(
            prepared_module(model),
            optimizer,
            list(named.values()),
            matrix,
            k,
            rho=settings.rho,
            gamma=settings.gamma,
            alpha=settings.alpha,
            sigma=settings.sigma,
            rank=rank,
            rank_size=rank_size,
            line_search_trials=line_search_trials(self.config),
            arithmetic=arithmetic,
        )
        return DimReduceUpdate(method, None if shares is None else float(shares[:k].sum()))


class DimReduceUpdate(WeightUpdate):
    """The step of DimReduce in the place of the optimizer's; one whose gradients are not finite is skipped before.

    Columns: ``dim_reduce.rho`` (0 when the search failed), ``dim_reduce.trials``, ``dim_reduce.condition``, and, where
    it is known, ``dim_reduce.explained_variance`` (of the snapshots, by all components) at the first step.
    """

    takes_schedule = False  # it subtracts steps whose length is decided already

    def __init__(self, dim_reduce: DimReduce, explained_variance: float | None = None) -> None:
        self.dim_reduce = dim_reduce
        self.explained_variance = explained_variance  # until the first step has reported it

    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        """Take a step."""
        if window.evaluate is None:
            raise RuntimeError(
                "DimReduce tries its steps on the batch they were computed from, so step() needs to know it: call "
                "boosted.step(lambda: criterion(boosted.model(x), y))"
            )
        method = self.dim_reduce
        groups = [] if method.optimizer is None else method.optimizer.param_groups
        if wrong := {float(group["lr"]) for group in groups} - {1.0}:
            raise RuntimeError(
                f"with DimReduce the optimizer subtracts finished steps, its learning rate must stay 1, got "
                f"{max(wrong):g}; train without a learning-rate scheduler (`dim_reduce.alpha` is the rate)"
            )
        if window.found_inf is not None and bool(window.found_inf):
            return {}
        gradients = [parameter.grad for parameter in method.weight]
        step = method.step(window.loss.float(), gradients, window.evaluate, loss_scale=window.gradient_scale)
        columns = {
            "dim_reduce.rho": step.rho,
            "dim_reduce.trials": float(step.trials),
            "dim_reduce.condition": method.condition(),
        }
        if self.explained_variance is not None:
            columns["dim_reduce.explained_variance"] = self.explained_variance
            self.explained_variance = None
        if not step.found and window.events is not None:
            message = (
                f"step {window.step}: none of {step.trials} trials of the line search lowered the loss enough; only "
                "the part of the step outside the subspace was taken"
            )
            shortest = method.rho ** (step.trials - 1)
            window.events.emit(Event(window.step, EventKind.LINE_SEARCH_FAILED, "dim_reduce", shortest, message))
        return columns

    def state_dict(self) -> dict[str, Any]:
        """Return the method's state: inverse Hessian, last step and gradient in the subspace, momentum outside."""
        return self.dim_reduce.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken, with the same components."""
        self.dim_reduce.load_state_dict(state)


def _computed_from(snapshots: Path | None, k: int) -> Path:
    """Return the file of the components that were computed from a folder of snapshots, the newest of this size."""
    files = [] if snapshots is None else sorted(snapshots.glob("pca_mat_*.npy"))
    shapes = {path: load_pca_matrix(path).shape for path in files}
    fitting = {path: shape for path, shape in shapes.items() if shape[0] == k}
    if not fitting:
        raise LookupError(
            f"the {k} components of a DimReduce candidate are not in {snapshots or 'the warm-up of this study'}; "
            "export on the machine that trained it, or copy its folder `runs` here"
        )
    if len(set(fitting.values())) > 1:
        raise LookupError(
            f"{snapshots} holds subspaces of several networks, so it is not clear which one to export; give the study "
            "a folder of its own in `dim_reduce.weight_load_dir`"
        )
    return max(fitting, key=lambda path: path.stat().st_mtime_ns)
