"""What this machine offers for training, and what is missing: the checks behind ``workbench doctor``."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from workbench.core import devices
from workbench.core.other_work import other_work_now
from workbench.core.processor import too_many_threads

_NEEDED = ("torch", "optuna", "plotly", "pandas", "pyarrow", "pydantic", "jupyterlab", "ipywidgets", "scikit-learn")
_NO_KERNELS = "none; a C compiler (Debian: gcc) makes AdamOffload with moments in bfloat16 faster"
_FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined, what was found, and whether something must be done about it."""

    subject: str
    text: str
    problem: bool = False


def examine(folder: Path | None = None) -> list[Finding]:
    """Look at Python, packages, devices, number formats, and the disk of a folder, by default the working directory."""
    import torch

    from workbench.core.kernels.library import kernel_library

    hardware = devices.hardware_summary()
    findings = [
        Finding("Python", sys.version.split()[0], sys.version_info < (3, 11)),
        Finding("processor", f"{hardware['cpu']}, {hardware['cpu_cores']} cores, {hardware['torch_threads']} used"),
        Finding("memory", f"{hardware['memory_bytes'] / 1024**3:.1f} GiB"),
        Finding("system", str(hardware["platform"])),
    ]
    if busy := other_work_now().sentence():
        findings.append(Finding("other work", busy))
    if threads := too_many_threads(hardware["torch_threads"]):
        findings.append(Finding("threads", threads))
    for name in _NEEDED:
        try:
            findings.append(Finding(name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            findings.append(Finding(name, f"missing; pip install {name}", problem=True))
    device = devices.select_device("auto")
    findings.append(Finding("device", f"{devices.device_name(device)}; --device auto trains there"))
    for dtype in (torch.float16, torch.bfloat16):
        supported = devices.autocast_supported(device, dtype)
        text = "autocast works" if supported else "autocast does not work; use amp O0"
        if supported and dtype == torch.bfloat16 and not devices.has_fast_bfloat16(device):
            text += ", slower than float32: no instructions for it"
        findings.append(Finding(str(dtype).removeprefix("torch."), text))
    has_kernels = kernel_library() is not None
    findings.append(Finding("kernel of Adam", "compiled for this processor" if has_kernels else _NO_KERNELS))
    folder = folder or Path.cwd()
    writable = os.access(folder, os.W_OK)
    findings.append(Finding("folder", f"{folder} is {'' if writable else 'not '}writable", problem=not writable))
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free there"
    findings.append(Finding("disk", text + ("" if free >= _FREE_BYTES else "; runs may not fit"), free < _FREE_BYTES))
    return findings
