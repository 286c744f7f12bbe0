"""The command as it is installed: help, version, exit status, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

COMMON = ["evaluate", "expand", "search", "explain", "train", "tune", "demo"]
COMMANDS = [*COMMON, "extract", "whiten", "reproduce", "serve", "index", "store", "data"]


def test_help_names_every_command(gqe) -> None:
    text = gqe("--help").out
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMON)
def test_every_command_has_an_example_and_the_common_options(gqe, command: str) -> None:
    ran = gqe(*command.split(), "--help")
    assert ran.status == 0
    assert "Example" in ran.out
    assert all(option in ran.out for option in ("--json", "--seed", "--device"))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("data list", ()),
        ("data describe", ()),
        ("data convert", ()),
        ("data make", ("--seed",)),
        ("whiten", ()),
        ("extract", ("--device",)),
        ("serve", ("--device",)),
    ],
)
def test_other_commands_take_only_what_they_use(gqe, command: str, options: tuple[str, ...]) -> None:
    text = gqe(*command.split(), "--help").out
    assert "Example" in text
    assert "--json" in text
    assert tuple(option for option in ("--seed", "--device") if option in text) == options


def test_version(gqe) -> None:
    from gqe import __version__

    assert gqe("--version").out.strip() == f"gqe {__version__}"


def test_an_unknown_command_is_exit_2(gqe) -> None:
    assert gqe("serach").status == 2


def test_the_installed_command_prints_one_line_without_a_traceback() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from gqe.cli import main; main()", "evaluate", "absent.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("gqe: ")
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_an_interrupt_at_the_end_shows_no_traceback() -> None:
    """While Python ends, which takes long where torch is loaded."""
    late = "import atexit, time; atexit.register(lambda: [print('ending', flush=True), time.sleep(5)])"
    command = f"{late}; from gqe.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() not in ("ending\n", ""):
        pass
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", "| head -n 1 >/dev/null"])
def test_an_output_that_is_closed_is_no_mistake(files, redirection: str) -> None:
    command = f"{sys.executable} -c 'from gqe.cli import main; main()'"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} search database.npy queries.npy -k 3 {redirection}"],
        cwd=files,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_not_even_a_fault_of_the_program_shows_a_secret(gqe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(url: object, **_: object) -> None:
        raise RuntimeError(f"unforeseen: {url}")

    monkeypatch.setattr("gqe.stores.connect", fault)
    ran = gqe("store", "stats", "postgresql://me:HID/DEN@db/x?token=HIDDEN")
    assert ran.status == 1
    assert "RuntimeError: unforeseen: postgresql://me:***@db/x?token=***" in ran.err
    assert "HID" not in ran.out + ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "postgresql://me:HIDDEN@db/x?table=y", "queries.npy"],
        ["search", "postgresql:/me:HID/DEN HIDDEN@db/x?sslpassword=HID HIDDEN", "queries.npy"],
        ["search", "a", "b", "c", "postgresql://me:HID DEN@db/x"],
        ["search", "a", "b", "--token=HIDDEN"],
        ["expand", "https://me:HIDDEN@host/base.npy?sig=HIDDEN", "queries.npy"],
        ["evaluate", "s3://key:HIDDEN@bucket/labels.npz"],
        ["index", "fetch", "s3://key:HIDDEN@bucket/x?X-Amz-Signature=HIDDEN", "out"],
        ["index", "build", "https://me:HIDDEN@127.0.0.1:1/base.npy?X-Amz-Security-Token=HIDDEN", "out"],
        ["index", "build", "nofs://me:HIDDEN@127.0.0.1:1/base.npy", "out"],
        ["store", "stats", "postgresql:/me:HIDDEN@db/x"],
        ["store", "stats", "host=db password='HID HIDDEN'"],
        ["store", "stats", "postgresql://me:HID%2FDEN@127.0.0.1:1/x?table=t&api-key=HIDDEN&PASSWORD=HIDDEN"],
        ["serve", "postgresql://me:HIDDEN/@db/x", "--port", "0"],
    ],
)
def test_no_mistake_shows_a_secret(gqe, arguments: list[str]) -> None:
    ran = gqe(*arguments)
    assert ran.status == 2
    assert "HID" not in ran.out + ran.err
    assert "DEN" not in ran.out + ran.err
    assert "Traceback" not in ran.err
