"""The package without the modules and constants that only POSIX systems have, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Blocked for this package only: what others import is theirs. `os.lockf` takes the place of Windows's lock.
WINDOWS = """
import builtins, os, sys, types

POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
real_import = builtins.__import__

def blocking(name, globals=None, *rest, **more):
    if str((globals or {}).get("__name__")).split(".")[0] == "gqe":
        if name in POSIX:
            raise ImportError(f"No module named {name!r}")
        if name == "msvcrt":
            return types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    return real_import(name, globals, *rest, **more)

def locking(descriptor, mode, size):
    try:
        os.lockf(descriptor, os.F_TLOCK, size)
    except BlockingIOError as error:
        raise PermissionError(*error.args) from None

builtins.__import__ = blocking
for name in ("O_NOFOLLOW", "O_CLOEXEC", "getuid"):
    delattr(os, name)
"""


def run(code: str, *arguments: str | Path, **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WINDOWS + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=-1, stderr=-1, **settings)  # type: ignore[call-overload,no-any-return]


def test_every_module_can_be_imported() -> None:
    code = """
        import importlib, pkgutil
        import gqe
        gqe.Index, gqe.connect
        for module in pkgutil.walk_packages(gqe.__path__, "gqe."):
            try:
                importlib.import_module(module.name)
            except (ImportError, gqe.InputError) as error:  # an extra that is not installed
                problem = str(error)
                assert not any(f"'{name}'" in problem for name in POSIX), (module.name, problem)
    """
    ran = run(code)
    _, problems = ran.communicate(timeout=300)
    assert ran.returncode == 0, problems


def test_an_index_is_built_changed_and_locked(tmp_path: Path) -> None:
    """A second process is refused while the first holds the lock; killed, it leaves none behind."""
    holder = run(
        """
        import time
        from pathlib import Path
        import numpy as np
        import gqe
        from gqe.index.files import writer_lock
        index = gqe.Index.build(np.eye(8), "aqe-g", sys.argv[1])
        index.add(np.ones((1, 8)))
        assert index.search(np.eye(8)[2], 1, expand=False).ids.tolist() == [2]
        with writer_lock(Path(sys.argv[1])):
            print("held", flush=True)
            time.sleep(600)
        """,
        tmp_path / "index",
    )
    other = """
        import numpy as np
        import gqe
        try:
            gqe.Index.open(sys.argv[1]).add(np.ones((1, 8)))
        except gqe.InputError as error:
            print(error)
    """
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n", holder.communicate()[1]
        refused, _ = run(other, tmp_path / "index").communicate(timeout=300)
        assert "another process or object is changing this index" in refused
    finally:
        holder.kill()
        holder.wait()
    second = run(other, tmp_path / "index")
    assert second.communicate(timeout=300) == ("", "")
    assert second.returncode == 0


pytestmark = pytest.mark.skipif(not hasattr(os, "lockf"), reason="stands in for Windows on POSIX systems")
