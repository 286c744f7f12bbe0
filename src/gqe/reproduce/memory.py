"""The most memory this process held since a moment, where the system tells (Linux)."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def start_measuring_memory() -> None:
    """Forget the peak so far."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def peak_memory() -> int:
    """Bytes resident at the peak, mapped files included; since the process began where it cannot be reset."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
