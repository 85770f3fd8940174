"""The graph of a network as the BatchNorm rules see it, and the structural rule.

:func:`read_graph` traces a network with torch.fx down to its layers, :func:`record_graph` follows one real call of it;
both return its steps in execution order, and which parameters are read besides by the call of the layer they belong to.
:func:`removable_by_structure` reads from them which BatchNorms LessBN may remove.

Random choices (stochastic depth) are drawn from generators of a fixed seed, and the generators of Python, numpy and
torch are left as they were: the same network gives the same graph in every run and on every rank.

The rule
--------
A BatchNorm may go if another BatchNorm that stays takes over its work: the scale of its channels is set again before
it can reach a sum, a concatenation or the output. Words: a *join* is an addition of two signals or a concatenation of
several; a signal *escapes* if it reaches a join or the output without meeting another BatchNorm.

1. *Residual branch.* Between a fork and the addition that ends it, with no other join inside: every BatchNorm that
   does not escape. So the last one before the addition stays and keeps the size of the sum in hand.
   (ResNet basic: bn1. Bottleneck: bn1 and bn2. MobileNetV2 with skip: the expansion BatchNorm.)
2. *Shortcut.* Where the main branch has at least two convolutions and ends in a BatchNorm that stays, the single
   BatchNorm of a one-convolution shortcut (downsample). Its input is the previous block's normalised sum.
3. *Inverted bottleneck without skip.* The BatchNorm of an expansion: a convolution that reads a linear signal (a
   BatchNorm or an addition, no activation) and is followed by an activation, a depthwise convolution and its
   BatchNorm.
4. *Dense layer.* A BatchNorm that reads a concatenation and does not escape (norm1 of every DenseNet layer but the
   first of a block, which reads a pooled map; norm2 and the transitions escape).

Exceptions, each read off the same networks:

* behind a depthwise convolution it stays: no channel mixing evens out the scales of the channels;
* the first one of a path stays: with no BatchNorm before it, nothing bounds what comes in;
* at most two in a row go, as in the bottleneck block; in a longer branch the third one stays;
* a module that is called several times goes only if every call may go.

Operand order, ``+`` or ``torch.add``, and the style of concatenation do not enter. A plain chain of layers (VGG) has no
join, hence nothing is removed.

Reference: Brock et al., "Characterizing signal propagation to close the performance gap in unnormalized ResNets",
ICLR 2021, arXiv:2101.08692, section 3, on how the variance grows along a residual path and what resets it.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["NetworkGraph", "Step", "TraceError", "read_graph", "record_graph", "removable_by_structure"]

LONGEST_RUN = 2  # BatchNorms removed in a row; the bottleneck block of ResNet-50 is the longest published case


class TraceError(RuntimeError):
    """torch.fx cannot trace the model; the message says why in one line."""


@dataclass(eq=False)
class Step:
    """One layer call or operation of a traced network.

    Attributes:
        kind: ``input``, ``constant``, ``output``, ``conv``, ``linear``, ``bn``, ``relu``, ``relu6``, ``maxpool``,
            ``mean``, ``pad``, ``add`` (of two signals), ``cat`` (of two or more signals) or ``other``.
        inputs: Steps it reads, in the order of the arguments.
        name: Dotted name of the module, empty for an operation.
        module: The module, if it is a layer.
        position: Index in execution order.
    """

    kind: str
    inputs: list[Step] = field(default_factory=list)
    name: str = ""
    module: nn.Module | None = None
    position: int = 0

    @property
    def depthwise(self) -> bool:
        """Whether this is a convolution in which no channel sees another."""
        layer = self.module
        return isinstance(layer, _ConvNd) and layer.groups > 1 and layer.groups == layer.in_channels

    @property
    def is_join(self) -> bool:
        """Whether several signals meet here."""
        return self.kind in {"add", "cat"}


@dataclass(frozen=True)
class NetworkGraph:
    """What one trace or one recorded call of a network showed.

    Attributes:
        steps: In execution order, the output last.
        read_elsewhere: Dotted names of parameters and buffers whose values something other than the call of their own
            module reads: ``F.conv2d(x, self.conv.weight)``, a penalty on ``bn.weight``.
    """

    steps: list[Step]
    read_elsewhere: frozenset[str]


def read_graph(
    model: nn.Module, *, training: bool = False, followed_by: Mapping[str, Sequence[str]] | None = None
) -> NetworkGraph:
    """Trace the model with torch.fx. Its parameters, buffers and training flags are left as they are.

    Args:
        model: Network whose control flow does not depend on data.
        training: Whether to trace what it does in training instead of evaluation.
        followed_by: For BatchNorm subclasses that do more, by dotted name: the children that run after the norm.

    Raises:
        TraceError: When torch.fx cannot trace it.
    """
    with _in_mode(model, training), unchanged_randomness(model):
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
    """Follow one real call of the model, tensor by tensor; control flow may depend on data.

    Args:
        model: A copy that is not used afterwards: in training its statistics move.
        call: Calls the model on example inputs, and may do more: what a loss function reads is recorded, too.
        training: Whether to record what it does in training instead of evaluation.
        followed_by: As for :func:`read_graph`.

    Raises:
        TraceError: When the call fails, or nothing connects its inputs with its output.
    """
    recorder = _Recorder(model, _Builder(model, followed_by))
    try:
        with called_apart(model, training=training):
            outputs = recorder.follow(call)
    except Exception as error:  # the user's model on the user's input
        raise TraceError(f"the example inputs did not run: {_one_line(error)}") from error
    ends = [step for step in map(recorder.step_of, outputs) if step is not None]
    if not ends:
        raise TraceError(f"no tensor that {type(model).__name__} returns depends on the example inputs")
    recorder.builder.step("output", ends)
    return NetworkGraph(recorder.builder.steps, frozenset(recorder.read_elsewhere))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists, mappings (a ModelOutput is one) and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name, None))


@contextlib.contextmanager
def called_apart(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Let a copy of a model be called without warnings, compiler or lasting effect on random generators.

    With gradients: a loss may ask for some on the way.
    """
    # A part that torch.compile has compiled would compile the recorder, too.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
    with _in_mode(model, training), unchanged_randomness(model), torch.enable_grad(), eager, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def unchanged_randomness(model: nn.Module) -> Iterator[None]:
    """Draw from generators of a fixed seed inside, and leave those of Python, numpy and torch as they were."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type in {"cuda", "npu", "xpu"}}
    outside = random.getstate(), np.random.get_state()  # noqa: NPY002  # what a forward may draw from
    kind = next((device.type for device in devices), "cuda")
    try:
        with torch.random.fork_rng(sorted(devices, key=str), device_type=kind):
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            torch.default_generator.manual_seed(0)
            for device in devices:
                accelerator = torch.get_device_module(device)
                with accelerator.device(device):
                    accelerator.manual_seed(0)
            yield
    finally:
        random.setstate(outside[0])
        np.random.set_state(outside[1])  # noqa: NPY002


def removable_by_structure(steps: Sequence[Step], *, input_is_normalized: bool = False) -> tuple[str, ...]:
    """Return the names of the BatchNorm modules that the rule of this module lets go, in execution order.

    Args:
        steps: Steps of one network, from :func:`read_graph`.
        input_is_normalized: Whether a BatchNorm stands before the input, when ``steps`` are only a part of a network.
    """
    flow = _Flow(steps)
    candidates = {
        norm
        for norm in [*_branch_norms(flow), *_shortcut_norms(flow), *_expansion_norms(flow), *_dense_norms(flow)]
        if not (norm.inputs and norm.inputs[0].depthwise) and (input_is_normalized or flow.has_norm_before(norm))
    }
    # From the end backwards: how many go in a row until one that stays.
    run: dict[Step, int] = {}
    for norm in sorted(flow.norms, key=lambda step: step.position, reverse=True):
        following = max((run[after] for after in flow.next_norms(norm)), default=0)
        if norm in candidates and following >= LONGEST_RUN:
            candidates.discard(norm)
        run[norm] = following + 1 if norm in candidates else 0
    calls: dict[str, list[Step]] = {}
    for norm in flow.norms:
        calls.setdefault(norm.name, []).append(norm)
    return tuple(name for name, norms in calls.items() if all(norm in candidates for norm in norms))


class _Flow:
    """Who reads whom: ancestors as bit masks over positions, users as lists."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.norms = [step for step in steps if step.kind == "bn"]
        self.users: dict[Step, list[Step]] = {step: [] for step in steps}
        self.ancestors: list[int] = []
        for step in steps:
            mask = 1 << step.position
            for source in step.inputs:
                mask |= self.ancestors[source.position]
                self.users[source].append(step)
            self.ancestors.append(mask)
        self._norm_mask = sum(1 << norm.position for norm in self.norms)
        self._signal_mask = sum(1 << step.position for step in steps if step.kind != "constant")

    def has_norm_before(self, norm: Step) -> bool:
        return bool(self.ancestors[norm.position] & self._norm_mask & ~(1 << norm.position))

    def exclusive(self, one: Step, other: Step) -> set[Step]:
        """Steps that lead to ``one`` and not to ``other``."""
        return self.in_mask(self.ancestors[one.position] & ~self.ancestors[other.position])

    def common_signal(self, one: Step, other: Step) -> bool:
        return bool(self.ancestors[one.position] & self.ancestors[other.position] & self._signal_mask)

    def in_mask(self, mask: int) -> set[Step]:
        found = set()
        while mask:
            lowest = mask & -mask
            found.add(self.steps[lowest.bit_length() - 1])
            mask ^= lowest
        return found

    def reached(self, start: Step, stops: Callable[[Step], bool]) -> Iterator[Step]:
        """Steps after ``start``, each once; a step for which ``stops`` holds is given but not passed."""
        waiting, seen = list(self.users[start]), set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            yield step
            if not stops(step):
                waiting.extend(self.users[step])

    def next_norms(self, norm: Step) -> list[Step]:
        return [step for step in self.reached(norm, _stops_signal) if step.kind == "bn"]

    def escapes(self, norm: Step) -> bool:
        return any(step.is_join or step.kind == "output" for step in self.reached(norm, _stops_signal))

    def only_user(self, step: Step) -> Step | None:
        users = self.users[step]
        return users[0] if len(users) == 1 else None


