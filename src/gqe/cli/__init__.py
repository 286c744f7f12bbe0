"""The `gqe` command. Every command checks its input through the library; none has logic of its own."""

from __future__ import annotations

import os
import sys

import typer

from gqe.cli import (
    data,
    demo,
    evaluate,
    expand,
    explain,
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
from gqe.errors import InputError

app = typer.Typer(
    name="gqe",
    help="Graph Query Expansion: better search from the embeddings you already have.",
    epilog="Try: gqe evaluate town --methods none,aqe:k=6,aqe-g:k=4",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (
    evaluate,
    expand,
    search,
    explain,
    train,
    tune,
    extract,
    whiten,
    demo,
    reproduce,
    serve,
    plan,
):
    command.register(app)
app.add_typer(index.app, name="index")
app.add_typer(data.app, name="data")
app.add_typer(store.app, name="store")


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
    import logging

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr
    )


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit status 2."""
    try:
        app()
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
    except KeyboardInterrupt:
        _fail("stopped", 130)


def _fail(message: str, status: int) -> None:
    typer.echo("gqe: " + " ".join(message.split()), err=True)
    sys.exit(status)
