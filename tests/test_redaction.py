"""Whatever is shown holds no secret: not raw, not encoded, not in part; and harmless text stays readable."""

from __future__ import annotations

import json
import logging
import time
import traceback
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.formats.addresses import open_filesystem, wrap_address_errors
from gqe.redaction import is_secret, redact, secrets_of
from gqe.stores.address import parse

# Secrets are made of j and of what has a meaning somewhere; nothing else that is shown holds a j.
MEANINGFUL = "/@:%?#=+'\"\\.;,[]{}()<>|*!~^$`-_é"
LETTERS = st.sampled_from(["j", "J"])
SECRETS = st.builds(
    lambda first, rest: first + "".join(rest),
    LETTERS,
    st.lists(LETTERS | st.sampled_from(MEANINGFUL), max_size=9),
)
USERS = st.text("abcuser0.-", max_size=6)
SCHEMES = st.sampled_from(
    ["postgresql", "POSTGRES", "qdrants", "milvus", "s3", "https", "gs", "abfs+x", "unknown"]
)
ENCODINGS = st.sampled_from([str, quote, lambda text: quote(text, safe=""), quote_plus])
NAMES = st.sampled_from(
    [
        *(
            "password",
            "PASSWORD",
            "sslpassword",
            "Passwd",
            "pwd",
            "passphrase",
            "api_key",
            "api-key",
            "apikey",
        ),
        *("ApiKey", "token", "access_token", "secret", "AWS_SECRET_ACCESS_KEY", "X-Amz-Signature", "sig"),
        *(
            "X-Amz-Security-Token",
            "X-Goog-Signature",
            "X-Amz-Credential",
            "pass%77ord",
            "client_secret",
            "auth",
        ),
    ]
)
FREE = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def assert_hidden(text: str) -> None:
    assert not set(text) & set("jJ"), text


@FREE
@given(SCHEMES, st.sampled_from(["://", ":/", ":///", ":\\\\"]), USERS, SECRETS, ENCODINGS, st.booleans())
@example("postgresql", "://", "me", "12/j4", str, False)
@example("postgresql", ":/", "me", "j@j:/x//j", str, True)
def test_a_password_in_an_address_is_hidden(scheme, slashes, user, secret, encode, quoted) -> None:
    address = f"{scheme}{slashes}{user}:{encode(secret)}@db.example.org:5432/shop?table=items"
    shown = redact(
        f"{address!r}: no such file" if quoted else f"gqe: {address}: no such file; check the name"
    )
    assert_hidden(shown)
    assert "db.example.org:5432/shop?table=items" in shown
    assert "no such file" in shown
    assert redact(shown) == shown
    assert_hidden(redact(quote(address, safe="")))
    assert_hidden(redact(f"see {Path(address)}"))


@FREE
@given(NAMES, SECRETS, ENCODINGS, st.sampled_from("?&"))
def test_a_secret_option_of_an_address_is_hidden(name, secret, encode, before) -> None:
    shown = redact(f"https://host:8080/a{before}{name}={encode(secret)}&table=items: cannot be reached")
    assert_hidden(shown)
    assert shown.startswith("https://host:")
    assert redact(shown) == shown
    if "=" not in encode(secret):  # else what follows & is an option of that name
        assert_hidden(redact(f"https://host/a?{name}={encode(secret)}&{encode(secret)}"))


@FREE
@given(NAMES, SECRETS, st.booleans())
def test_a_secret_of_a_list_of_options_is_hidden(name, secret, upper) -> None:
    escaped = secret.replace("\\", "\\\\").replace("'", "\\'")
    for text in (
        f"host=db {name}='{escaped} {escaped}' dbname=shop",
        f"host=db {name} = {secret} dbname=shop",
        f"{json.dumps({'host': 'db', name: secret + ' ' + secret})}",
        f"{ {'host': 'db', name: secret} }",
    ):
        shown = redact(text.upper() if upper else text)
        assert_hidden(shown)
        assert "HOST" in shown.upper()


@FREE
@given(SECRETS, st.sampled_from(["{}", "could not log in with {!r}", "({})", "...{}..."]))
def test_what_is_known_is_hidden_wherever_it_stands(secret, said) -> None:
    for encode in (str, quote, quote_plus, lambda text: quote(text, safe="")):
        assert_hidden(redact(said.format(encode(secret)), [secret]))
    assert_hidden(redact(json.dumps([secret]), [secret]))


WHITE = st.builds(
    lambda first, rest: first + "".join(rest),
    LETTERS,
    st.lists(LETTERS | st.sampled_from(" \t\n/@&"), max_size=8),
)


