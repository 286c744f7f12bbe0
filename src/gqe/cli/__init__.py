"""The `gqe` command. Every command checks its input through the library; none has logic of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from typing import Any

import typer

from gqe.cli import (  # noqa: F401  # each adds its commands to the app
    data,
    doctor,
    evaluate,
    extract,
    index,
    plan,
    reproduce,
    search,
    serve,
    store,
    train,
    tune,
    whiten,
)
from gqe.cli.common import app
from gqe.errors import InputError
from gqe.redaction import redact, secrets_of

# What typer raises for a command line that it cannot read; its name depends on the version.
_USAGE: Any = typer.BadParameter.__mro__[2]


def _print_version(wanted: bool) -> None:
    if wanted:
        from gqe import __version__

        typer.echo(f"gqe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what is being done to stderr."),
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


class _Formatter(logging.Formatter):
    """Logs, tracebacks in them included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return _without_secrets(super().format(record))


def _without_secrets(lines: str) -> str:
    secrets = _typed_secrets()
    return "\n".join(redact(line, secrets) for line in lines.split("\n"))


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit status 2."""
    try:
        status = app(prog_name="gqe", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except InputError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        # The reader of a pipe went away, as `head` does; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2)
    except MemoryError:
        _fail("not enough memory; use a smaller file or a machine with more", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", 130)
    except _USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its help is printed already
            sys.exit(error.exit_code)
        command = error.ctx.command_path if getattr(error, "ctx", None) else "gqe"
        _fail(f"{error.format_message().rstrip('.')}; see {command} --help", error.exit_code)
    except Exception:  # a fault of this program: shown as Python does
        typer.echo(_without_secrets(traceback.format_exc()), err=True, nl=False)
        sys.exit(1)
    finally:
        # Nothing is left to be finished: Ctrl+C while Python ends would only show a traceback.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _fail(message: str, status: int) -> None:
    # As one line of what a terminal can show.
    typer.echo(f"gqe: {InputError(redact(message, _typed_secrets()))}", err=True)
    sys.exit(status)


def _typed_secrets() -> list[str]:
    """Secrets in arguments of the command, of which it is known where they begin and end."""
    secrets = [secret for argument in sys.argv[1:] for secret in secrets_of(argument)]
    # Where the beginning of one is masked already, its words are left.
    return secrets + [word for secret in secrets for word in secret.split() if len(word) > 2]
