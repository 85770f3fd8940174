"""The graph of a network as the BatchNorm rules see it: layer calls and operations, each with what it reads.

:func:`read_graph` traces a network with torch.fx down to its layers, :func:`record_graph` follows one real call of it.
Random choices (stochastic depth) have a fixed seed, so that every run and rank sees the same graph.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from workbench.core.batch import tensors_of
from workbench.core.own_generators import kept_generators, seed_generators
from workbench.core.torch_internals import BatchNorm, ConvNd

# By the names of functions and methods, which torch.fx and the recorder share.
FUNCTION_KINDS = {
    **dict.fromkeys(("relu", "relu_"), "relu"),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), "maxpool"),
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), "add"),
    **dict.fromkeys(("cat", "concat", "concatenate"), "cat"),
    **{name: name for name in ("relu6", "mean", "pad")},
}
LAYER_KINDS: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], str], ...] = (
    (nn.Identity, "identity"),
    (BatchNorm, "bn"),
    (ConvNd, "conv"),
    (nn.Linear, "linear"),
    (nn.ReLU6, "relu6"),
    (nn.ReLU, "relu"),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), "maxpool"),
)


class TraceError(RuntimeError):
    """What a network does could not be found out; the message says why in one line."""


@dataclass(eq=False)
class Step:
    """One layer call or operation of a traced network."""

    #: ``input``, ``constant``, ``output``, ``conv``, ``linear``, ``bn``, ``relu``, ``relu6``, ``maxpool``, ``mean``,
    #: ``pad``, ``add`` (of two signals), ``cat`` (of two or more signals) or ``other``.
    kind: str
    inputs: list[Step] = field(default_factory=list)  # what it reads, in the order of the arguments
    name: str = ""  # dotted, of the module; empty for an operation
    module: nn.Module | None = None  # where it is a layer
    position: int = 0  # in execution order

    @property
    def depthwise(self) -> bool:
        """Whether this is a convolution in which no channel sees another."""
        layer = self.module
        return isinstance(layer, ConvNd) and layer.groups > 1 and layer.groups == layer.in_channels

    @property
    def is_join(self) -> bool:
        """Whether several signals meet here."""
        return self.kind in {"add", "cat"}


@dataclass(frozen=True)
class NetworkGraph:
    """What one trace or one recorded call of a network showed."""

    steps: list[Step]  # in execution order, the output last
    #: Names of parameters and buffers whose values something other than the call of their own module reads:
    #: ``F.conv2d(x, self.conv.weight)``, a penalty on ``bn.weight``.
    read_elsewhere: frozenset[str]


def read_graph(
    model: nn.Module, *, training: bool = False, followed_by: Mapping[str, Sequence[str]] | None = None
) -> NetworkGraph:
    """Trace a network whose control flow does not depend on data with torch.fx, or raise TraceError; it stays as it is.

    ``followed_by`` has, for BatchNorm subclasses that do more, by dotted name: the children that run after the norm.
    """
    with _in_mode(model, training), _unchanged_randomness(model):
        graph = _trace(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    builder = _Builder(model, followed_by)
    step_of: dict[fx.Node, Step] = {}
    read_elsewhere = set()
    for node in graph.nodes:
        read = [step_of[argument] for argument in _argument_nodes(node) if argument in step_of]
        if node.op == "call_module":
            step_of[node] = builder.layer(modules[str(node.target)], read)
        elif node.op in {"placeholder", "get_attr", "output"}:
            kind = {"placeholder": "input", "get_attr": "constant", "output": "output"}[node.op]
            step_of[node] = builder.step(kind, read)
            if node.op == "get_attr" and not all(_asks_for_form(user) for user in node.users):
                read_elsewhere.add(str(node.target))
        elif _asks_for_form(node):
            step_of[node] = builder.step("constant", [])
        else:
            function = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            step_of[node] = builder.operation(function, read)
    return NetworkGraph(builder.steps, frozenset(read_elsewhere))


def record_graph(
    model: nn.Module,
    call: Callable[[nn.Module], Any],
    *,
    training: bool = False,
    followed_by: Mapping[str, Sequence[str]] | None = None,
) -> NetworkGraph:
    """Follow one real call of a copy of a network, tensor by tensor, and of its loss; TraceError when that fails."""
    recorder = _Recorder(model, _Builder(model, followed_by))
    try:
        with called_apart(model, training=training):
            outputs = recorder.follow(call)
    except Exception as error:  # the user's model on the user's input
        raise TraceError(f"the example inputs did not run: {in_one_line(error)}") from error
    ends = recorder.steps_of(outputs)
    if not ends:
        raise TraceError(f"no tensor that {type(model).__name__} returns depends on the example inputs")
    recorder.builder.step("output", ends)
    return NetworkGraph(recorder.builder.steps, frozenset(recorder.read_elsewhere))


def in_one_line(error: Exception | None) -> str:
    """Return the beginning of an error's message."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def called_apart(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Let a copy of a model be called, with gradients, without warnings, compiler or lasting effect on generators."""
    # A part that torch.compile has compiled would compile the recorder, too.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
    with _in_mode(model, training), _unchanged_randomness(model), torch.enable_grad(), eager, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _unchanged_randomness(model: nn.Module) -> Iterator[None]:
    """Draw from generators of a fixed seed inside, and leave those of Python, numpy and torch as they were."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type in {"cuda", "npu", "xpu"}}
    with kept_generators(*sorted(devices, key=str)):
        seed_generators(0)
        for device in devices:
            seed_generators(0, device)
        yield


@contextlib.contextmanager
def _in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    # The flags alone: train() may be overridden to do more.
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = training
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class _Builder:
    """Turns layer calls and operations into steps."""

    def __init__(self, model: nn.Module, followed_by: Mapping[str, Sequence[str]] | None) -> None:
        self.steps: list[Step] = []
        self._name_of = {id(module): name for name, module in model.named_modules()}
        self._followed_by = followed_by or {}

    def step(self, kind: str, inputs: list[Step], name: str = "", module: nn.Module | None = None) -> Step:
        step = Step(kind, inputs, name, module, len(self.steps))
        self.steps.append(step)
        return step

    def layer(self, module: nn.Module, inputs: list[Step]) -> Step:
        kind = next((kind for cls, kind in LAYER_KINDS if isinstance(module, cls)), "other")
        if kind == "identity" and inputs:
            return inputs[0]
        name = self._name_of[id(module)]
        step = self.step(kind, inputs, name, module)
        for child in self._followed_by.get(name, ()):
            step = self.layer(module.get_submodule(child), [step])
        return step

    def operation(self, function: str, inputs: list[Step]) -> Step:
        kind = FUNCTION_KINDS.get(function, "other")
        if kind == "cat":
            inputs = [step for step in inputs if step.kind != "constant"]
            if len(inputs) == 1:  # torchvision's first dense layer concatenates one
                return inputs[0]
        if kind == "add" and (len(inputs) != 2 or any(step.kind == "constant" for step in inputs)):
            kind = "other"  # a bias or a position embedding, not a second signal
        return self.step(kind, inputs)


def _is_layer(module: nn.Module) -> bool:
    """Whether a call of the module is one step: torch's own layers, and a user's subclasses of those that we know."""
    own = module.__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)
    return own or isinstance(module, (BatchNorm, ConvNd, nn.Linear))


# torch.fx

_one_trace_at_a_time = threading.Lock()  # of two at once one would leave the other's `nn.Module.__call__` in place


class _LayerTracer(fx.Tracer):
    """Tracer that keeps a user's own subclasses of convolution, BatchNorm and Linear as one node each.

    While it traces, torch.fx replaces ``nn.Module.__call__`` in the whole process: calls of other threads, which may be
    training, are passed through unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_layer(m)


