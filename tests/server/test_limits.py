"""Who may come in, how often, and with how much."""

from __future__ import annotations

import logging
import time

import pytest

from gqe.errors import InputError
from gqe.server import Settings, read_tokens
from gqe.server.middleware import RateLimiter
from gqe.server.runner import restrict_settings
from server.worlds import BOTH, READ, TOKENS, WRITE, bearer, build, describer, serving, vectors

ONE = {"vectors": [vectors(1, seed=5)[0].tolist()]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = Settings(tokens=TOKENS, max_body_bytes=200_000, timeout=5)
    with serving(build(tmp_path_factory.mktemp("limits") / "i"), settings, describe=describer()) as running:
        yield running


@pytest.mark.parametrize(
    ("token", "read", "write"),
    [(None, 401, 401), ("wrong", 401, 401), (READ, 200, 403), (WRITE, 403, 200), (BOTH, 200, 200)],
)
def test_scopes(served, token, read, write) -> None:
    headers = {} if token is None else bearer(token)
    assert served.post("/v1/search", {"ids": [1]}, headers=headers).status_code == read
    assert served.get("/v1/about", headers=headers).status_code == read
    assert served.get("/metrics", headers=headers).status_code == read
    added = served.post("/v1/items", ONE, headers=headers)
    assert added.status_code == write
    if write == 200:
        gone = served.post("/v1/items/remove", {"ids": added.json()["ids"]}, headers=headers)
        assert gone.status_code == 200
    if read == 401:
        assert added.headers["www-authenticate"].startswith("Bearer")
    assert served.get("/health").status_code == served.get("/").status_code == 200


def test_tokens_are_never_logged(served, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    served.get("/v1/about", headers=bearer(READ))
    served.get("/v1/about", headers=bearer("wrong-but-secret-token"))
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith(("httpcore", "httpx")))
    assert READ not in ours
    assert "wrong-but-secret-token" not in ours
    assert READ not in repr(TOKENS)
    assert READ not in repr(Settings(tokens=TOKENS))


def test_a_body_is_refused_by_its_declared_size(served) -> None:
    headers = bearer(BOTH) | {"content-type": "application/json"}
    answer = served.client.post("/v1/search", content=b" " * 200_001, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "content", [b"{", b"[" * 100_000, b'{"ids": [' + b"9" * 5000 + b"]}", b"\xff\xfe", b'{"\\ud800": 1}']
)
def test_json_that_is_none_is_refused(served, content) -> None:
    headers = bearer(READ) | {"content-type": "application/json"}
    answer = served.client.post("/v1/search", content=content, headers=headers)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/page/../app.py", 404),
        ("GET", "/page/nothing.js", 404),
        ("PUT", "/v1/search", 405),
        ("GET", "/docs", 404),
    ],
)
def test_unknown_addresses_are_problems(served, method, path, status) -> None:
    answer = served.client.request(method, path, headers=bearer(BOTH))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_failure_shows_no_traceback(tmp_path) -> None:
    index = build(tmp_path / "index")
    with serving(index) as served:
        served.app.state.service.engine.search = lambda *_: 1 / 0
        answer = served.post("/v1/search", {"ids": [1]})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "ZeroDivision" not in answer.text


def test_a_slow_search_is_given_up(tmp_path) -> None:
    index = build(tmp_path / "index")
    with serving(index, Settings(timeout=0.2)) as served:
        search = served.app.state.service.engine.search
        served.app.state.service.engine.search = lambda *given: (time.sleep(0.6), search(*given))[1]
        answer = served.post("/v1/search", {"ids": [1]})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), -1.0])
def test_a_rate_that_limits_nothing_is_refused(rate) -> None:
    with pytest.raises(InputError, match="rate: expected requests per second, 0 for no limit, got"):
        Settings(rate=rate)


def test_a_bucket_refills() -> None:
    limiter = RateLimiter(rate=10, burst=3)
    assert [limiter.acquire("a", 0.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert limiter.acquire("b", 0.0) == 0
    assert limiter.acquire("a", 0.1) == 0
    assert limiter.acquire("a", 0.1) > 0
    assert [limiter.acquire("a", 100.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]


def test_too_many_requests_are_told_to_wait(tmp_path) -> None:
    with serving(build(tmp_path / "index"), Settings(rate=0.5, burst=4)) as served:
        statuses = [served.get("/v1/items").status_code for _ in range(6)]
        assert statuses == [200] * 4 + [429] * 2
        assert served.get("/v1/items").headers["retry-after"] in ("1", "2")
        assert served.get("/health").status_code == 200


def test_only_names_of_this_machine_are_answered_on_loopback(tmp_path) -> None:
    settings = restrict_settings(Settings(), "127.0.0.1", ["search.example"])
    with serving(build(tmp_path / "index"), settings) as served:
        assert served.get("/health", headers={"host": "Search.example"}).status_code == 200
        assert served.get("/health", headers={"host": "evil.example"}).status_code == 421
        assert served.get("/health", headers={"host": "localhost:80"}).status_code == 200


def test_without_tokens_others_cannot_write() -> None:
    assert restrict_settings(Settings(), "0.0.0.0").read_only
    assert not restrict_settings(Settings(tokens=TOKENS), "0.0.0.0").read_only
    assert not restrict_settings(Settings(), "::1").read_only
    # A page from elsewhere has no token.
    assert restrict_settings(Settings(tokens=TOKENS), "127.0.0.1").hosts is None


def test_read_only_refuses_changes(tmp_path) -> None:
    with serving(build(tmp_path / "index"), Settings(read_only=True)) as served:
        assert served.post("/v1/items", ONE).status_code == 403
        assert served.post("/v1/items/remove", {"ids": [1]}).status_code == 403
        assert served.get("/v1/items").status_code == 200


def test_headers_keep_the_page_to_itself(served) -> None:
    headers = served.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "text", ["read", "read short", "admin " + READ, f"read {READ} more", "", f"read {READ}\nwrite {READ}"]
)
def test_files_of_tokens_that_make_no_sense(tmp_path, text) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InputError) as error:
        read_tokens(path)
    assert READ not in str(error.value)


def test_tokens_of_a_file_and_of_the_environment(tmp_path, monkeypatch) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\nread,write {BOTH}\n\nread {READ}\n")
    path.chmod(0o600)
    monkeypatch.setenv("GQE_TOKENS", f"write {WRITE}; read {READ}")
    of_file, of_environment = read_tokens(path), read_tokens()
    assert of_file.scopes(BOTH) == {"read", "write"}
    assert of_file.scopes(WRITE) is None
    assert of_environment.scopes(WRITE) == {"write"}
    monkeypatch.delenv("GQE_TOKENS")
    assert read_tokens() is None
    monkeypatch.setenv("GQE_TOKENS", " ; ")  # a mistake, which must not open the service to everybody
    with pytest.raises(InputError, match="holds no tokens"):
        read_tokens()


def test_a_small_answer_does_not_wait_for_the_network(served) -> None:
    served.get("/health")
    times = []
    for _ in range(15):
        begun = time.perf_counter()
        served.get("/health")
        times.append(time.perf_counter() - begun)
    assert sorted(times)[3] < 0.035  # a delayed ACK takes 40 ms
