"""What an installation is made of: a software bill of materials of this package and all it depends on.

Read from the metadata that the installed distributions carry (`importlib.metadata`), in CycloneDX's JSON, version 1.5
(ECMA-424). Extras that are not installed are not part of it.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PACKAGE = "boost-workbench"
_CLASSIFIER = "License :: OSI Approved :: "
_LONGEST_NAME = 80  # characters; some put the whole text where the name belongs
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)+")


def bill_of_materials(package: str = _PACKAGE) -> dict[str, Any]:
    """Return the bill of an installed package: components with versions, licences and what needs what.

    Raises:
        ValueError: When the package is not installed.
    """
    try:
        found = _with_dependencies(package)
    except metadata.PackageNotFoundError:
        raise ValueError(f"{package} is not installed here, only its files are; pip install it first") from None
    first = canonicalize_name(package)
    components = {name: _component(one) for name, (one, _) in sorted(found.items())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**components[first], "type": "application"}},
        "components": [component for name, component in components.items() if name != first],
        "dependencies": [
            {"ref": components[name]["bom-ref"], "dependsOn": sorted(components[one]["bom-ref"] for one in needs)}
            for name, (_, needs) in sorted(found.items())
        ],
    }


def _with_dependencies(package: str) -> dict[str, tuple[metadata.Distribution, set[str]]]:
    """Return the distributions that a package needs here, itself included, by name, each with those it names itself."""
    found: dict[str, tuple[metadata.Distribution, set[str]]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(package), "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name not in found:
            found[name] = (metadata.distribution(name), set())
        one, needs = found[name]
        for line in one.requires or ():
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(needed.name)
            try:
                metadata.distribution(other)
            except metadata.PackageNotFoundError:
                if name == canonicalize_name(package):
                    raise
                continue  # torch's CPU build names the libraries of the CUDA build, and does without
            if other != name:
                needs.add(other)
            waiting += [(other, chosen) for chosen in ("", *needed.extras)]
    return found


def _component(one: metadata.Distribution) -> dict[str, Any]:
    name = canonicalize_name(one.metadata["Name"])
    address = f"pkg:pypi/{name}@{one.version}"
    component: dict[str, Any] = {"type": "library", "bom-ref": address, "name": name, "version": one.version}
    licences = licences_of(one)
    if licences:
        component["licenses"] = licences
    return {**component, "purl": address}


def licences_of(one: metadata.Distribution) -> list[dict[str, Any]]:
    """Return the licences that a distribution declares, as CycloneDX writes them; empty if it declares none.

    In the order of trust: an SPDX expression, the classifiers, a short text in the free field.
    """
    said = one.metadata
    expression = "".join(said.get_all("License-Expression") or ()).strip()
    if expression:
        return [{"expression": expression}]
    classified = [line for line in said.get_all("Classifier") or () if line.startswith(_CLASSIFIER)]
    if classified:
        return [{"license": {"name": line.removeprefix(_CLASSIFIER)}} for line in classified]
    free = "".join(said.get_all("License") or ()).strip()
    if _EXPRESSION.fullmatch(free):
        return [{"expression": free}]
    return [{"license": {"name": free}}] if free and "\n" not in free and len(free) <= _LONGEST_NAME else []
