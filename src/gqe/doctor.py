"""What is installed, where it can compute, and what is missing: the facts behind `gqe doctor`."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from gqe import __version__
from gqe.threads import waiting_threads_sleep

_PACKAGE = "gqe"
_CORE = ("torch", "faiss-cpu", "faiss-gpu", "numpy", "scipy", "safetensors")
_HIDDEN = ("all", "dev")  # the one is the sum of the others, the other is for this project's own tests


class Extra(NamedTuple):
    """An optional part of the package.

    Attributes:
        name: as in `pip install 'gqe[name]'`.
        missing: the requirements that are absent or too old.
    """

    name: str
    missing: list[str]

    @property
    def command(self) -> str | None:
        """What installs it, None if it is here."""
        return f"pip install '{_PACKAGE}[{self.name}]'" if self.missing else None


def installed_versions() -> dict[str, str]:
    """Versions of this package, of Python and of what all computations use."""
    versions = {_PACKAGE: __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    return versions | {name: found for name in _CORE if (found := _version(name)) is not None}


def extras() -> list[Extra]:
    """The optional parts and what each of them lacks, as the installed package declares them."""
    try:
        about = metadata.metadata(_PACKAGE)
    except metadata.PackageNotFoundError:  # run from its sources without an installation
        return []
    needed = [Requirement(text) for text in about.get_all("Requires-Dist") or ()]
    names = [name for name in about.get_all("Provides-Extra") or () if name not in _HIDDEN]
    return [Extra(name, sorted(_missing(name, needed))) for name in names]


def _missing(extra: str, needed: list[Requirement]) -> set[str]:
    """Requirements of one extra that are not met; an extra may be made of others."""
    missing = set()
    for requirement in needed:
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.marker.evaluate({"extra": ""}):
            continue  # of the core
        if requirement.name == _PACKAGE:
            for inner in requirement.extras:
                missing |= _missing(inner, needed)
        elif not requirement.specifier.contains(_version(requirement.name) or "", prereleases=True):
            missing.add(f"{requirement.name}{requirement.specifier}")
    return missing


def devices() -> list[str]:
    """Where computations can run."""
    import torch

    found = [f"cpu: {os.cpu_count()} cores"]
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found.append(f"cuda:{number}: {about.name}, {about.total_memory / 2**30:.0f} GiB")
    return found


def threads() -> str:
    """How many threads compute, and how they wait."""
    import torch

    waiting = "sleep" if waiting_threads_sleep() else "spin"
    return f"{torch.get_num_threads()} (OMP_NUM_THREADS), which {waiting} while they wait (OMP_WAIT_POLICY)"


def advice() -> list[str]:
    """What is installed in a way that costs more than it brings, with the remedy."""
    import torch

    if torch.version.cuda is None or torch.cuda.is_available():
        return []
    return [
        "torch is built for CUDA, which takes gigabytes, and finds no GPU: check the driver, or install the"
        " build for CPUs by --index-url https://download.pytorch.org/whl/cpu"
    ]


def examine() -> dict[str, Any]:
    """All of it."""
    parts = extras()
    return {
        "versions": installed_versions(),
        "devices": devices(),
        "threads": threads(),
        "extras": [{"name": part.name, "missing": part.missing, "command": part.command} for part in parts],
        "advice": advice(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