def _stops_signal(step: Step) -> bool:
    return step.kind == "bn" or step.is_join or step.kind == "output"


def _branches(flow: _Flow) -> Iterator[tuple[Step, Step, set[Step], set[Step]]]:
    """Every residual addition, from both sides: addition, operand, steps of its branch, steps of the other branch."""
    for addition in flow.steps:
        if addition.kind != "add":
            continue
        one, other = addition.inputs
        if one is other or not flow.common_signal(one, other):
            continue
        sides = flow.exclusive(one, other), flow.exclusive(other, one)
        if any(step.is_join for side in sides for step in side):
            continue  # a feature pyramid or a U-Net: what lies between is no single branch
        yield addition, other, sides[0], sides[1]
        yield addition, one, sides[1], sides[0]


def _n_convolutions(steps: Iterable[Step]) -> int:
    return sum(step.kind == "conv" for step in steps)


def _branch_norms(flow: _Flow) -> Iterator[Step]:
    for _, _, branch, _ in _branches(flow):
        if _n_convolutions(branch) >= 2:
            yield from (step for step in branch if step.kind == "bn" and not flow.escapes(step))


def _shortcut_norms(flow: _Flow) -> Iterator[Step]:
    for addition, shortcut_end, branch, shortcut in _branches(flow):
        norms = [step for step in shortcut if step.kind == "bn"]
        if norms != [shortcut_end] or _n_convolutions(shortcut) != 1 or flow.only_user(shortcut_end) is not addition:
            continue
        source = shortcut_end.inputs[0]
        main_ends_normalized = any(
            addition in flow.reached(step, lambda after: _stops_signal(after) or after.kind in {"conv", "linear"})
            for step in branch
            if step.kind == "bn"
        )
        if source.kind == "conv" and _n_convolutions(branch) >= 2 and main_ends_normalized:
            yield shortcut_end


