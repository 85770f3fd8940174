"""Section ``runtime``: what changes the time of a step and not what it computes, beyond rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from workbench.config.boost import GRADIENTS_MAY_HIDE
from workbench.config.conditions import Condition, declared, is_not
from workbench.config.section import MethodSection, described

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

CompileMode = Literal["off", "default", "max-autotune", "reduce-overhead"]
Reading = Literal["as_given", "resident", "prefetch"]
_IN_CHANNELS_LAST = is_not(
    "runtime.memory_format", "contiguous", "kernels would be put into channels_last in every pass; set it for good"
)
_EAGER = Condition(
    lambda config, facts: (
        ""
        if config.part(RuntimeSection).compile == "off" or GRADIENTS_MAY_HIDE.why_not(config, facts)
        else "a compiled model's convolutions are the library's"
    ),
    "the model is not compiled",
    GRADIENTS_MAY_HIDE.reads | {"runtime.compile"},
)

_NO_GRAPHS_YET = is_not(
    "runtime.compile", "reduce-overhead", "compile mode reduce-overhead replays CUDA graphs already"
) & is_not("runtime.compile", "max-autotune", "compile mode max-autotune replays CUDA graphs already")


class RuntimeSection(MethodSection):
    """Section ``runtime``."""

    compile: CompileMode = described(
        "off",
        "Compile",
        "Whether torch.compile makes one graph of the model, and how hard it tries; evaluation stays eager.",
        when=GRADIENTS_MAY_HIDE,
    )
    memory_format: Literal["contiguous", "channels_last"] = described(
        "contiguous",
        "Memory format",
        "How images and kernels of convolutions lie in memory; channels_last keeps the channels of a pixel together.",
    )
    convolution: Literal["library", "by_shape"] = described(
        "library",
        "Convolution",
        "How a CPU computes convolutions over images: as its library does, or in the way that their shapes make "
        "fastest: by products of matrices, or in float32.",
        when=_IN_CHANNELS_LAST & _EAGER,
    )
    matmul_precision: Literal["highest", "high", "medium"] = described(
        "highest",
        "Precision of products",
        "How float32 matrices may be multiplied: high allows TF32, medium bfloat16, where the device has them.",
    )
    cuda_graph: bool = described(
        False,
        "CUDA graph",
        "Whether the model's kernels are replayed as CUDA graphs, compiled or not; for accelerators that have them.",
        when=GRADIENTS_MAY_HIDE & _NO_GRAPHS_YET,
    )
    cudnn_benchmark: bool = described(
        False, "cuDNN benchmark", "Whether cuDNN tries its convolutions for each shape and takes the fastest."
    )
    threads: int | None = described(
        None, "Threads", "Threads of CPU operations; unset leaves what the process has.", unit="threads", ge=1, le=1024
    )
    data: Reading = described(
        "as_given",
        "Data",
        "How training batches are read: as the loader makes them, from samples that are kept in memory once they are "
        "read, or ahead of the training by another process.",
    )

    def why_not(self, config: BoostConfig, facts: Facts) -> str:
        """Return why nothing of what is asked for is in effect."""
        reasons = self.left_out(config, facts)
        return next(iter(reasons.values())) if reasons and len(reasons) == len(self._asked_for()) else ""

    def left_out(self, config: BoostConfig, facts: Facts) -> Mapping[str, str]:
        """Return which settings have no effect, and why."""
        fields = type(self).model_fields
        reasons = {name: declared(fields[name]).when.why_not(config, facts) for name in self._asked_for()}
        return {name: reason for name, reason in reasons.items() if reason}

    def summary(self) -> str:
        """Return what is asked for in a few words."""
        words = {
            "compile": f"compiled ({self.compile})",
            "memory_format": self.memory_format,
            "convolution": "convolutions by shape",
            "matmul_precision": f"{self.matmul_precision} matmul precision",
            "cuda_graph": "CUDA graph",
            "cudnn_benchmark": "cuDNN benchmark",
            "threads": f"{self.threads} {'thread' if self.threads == 1 else 'threads'}",
            "data": "samples kept in memory" if self.data == "resident" else "batches read ahead",
        }
        return ", ".join(words[name] for name in self._asked_for())

    def _asked_for(self) -> list[str]:
        return [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
