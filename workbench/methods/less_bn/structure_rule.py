"""Which BatchNorms LessBN may remove, read off the graph of the network.

A BatchNorm may go if another BatchNorm that stays takes over its work: the scale of its channels is set again before
it can reach a sum, a concatenation or the output. Words: a *join* is an addition of two signals or a concatenation of
several; a signal *escapes* if it reaches a join or the output without meeting another BatchNorm.

1. *Residual branch.* Between a fork and the addition that ends it, with no other join inside: every BatchNorm that
   does not escape. So the last one before the addition stays and bounds the size of the sum.
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

from collections.abc import Iterable, Iterator, Sequence

from workbench.methods.less_bn.network_graph import Step

LONGEST_RUN = 2  # BatchNorms removed in a row; the bottleneck block of ResNet-50 is the longest published case


def removable_by_structure(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the names of the BatchNorm modules that the rule lets go, in execution order."""
    flow = _Flow(steps)
    candidates = {
        norm
        for norm in [*_branch_norms(flow), *_shortcut_norms(flow), *_expansion_norms(flow), *_dense_norms(flow)]
        if not (norm.inputs and norm.inputs[0].depthwise) and flow.has_norm_before(norm)
    }
    # From the end backwards: how many go in a row until one that stays.
    run: dict[Step, int] = {}
    for norm in reversed(flow.norms):
        following = max((run[after] for after in flow.next_norms(norm)), default=0)
        if norm in candidates and following >= LONGEST_RUN:
            candidates.discard(norm)
        run[norm] = following + 1 if norm in candidates else 0
    staying = {norm.name for norm in flow.norms if norm not in candidates}
    return tuple(dict.fromkeys(norm.name for norm in flow.norms if norm.name not in staying))


class _Flow:
    """What reads what: ancestors as bit masks over positions, users as lists."""

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
        mask = self.ancestors[one.position] & ~self.ancestors[other.position]
        return {step for step in self.steps if mask >> step.position & 1}

    def common_signal(self, one: Step, other: Step) -> bool:
        return bool(self.ancestors[one.position] & self.ancestors[other.position] & self._signal_mask)

    def reached(self, start: Step, *also_stops: str) -> Iterator[Step]:
        """Steps after ``start``, each once; norms, joins, the output and other kinds given are not passed."""
        waiting, seen = list(self.users[start]), set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            yield step
            if not (step.is_join or step.kind in {"bn", "output", *also_stops}):
                waiting.extend(self.users[step])

    def next_norms(self, norm: Step) -> list[Step]:
        return [step for step in self.reached(norm) if step.kind == "bn"]

    def escapes(self, norm: Step) -> bool:
        return any(step.is_join or step.kind == "output" for step in self.reached(norm))

    def only_user(self, step: Step | None, *passed: str) -> Step | None:
        """Return the one step that reads another, behind those of kinds that are passed over."""
        users = [] if step is None else self.users[step]
        user = users[0] if len(users) == 1 else None
        return self.only_user(user, *passed) if user is not None and user.kind in passed else user


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
    for addition, end, branch, shortcut in _branches(flow):
        norms = [step for step in shortcut if step.kind == "bn"]
        if norms != [end] or _n_convolutions(shortcut) != 1 or flow.only_user(end) is not addition:
            continue
        ends_normalized = any(addition in flow.reached(step, "conv", "linear") for step in branch if step.kind == "bn")
        if end.inputs[0].kind == "conv" and _n_convolutions(branch) >= 2 and ends_normalized:
            yield end


def _expansion_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        expansion = norm.inputs[0]
        if expansion.kind != "conv" or expansion.depthwise or flow.only_user(expansion) is not norm:
            continue
        source = expansion.inputs[0]
        while source.kind == "pad":  # TensorFlow's padding, an operation of its own
            source = source.inputs[0]
        activation = flow.only_user(norm)
        if source.kind not in {"bn", "add"} or activation is None or activation.kind not in {"relu", "relu6", "other"}:
            continue
        depthwise = flow.only_user(activation, "pad")
        after = flow.only_user(depthwise)
        if depthwise is not None and depthwise.depthwise and after is not None and after.kind == "bn":
            yield norm


def _dense_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        if norm.inputs[0].kind == "cat" and not flow.escapes(norm) and flow.next_norms(norm):
            yield norm
