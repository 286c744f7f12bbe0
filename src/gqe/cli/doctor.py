"""`gqe doctor`: what is installed and what is missing."""

from __future__ import annotations

import typer

from gqe.cli.common import Json, app, print_json, print_table


@app.command(epilog="Example: gqe doctor --json")
def doctor(as_json: Json = False) -> None:
    """What is installed, the devices and threads, and the command for each part that is missing."""
    from gqe.doctor import examine

    found = examine()
    if as_json:
        print_json(found)
        return
    rows = [[name, version] for name, version in found["versions"].items()]
    rows += [["devices", "; ".join(found["devices"])], ["threads", found["threads"]]]
    print_table(["what", "here"], rows, left=2)
    typer.echo()
    rows = []
    for part in found["extras"]:
        add = f"{part['command']}  ({', '.join(part['missing'])})"
        rows.append([part["name"], add if part["missing"] else "here"])
    print_table(["extra", "here, or the command that adds it"], rows, left=2)
    for line in found["advice"]:
        typer.echo(f"\n{line}")
