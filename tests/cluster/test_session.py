"""Joining a cluster, or one line that says why not."""

from __future__ import annotations

import socket
import sys

import pytest

from gqe.cluster.session import connect
from gqe.errors import InputError


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^--cluster needs Ray: pip install 'gqe\[cluster\]'$"), connect():
        pass


@pytest.mark.parametrize(
    "address",
    ["", " ", "here", "ray://host:1", "host:", ":1", "host:99999", "host:²", 7, None],
)
def test_what_is_no_address(address: object) -> None:
    with pytest.raises(InputError, match=r"^cluster: .*(host:port)"), connect(address):  # type: ignore[arg-type]
        pass


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        pytest.raises(InputError, match=f"nobody answers at 127.0.0.1:{port} "),
        connect(f"127.0.0.1:{port}"),
    ):
        pass


def test_a_local_cluster_of_several_workers_ends_with_the_session() -> None:
    import ray

    with connect("local", workers=2) as session:
        assert (session.workers, session.nodes, session.own) == (2, 1, True)
        assert ray.get(ray.remote(lambda: 3).remote()) == 3
        with connect("auto") as same:  # joined already: it stays
            assert same == session._replace(own=False)
        assert ray.is_initialized()
        with connect(session.address) as same:
            assert same.address == session.address
        with pytest.raises(InputError, match="has joined another cluster"), connect("local"):
            pass
    assert not ray.is_initialized()