def _expansion_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        expansion = norm.inputs[0]
        if expansion.kind != "conv" or expansion.depthwise or flow.only_user(expansion) is not norm:
            continue
        source = expansion.inputs[0]
        while source.kind == "pad":  # TensorFlow's padding, an operation of its own
            source = source.inputs[0]
        if source.kind not in {"bn", "add"}:
            continue
        activation = flow.only_user(norm)
        if activation is None or activation.kind not in {"relu", "relu6", "other"}:
            continue
        depthwise = flow.only_user(activation)
        while depthwise is not None and depthwise.kind == "pad":
            depthwise = flow.only_user(depthwise)
        if depthwise is None or not depthwise.depthwise:
            continue
        after = flow.only_user(depthwise)
        if after is not None and after.kind == "bn":
            yield norm


def _dense_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        if norm.inputs[0].kind == "cat" and not flow.escapes(norm) and flow.next_norms(norm):
            yield norm


# By the names of functions and methods, which torch.fx and the recorder share.
ADDITIONS = {"add", "add_", "iadd", "__add__", "__radd__", "__iadd__"}
CONCATENATIONS = {"cat", "concat", "concatenate"}
FUNCTION_KINDS = {
    "relu": "relu",
    "relu_": "relu",
    "relu6": "relu6",
    "mean": "mean",
    "pad": "pad",
    "max_pool1d": "maxpool",
    "max_pool2d": "maxpool",
    "max_pool3d": "maxpool",
    **dict.fromkeys(ADDITIONS, "add"),
    **dict.fromkeys(CONCATENATIONS, "cat"),
}


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
        kind, name = _kind_of_layer(module), self._name_of[id(module)]
        if kind == "identity" and inputs:
            return inputs[0]
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