def _trace(model: nn.Module) -> fx.Graph:
    # Optional arguments keep their defaults: `mask=None` must stay None for `if mask is not None`.
    optional: dict[str, Any] = {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    failure: Exception | None = None
    for shows_buffers in (True, False):  # a buffer that control flow depends on must stay one
        tracer = _LayerTracer()
        tracer.proxy_buffer_attributes = shows_buffers
        try:
            with _one_trace_at_a_time, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the symbolic tensors, nothing the user can act on
                return tracer.trace(model, concrete_args=optional or None)
        except Exception as error:  # any error of the user's forward may come from a symbolic tensor
            failure = error
    raise TraceError(f"torch.fx cannot trace {type(model).__name__}: {in_one_line(failure)}") from failure


def _argument_nodes(node: fx.Node) -> list[fx.Node]:
    """Nodes among the arguments, in order and with repetitions (``all_input_nodes`` would drop those)."""
    found: list[fx.Node] = []

    def collect(argument: fx.Node) -> fx.Node:
        found.append(argument)
        return argument

    fx.map_arg((node.args, node.kwargs), collect)
    return found


def _asks_for_form(node: fx.Node) -> bool:
    """Whether the node asks a tensor for its shape, type or device only."""
    if node.op == "call_method":
        return node.target in {"size", "dim", "numel"}
    is_getattr = node.op == "call_function" and node.target is getattr
    return is_getattr and node.args[1] in {"shape", "ndim", "dtype", "device"}


# A recorded call


class _Recorder(TorchFunctionMode):
    """Notes what made each tensor: a layer (by hooks on its call) or an operation outside of all layers."""

    def __init__(self, model: nn.Module, builder: _Builder) -> None:
        super().__init__()
        self.builder = builder
        self.read_elsewhere: set[str] = set()
        self._model = model
        self._made_by: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        self._inside: list[nn.Module] = []
        self._own: set[int] = set()

    def steps_of(self, value: Any) -> list[Step]:
        """Return the steps that made the tensors in a value, of those that are known."""
        made = (self._made_by.get(tensor) for tensor in tensors_of(value))  # type: ignore[no-untyped-call]
        return [step for step in made if step is not None]

    def follow(self, call: Callable[[nn.Module], Any]) -> list[Tensor]:
        """Make the call and return the tensors that the model returned in it."""
        outputs: list[Tensor] = []
        handles = [
            self._model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
            self._model.register_forward_hook(lambda module, args, output: outputs.extend(tensors_of(output))),
        ]
        for module in self._model.modules():
            if _is_layer(module):
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave, prepend=True, with_kwargs=True))
            elif module is not self._model:
                handles.append(module.register_forward_hook(self._link, with_kwargs=True))
        try:
            with self:
                call(self._model)
        finally:
            for handle in handles:
                handle.remove()
        return outputs

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        made = list(tensors_of(result))
        if made or name in {"item", "tolist", "numpy", "__bool__", "__float__", "__int__"}:
            given = {id(tensor) for tensor in tensors_of((args, kwargs))}
            self.read_elsewhere.update(self._names[key] for key in given & self._names.keys() - self._own)
        if not self._inside and (read := self.steps_of((args, kwargs))):
            if name == "__setitem__":
                made = [args[0]]
            if made:
                self._note(made, self.builder.operation(name, read))
        return result

    def _note(self, tensors: Iterable[Tensor], step: Step) -> None:
        for tensor in tensors:
            if id(tensor) not in self._names:
                self._made_by[tensor] = step

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in tensors_of((args, kwargs)):
            if not self.steps_of(tensor):
                self._note([tensor], self.builder.step("input", []))

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._inside:
            self._own = {id(tensor) for tensor in [*module.parameters(), *module.buffers()]}
        self._inside.append(module)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._inside.pop()
        if self._inside:
            return
        self._own = set()
        if read := self.steps_of((args, kwargs)):
            self._note(tensors_of(output), self.builder.layer(module, read))

    def _link(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Connect what a module made by means that no hook sees (a scripted function) with what it was given."""
        lost = [tensor for tensor in tensors_of(output) if not self.steps_of(tensor)]
        if lost and not self._inside and (read := self.steps_of((args, kwargs))):
            self._note(lost, self.builder.operation("", read))
