"""Preparations for tests of workers, in a module that workers can import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Plain:
    at_least: int | None = None

    def __call__(self, image: Any, full_side: int) -> np.ndarray:
        return np.asarray(image)


@dataclass(frozen=True)
class Deadly(Plain):
    """Ends its process at a picture of this width, as a decoder with a fault would."""

    width: int = 0

    def __call__(self, image: Any, full_side: int) -> np.ndarray:
        if image.width == self.width:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.asarray(image)


@dataclass(frozen=True)
class Counting(Plain):
    """Notes each picture as a file in a folder, by its width."""

    folder: str = ""

    def __call__(self, image: Any, full_side: int) -> np.ndarray:
        Path(self.folder, str(image.width)).touch()
        return np.asarray(image)


@dataclass(frozen=True)
class Broken(Plain):
    def __call__(self, image: Any, full_side: int) -> np.ndarray:
        raise ArithmeticError("cannot be resized")
