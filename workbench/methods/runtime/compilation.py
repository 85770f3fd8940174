"""``torch.compile`` for training: no silent fall back to eager execution, and failures in a sentence.

torch counts the graphs of a function over all models of a process, and past its limit (8) goes on eagerly with a
warning. So the limit is an error here (`compiling`), and what former trainings compiled is forgotten when a new one
begins (`compiled`), unless it is the same set-up with another seed.

Private names used: ``torch._dynamo.exc`` holds the only classes of torch's compile errors, and ``torch._inductor``'s
``list_mode_options``, which ``torch.compile``'s own documentation points to, says what a mode stands for (torch 2.13).
Ansel et al., "PyTorch 2", ASPLOS 2024, doi:10.1145/3620665.3640366.
"""

from __future__ import annotations

import contextlib
import gc
import textwrap
import weakref
from collections.abc import Hashable, Iterator

import torch
from torch import nn

from workbench.methods.runtime.section import CompileMode

_GRAPHS = 8  # torch's own limit: training, a short last batch, growing inputs (which become dynamic at the second size)

_living: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_last: Hashable = None


def compiled(
    model: nn.Module,
    mode: CompileMode = "default",
    *,
    cuda_graph: bool = False,
    channels_last: bool = False,
    key: Hashable = None,
) -> nn.Module:
    """Return a module that runs a model, in its final form, compiled; nothing is compiled before the first call.

    ``"off"`` with ``cuda_graph`` replays torch's own kernels. What was compiled before in this process is forgotten
    where nothing that this function returned lives any more and ``key``, which decides about the graphs, is another.
    """
    global _last  # noqa: PLW0603  # one process has one compiler
    if key != _last:
        if _living:
            gc.collect()  # a compiled module refers to itself and outlives its last user until then
        if not _living:
            torch.compiler.reset()
    _last = key
    if mode == "off" and not cuda_graph:
        return model
    if mode == "default" and cuda_graph:
        mode = "reduce-overhead"
    if mode == "off":
        # Under torch 2.11 the graphs of sizes that it takes for variable fail at the first other size.
        made = torch.compile(model, backend="cudagraphs", dynamic=False)
    elif channels_last:
        from torch._inductor import list_mode_options

        # Graphs of the backward pass keep the format only when asked so (pytorch#189239).
        made = torch.compile(model, options={**list_mode_options(mode), "force_layout_optimization": True})
    else:
        made = torch.compile(model, mode=mode)
    if not isinstance(made, nn.Module):
        raise TypeError(f"torch.compile made a {type(made).__name__} of a {type(model).__name__}")
    _living.add(made)
    return made


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Surround what calls compiled models: too many graphs are a RuntimeError, errors of the compiler are sentences."""
    import torch.compiler.config as settings
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    room = max(settings.recompile_limit, _GRAPHS * len(_living))
    # torch installs `patch` when the module is loaded, where the checker does not see it.
    with settings.patch(fail_on_recompile_limit_hit=True, recompile_limit=room):  # type: ignore[attr-defined]
        try:
            yield
        except FailOnRecompileLimitHit as error:
            raise RuntimeError(
                f"torch.compile made {room} graphs of this model and needs yet another one, since its inputs or modes "
                "keep changing; set `runtime.compile` and `runtime.cuda_graph` to off"
            ) from error
        except TorchDynamoException as error:
            said = _in_a_line(str(error)) or type(error).__name__
            raise RuntimeError(f"torch.compile failed on this model ({said}); set `runtime.compile` to off") from error


def _in_a_line(message: str) -> str:
    """Return where torch's pages of text say it happened, and the first error they name."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines[1:] if "Error" in line]
    return textwrap.shorten(" ".join([*lines[:1], *named[:1]]), 400)
