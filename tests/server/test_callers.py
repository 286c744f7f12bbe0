"""Pages from elsewhere stay outside, whatever web framework is installed; nobody counts as somebody else."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from gqe.server import Settings, create_app
from gqe.server.middleware import client_key
from gqe.server.runner import bind_socket, check_proxies, create_server, restrict_settings
from server.worlds import READ, TOKENS, bearer, build, running, serving

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = restrict_settings(Settings(), "127.0.0.1", ["search.example"])
    with serving(build(tmp_path_factory.mktemp("callers") / "index"), settings) as running:
        yield running


def here(served) -> str:
    return served.url.removeprefix("http://")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},  # another service of this machine
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    ],
)
def test_a_page_from_elsewhere_changes_nothing(served, headers) -> None:
    removed = served.post("/v1/items/remove", {"ids": [1]}, headers=headers)
    assert removed.status_code == 403
    assert removed.headers["content-type"] == "application/problem+json"
    assert served.get("/v1/items", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert served.get("/v1/about").json()["items"] == 120


def test_our_page_and_programs_come_in(served) -> None:
    for headers in ({"origin": served.url}, {"sec-fetch-site": "same-origin", "origin": "https://a.b"}, {}):
        assert served.post("/v1/search", {"ids": [1]}, headers=headers).status_code == 200
    assert served.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page
    proxied = {"host": "search.example", "origin": "https://search.example"}
    assert served.post("/v1/search", {"ids": [1]}, headers=proxied).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_only_json_is_read_as_json(served, kind) -> None:
    answer = served.client.post("/v1/items/remove", content=b'{"ids": [1]}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert served.get("/v1/about").json()["items"] == 120


@pytest.mark.parametrize(
    "host",
    ["[::1].evil.com", "localhost.evil.com", "localhost:80:80", "localhost@evil.com", "", "127.0.0.1:x"],
)
def test_names_that_only_look_like_ours(served, host) -> None:
    assert served.get("/health", headers={"host": host}).status_code == 421
    assert served.get("/health", headers={"host": "[::1]:80"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/items/", "/v1/search/", "/page", "/health/", "/page/a%00b", "/%00"])
def test_nothing_is_redirected(served, path) -> None:
    answer = served.get(path, follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/items%0a", "/v1/items/remove%0a"])
def test_a_line_end_behind_a_path_allows_nothing_more(tmp_path, path) -> None:
    with serving(build(tmp_path / "index"), Settings(tokens=TOKENS)) as served:
        answer = served.post(path, {"ids": [1]}, headers=bearer(READ))
        assert answer.status_code == 403
    with serving(served.app.state.service.engine.index, Settings(read_only=True)) as served:
        assert served.post(path, {"ids": [1]}).status_code == 403


def test_an_app_inside_another_one_asks_for_tokens_too(tmp_path) -> None:
    inner = create_app(build(tmp_path / "index"), Settings(tokens=TOKENS))
    outer = Starlette(
        routes=[Mount("/inner", inner)], lifespan=lambda _: inner.router.lifespan_context(inner)
    )
    outer.state.service = inner.state.service
    listening = bind_socket("127.0.0.1", 0)
    with running(outer, create_server(outer), listening, ready="/inner/ready") as served:
        assert served.get("/inner/v1/about").status_code == 401
        assert served.get("/inner/v1/about", headers=bearer(READ)).status_code == 200
        assert served.post("/inner/v1/items/remove", {"ids": [1]}, headers=bearer(READ)).status_code == 403


@pytest.mark.parametrize(("proxies", "last"), [((), 429), (("127.0.0.1",), 200)])
def test_a_client_is_who_a_known_proxy_says(tmp_path, proxies, last) -> None:
    app = create_app(build(tmp_path / "index"), Settings(rate=0.01, burst=3))
    with running(app, create_server(app, proxies=proxies), bind_socket("127.0.0.1", 0)) as served:
        statuses = [
            served.get("/v1/items", headers={"x-forwarded-for": f"10.0.0.{number}"}).status_code
            for number in range(4)
        ]
    assert statuses == [200] * 3 + [last]


def test_proxies_are_addresses() -> None:
    assert check_proxies(["10.0.0.1", "::1"]) == ["10.0.0.1", "::1"]
    with pytest.raises(ValueError, match="--proxy: 'nginx' is not an IP address"):
        check_proxies(["nginx"])


def test_one_network_of_ipv6_is_one_client() -> None:
    assert (
        client_key("2001:db8:1:2::3") == client_key("2001:db8:1:2:ffff::4") != client_key("2001:db8:1:3::3")
    )
    assert client_key("10.0.0.1") != client_key("10.0.0.2")
    assert client_key("fe80::1%eth0") == client_key("fe80::2")
