"""Figures: records and tables in, plain Plotly figures out.

Each module holds one figure: a function that reduces records to a small frozen dataclass of numbers, and one that draws
them, as a ``Drawing``; the ``..._figure`` of each hands that to plotly. Nothing here knows torch or
Optuna, and only ``live.py`` knows widgets.

The same arguments mean the same everywhere: ``steps`` and ``events`` are tables of a recorded run or plain records,
``theme`` is ``"auto"``, ``"light"`` or ``"dark"`` (``theme.inks``), ``height`` counts pixels, and ``limit`` is the most
points of a line.
"""

from __future__ import annotations

from workbench.figures.attribution import attribution_drawing, attribution_numbers
from workbench.figures.contour import contour_drawing, contour_numbers, contour_pair
from workbench.figures.dim_reduce import SubspacePair, dim_reduce_drawing, dim_reduce_numbers
from workbench.figures.drawing import empty_figure, figure_of, figure_text
from workbench.figures.frozen_layers import TimeSaved, frozen_layers_drawing, frozen_layers_numbers, time_saved_in_run
from workbench.figures.gradient_exponents import gradient_exponents_drawing, gradient_exponents_numbers
from workbench.figures.group_scales import group_scales_drawing, group_scales_numbers
from workbench.figures.importance import importance_drawing, importance_numbers
from workbench.figures.labels import MetricScale
from workbench.figures.loss_curves import RunCurve, loss_curve_numbers, loss_curves_drawing
from workbench.figures.loss_scale import loss_scale_drawing, loss_scale_numbers
from workbench.figures.offload import offload_drawing, offload_numbers
from workbench.figures.online_quality import online_quality_drawing, online_quality_numbers
from workbench.figures.online_stream import online_stream_drawing, online_stream_numbers
from workbench.figures.parallel_coordinates import parallel_coordinates_drawing, parallel_coordinates_numbers
from workbench.figures.replay_policies import policy_names, replay_policies_drawing, replay_policies_numbers
from workbench.figures.second_order import second_order_drawing, second_order_numbers
from workbench.figures.slices import slice_drawing, slice_numbers, sliced_parameters
from workbench.figures.speed_accuracy import speed_accuracy_drawing, speed_accuracy_numbers
from workbench.figures.step_time import step_time_drawing, step_time_numbers
from workbench.figures.study_history import study_history_drawing, study_history_numbers
from workbench.figures.theme import FIGURE_CONFIG, Theme
from workbench.figures.trial_curves import trial_curve_numbers, trial_curves_drawing

__all__ = [
    "FIGURE_CONFIG",
    "MetricScale",
    "RunCurve",
    "SubspacePair",
    "Theme",
    "TimeSaved",
    "attribution_figure",
    "attribution_numbers",
    "contour_figure",
    "contour_numbers",
    "contour_pair",
    "dim_reduce_figure",
    "dim_reduce_numbers",
    "empty_figure",
    "figure_text",
    "frozen_layers_figure",
    "frozen_layers_numbers",
    "gradient_exponents_figure",
    "gradient_exponents_numbers",
    "group_scales_figure",
    "group_scales_numbers",
    "importance_figure",
    "importance_numbers",
    "loss_curve_numbers",
    "loss_curves_figure",
    "loss_scale_figure",
    "loss_scale_numbers",
    "offload_figure",
    "offload_numbers",
    "online_quality_figure",
    "online_quality_numbers",
    "online_stream_figure",
    "online_stream_numbers",
    "parallel_coordinates_figure",
    "parallel_coordinates_numbers",
    "policy_names",
    "replay_policies_figure",
    "replay_policies_numbers",
    "second_order_figure",
    "second_order_numbers",
    "slice_figure",
    "slice_numbers",
    "sliced_parameters",
    "speed_accuracy_figure",
    "speed_accuracy_numbers",
    "step_time_figure",
    "step_time_numbers",
    "study_history_figure",
    "study_history_numbers",
    "time_saved_in_run",
    "trial_curve_numbers",
    "trial_curves_figure",
]

attribution_figure = figure_of(attribution_drawing)
contour_figure = figure_of(contour_drawing)
dim_reduce_figure = figure_of(dim_reduce_drawing)
frozen_layers_figure = figure_of(frozen_layers_drawing)
gradient_exponents_figure = figure_of(gradient_exponents_drawing)
group_scales_figure = figure_of(group_scales_drawing)
importance_figure = figure_of(importance_drawing)
loss_curves_figure = figure_of(loss_curves_drawing)
loss_scale_figure = figure_of(loss_scale_drawing)
offload_figure = figure_of(offload_drawing)
online_quality_figure = figure_of(online_quality_drawing)
online_stream_figure = figure_of(online_stream_drawing)
parallel_coordinates_figure = figure_of(parallel_coordinates_drawing)
replay_policies_figure = figure_of(replay_policies_drawing)
second_order_figure = figure_of(second_order_drawing)
slice_figure = figure_of(slice_drawing)
speed_accuracy_figure = figure_of(speed_accuracy_drawing)
step_time_figure = figure_of(step_time_drawing)
study_history_figure = figure_of(study_history_drawing)
trial_curves_figure = figure_of(trial_curves_drawing)