def _kind_of_layer(module: nn.Module) -> str:
    kinds: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], str], ...] = (
        (nn.Identity, "identity"),
        (_BatchNorm, "bn"),
        (_ConvNd, "conv"),
        (nn.Linear, "linear"),
        (nn.ReLU6, "relu6"),  # before ReLU only for clarity: ReLU6 is a Hardtanh
        (nn.ReLU, "relu"),
        ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), "maxpool"),
    )
    return next((kind for cls, kind in kinds if isinstance(module, cls)), "other")


def _is_layer(module: nn.Module) -> bool:
    """Whether a call of the module is one step: torch's own layers, and a user's subclasses of those that we know."""
    own = module.__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)
    return own or isinstance(module, (_BatchNorm, _ConvNd, nn.Linear))


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
    return (
        node.op == "call_function" and node.target is getattr and node.args[1] in {"shape", "ndim", "dtype", "device"}
    )


class _LayerTracer(fx.Tracer):
    """Tracer that keeps a user's own subclasses of convolution, BatchNorm and Linear as one node each."""

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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the symbolic tensors, nothing the user can act on
                return tracer.trace(model, concrete_args=optional or None)
        except Exception as error:  # any error of the user's forward may come from a symbolic tensor
            failure = error
    raise TraceError(f"torch.fx cannot trace {type(model).__name__}: {_one_line(failure)}") from failure


def _one_line(error: Exception | None) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Recorder(TorchFunctionMode):
    """Notes who made each tensor: a layer (by hooks on its call) or an operation outside of all layers."""

    def __init__(self, model: nn.Module, builder: _Builder) -> None:
        super().__init__()
        self.builder = builder
        self.read_elsewhere: set[str] = set()
        self._model = model
        self._made_by: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        self._inside: list[nn.Module] = []
        self._own: set[int] = set()

    def step_of(self, tensor: Tensor) -> Step | None:
        step: Step | None = self._made_by.get(tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return step

    def follow(self, call: Callable[[nn.Module], Any]) -> list[Tensor]:
        """Make the call and return the tensors that the model returned in it."""
        outputs: list[Tensor] = []
        handles = [
            self._model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
            self._model.register_forward_hook(lambda module, args, output: outputs.extend(tensors_in(output))),
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
        made = list(tensors_in(result))
        given = list(tensors_in((args, kwargs)))
        if made or name in {"item", "tolist", "numpy", "__bool__", "__float__", "__int__"}:
            read_here = {id(tensor) for tensor in given} & self._names.keys() - self._own
            self.read_elsewhere.update(self._names[tensor] for tensor in read_here)
        if self._inside:
            return result
        read = [step for step in map(self.step_of, given) if step is not None]
        if read and name == "__setitem__":
            made = [args[0]]
        if read and made:
            self._note(made, self.builder.operation(name, read))
        return result

    def _note(self, tensors: Iterable[Tensor], step: Step) -> None:
        for tensor in tensors:
            if id(tensor) not in self._names:
                self._made_by[tensor] = step

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in tensors_in((args, kwargs)):
            if self.step_of(tensor) is None:
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
        read = [step for step in map(self.step_of, tensors_in((args, kwargs))) if step is not None]
        if read:
            self._note(tensors_in(output), self.builder.layer(module, read))

    def _link(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Connect what a module made by means that no hook sees (a scripted function) with what it was given."""
        lost = [tensor for tensor in tensors_in(output) if self.step_of(tensor) is None]
        read = [step for step in map(self.step_of, tensors_in((args, kwargs))) if step is not None]
        if lost and read and not self._inside:
            self._note(lost, self.builder.operation("", read))