@FREE
@given(WHITE, NAMES)
def test_of_an_argument_it_is_known_where_it_ends(secret, name) -> None:
    for address in (
        f"postgresql://me:{secret}@db/shop",
        f"postgresql://db/shop?{name}={secret}",
        f"--store=postgresql:/me:{secret}@db/shop?table=x&{name}={secret}",
    ):
        for shown in (address, str(Path(address)), " ".join(address.split())):
            assert_hidden(redact(f"{shown}: no such file", secrets_of(address)).replace("gqe", ""))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me@db/shop?table=items: no table is named; add ?table=NAME",
        "qdrant://host:6333/items: Qdrant refuses or is out of reach (timed out); check the address",
        "milvus:///folder/file.db?collection=items: no file; give token= or user:password@ in the address",
        "base.npy: row 3 holds NaN; see https://example.org:8080/a/b?page=2#top or write to me@example.org"[
            :60
        ],
        "k: expected a whole number, got 'x=1:y=2'; aqe:k=10, alpha-g:k=6:alpha=3",
        "a valid token is needed: Authorization: Bearer TOKEN",
        "tokens.txt: line 3: expected `read SECRET`",
        "ids: 'me@example.org' is there already; remove it first",
        "holds nothing named 'keys'; choose one of 'embeddings', 'key=5'",
        "C:/data/base.npy: no such file",
        "",
    ],
)
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_names_of_secrets() -> None:
    for name in (
        "password",
        "sslpassword",
        "PGPASSWORD",
        "api-key",
        "apiKey",
        "SIG",
        "x-amz-signature",
        "%70wd",
    ):
        assert is_secret(name), name
    for name in ("table", "vector", "user", "k", "keys", "passes", "signal", "author", "sslkey", "ef_search"):
        assert not is_secret(name), name


@pytest.mark.parametrize(
    "piece", ["password=", "a:/", "@", "&", "token='", "\\", "%3D", "a=:", " ", "bearer ", '"']
)
def test_long_texts_take_no_longer_than_their_length(piece: str) -> None:
    begun = time.perf_counter()
    redact(piece * 30_000 + "@x")
    assert time.perf_counter() - begun < 5  # a quadratic search takes minutes


@FREE
@given(USERS, SECRETS, NAMES, st.booleans())
def test_an_address_taken_apart_shows_no_secret(user, secret, name, encoded) -> None:
    typed = quote(secret, safe="") if encoded else secret
    for text in (
        f"postgresql://{user}:{typed}@db:5432/shop?table=items&{name}={typed}",
        f"qdrant://{user}:{typed}@db/items",
        f"qdrant:///folder/{user}:{typed}@db/items?{name}={typed}",
        f"postgresql:/{user}:{typed}@db/items",
        f"{user}:{typed}@db/items",
    ):
        try:
            address = parse(text)
        except InputError as error:
            assert_hidden(str(error))
        else:
            if "&" in secret or "#" in secret or "+" in secret:
                continue
            assert_hidden(address.display)
            if address.engine != "embedded":  # an index has no secrets
                assert_hidden(address.redact(f"no login for {text} with {secret} and {quote(secret)}"))


def test_a_mistake_never_tells_a_secret_whoever_raises_it() -> None:
    assert str(InputError("s3://key:zz@bucket/x: no such file")) == "s3://key:***@bucket/x: no such file"


HIDDEN = "zz" + "j"  # in two pieces, for a traceback shows lines of this file


def test_neither_do_the_causes_of_what_a_file_system_says() -> None:
    address = f"https://me:{HIDDEN}@host/a.npy?X-Amz-Signature={HIDDEN}&sig=a {HIDDEN}"
    for kind in (OSError, FileNotFoundError, ImportError):
        with pytest.raises(InputError) as caught, wrap_address_errors(address):
            raise kind(f"{address} is out of reach")
        assert HIDDEN not in "".join(traceback.format_exception(caught.value))
        assert "https://me:***@host/a.npy" in str(caught.value)
    with pytest.raises(InputError) as caught:
        open_filesystem(f"nofs://me:{HIDDEN}@host/a?token={HIDDEN}")
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))


def test_what_is_kept_of_a_download_holds_no_secret(tmp_path: Path) -> None:
    from gqe.datasets.official.download import RetryPolicy, download

    address = f"http://me:{HIDDEN}@127.0.0.1:1/a.bin?sig={HIDDEN}"
    with pytest.raises(InputError) as caught:
        download(address, tmp_path / "a.bin", retry=RetryPolicy(1, 1, 0))
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))
    assert HIDDEN not in repr(parse(f"postgresql://me:{HIDDEN}@db/x?token={HIDDEN}"))


def test_answers_of_the_service_hold_no_secret() -> None:
    pytest.importorskip("fastapi", reason="needs the service: pip install 'gqe[serve]'")
    from gqe.server.problems import problem

    answer = problem(422, f"no way to s3://key:{HIDDEN}@bucket/x?X-Amz-Signature={HIDDEN}")
    assert HIDDEN.encode() not in answer.body
    assert b"s3://key:***@bucket/x" in answer.body


def test_logs_hold_no_secret() -> None:
    from gqe.cli import _Formatter

    try:
        raise OSError(f"no way to postgresql://me:a/{HIDDEN}@db/x\nand so on")
    except OSError as error:
        caught = (OSError, error, error.__traceback__)
    record = logging.LogRecord("gqe", 30, "", 1, "%s", (f"token={HIDDEN}",), caught)
    shown = _Formatter("%(message)s").format(record)
    assert HIDDEN not in shown
    assert "token=***" in shown
    assert "postgresql://me:***@db/x\nand so on" in shown


@pytest.mark.parametrize(
    "address",
    ["http://jJj@host/x", "https://me:jJj@host/x", "s3://key: jJj@bucket/x", "gs://bucket/x?token=jJj j"],
)
def test_an_address_where_a_folder_is_expected_shows_no_secret(address: str) -> None:
    with pytest.raises(InputError, match="is an address; bring it here") as caught:
        gqe.Index.open(address)
    assert "jJ" not in str(caught.value)


def test_each_of_several_addresses_is_masked() -> None:
    assert_hidden(redact("http://jJj@a/x is not https://jj@b/y"))
