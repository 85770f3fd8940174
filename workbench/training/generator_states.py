"""The states of all random generators that a training and its data may draw from, of plain values and tensors."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators that training on a device may draw from, by name."""
    return {
        "torch_rng": torch.get_rng_state(),
        "device_rng": None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device),
        "device_type": device.type,
        "other_rng": _other_generators(),
    }


def restore_generators(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the random generators to the states from `generator_states`, except those of another kind of device."""
    if "other_rng" in state:  # older files lack it
        numpy, (version, internal, next_gauss) = state["other_rng"]["numpy"], state["other_rng"]["python"]
        words = numpy["words"].cpu().numpy().astype(np.uint32)
        np.random.set_state(("MT19937", words, *numpy["rest"]))  # noqa: NPY002
        random.setstate((version, tuple(internal), next_gauss))
    torch.set_rng_state(state["torch_rng"].cpu())
    same_kind = state.get("device_type", device.type) == device.type  # older files do not say
    if state["device_rng"] is not None and device.type != "cpu" and same_kind:
        torch.get_device_module(device).set_rng_state(state["device_rng"].cpu(), device)


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators that a loader and its samplers have of their own."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _other_generators() -> dict[str, Any]:
    """Return the states of Python's and numpy's global generators, of plain values."""
    _, words, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  # models of the user's draw from it
    numpy = {"words": torch.from_numpy(np.asarray(words).astype(np.int64)), "rest": [position, has_gauss, gauss]}
    version, internal, next_gauss = random.getstate()
    return {"numpy": numpy, "python": [version, list(internal), next_gauss]}
