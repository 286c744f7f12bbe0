"""Secrets out of every text that is shown: passwords in addresses, keys, tokens and signatures in options.

Two ways go together. `redact` finds secrets by where they stand: between a user's name and the last @ of an
address, and behind names such as `password=`. Whoever knows a secret gives it, too, and it is masked wherever
it stands. In doubt more is masked rather than less.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from urllib.parse import quote, quote_plus, unquote

MASK = "***"

# Parts of names whose values are secret, and words that must stand alone in them; without - and _.
_PARTS = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "signature", "authorization"),
    *("apikey", "accesskey", "accountkey", "privatekey"),
)
_WORDS = {"pwd", "pass", "pw", "sig", "sas", "auth"}

_NAME = re.compile(
    r"""(?<![\w.%\-])(?P<name>[\w.%\-]+?)(?:[ \t]+=[ \t]+|=|%(?:25)*3D|\\*["'][ \t]*:[ \t]*)""", re.IGNORECASE
)
# Quoted, or as far as the next option; & belongs to it where no option follows.
_QUOTED = r"""(?:b?\\*(?P<mark>["'])(?:\\.|(?!(?P=mark)).)*(?P=mark)?)?"""
_VALUE = re.compile(_QUOTED + r"[^\s&]*(?:&(?![^\s&=]*=)[^\s&]*)*", re.DOTALL)
_WHOLE_VALUE = re.compile(r".*?(?=&[^\s&=]*=|$)", re.DOTALL)
_HEADER = re.compile(r"\b(?:bearer|authorization\W{1,4}\w+)[ \t]+(?P<value>[^\s\"',]{8,})", re.IGNORECASE)
_BEHIND = "\"'`)]}>:;,.\\"
# An address as it is typed, and one that is itself a value within another: how :, / and @ are written.
_RAW = (re.compile(r"[A-Za-z0-9+.\-]:[/\\]+"), re.compile(":"), "@")
_ENCODED = (
    re.compile(r"[A-Za-z0-9+.\-]%3A(?:%2F|%5C)+", re.IGNORECASE),
    re.compile("%3A", re.IGNORECASE),
    "%40",
)

Span = tuple[int, int]


def redact(text: object, known: Iterable[str] = ()) -> str:
    """A text without secrets.

    Args:
        text: what is to be shown; its str is taken.
        known: secrets that are masked wherever they stand, raw, quoted or encoded.

    Example:
        >>> redact("postgresql://me:pa/ss@db/shop?table=items&sslpassword=x: no such file")
        'postgresql://me:***@db/shop?table=items&sslpassword=***: no such file'
    """
    plain = str(text)
    forms = {form for secret in known for form in _forms(secret)}
    spans = [found.span() for form in forms for found in re.finditer(re.escape(form), plain)]
    spans += [*_userinfo(plain), *_options(plain)]
    spans += [header.span("value") for header in _HEADER.finditer(plain)]
    return _mask(plain, spans)


def is_secret(name: str) -> bool:
    """Whether the value of an option of this name is secret.

    Example:
        >>> [is_secret(name) for name in ("SSLPassword", "api-key", "X-Amz-Signature", "table")]
        [True, True, True, False]
    """
    plain = name
    for _ in range(3):
        plain = unquote(plain)
    words = re.split(r"[\W_]+", plain.lower())
    joined = "".join(words)
    return joined.endswith("pwd") or not _WORDS.isdisjoint(words) or any(part in joined for part in _PARTS)


def secrets_of(address: str) -> list[str]:
    """The secrets of a text that is an address, or a list of options, from its beginning to its end."""
    found = []
    for text in {address, str(PurePath(address)) if "\0" not in address else address}:
        for start, stop in _userinfo(text, whole=True):
            found.append(text[start:stop])
        for match in itertools.islice(_NAME.finditer(text), 100):
            value = _WHOLE_VALUE.match(text, match.end())
            if value is not None and _names_secret(text, match):
                found.append(value[0])
    return [secret for secret in found if secret.strip(_BEHIND)]


def _forms(secret: str) -> Iterator[str]:
    """A secret in all the ways in which it is written."""
    for plain in {secret, unquote(secret)}:
        encoded = (quote(plain), quote(plain, safe=""), quote_plus(plain), quote_plus(plain, safe="/"))
        lower = tuple(re.sub("%..", lambda found: found[0].lower(), form) for form in encoded)
        escaped = (json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1], repr(plain)[1:-1])
        yield from filter(str.strip, (plain, " ".join(plain.split()), *encoded, *lower, *escaped))


def _mask(text: str, spans: list[Span]) -> str:
    parts, done = [], 0
    for start, stop in sorted(spans):
        if stop <= done:
            continue
        if start >= done:
            parts += [text[done:start], MASK]
        done = stop
    return "".join(parts) + text[done:]


def _options(text: str) -> Iterator[Span]:
    done = 0
    while match := _NAME.search(text, done):
        done = match.end()
        if _names_secret(text, match):
            value = _VALUE.match(text, done)
            assert value is not None
            done = value.end()  # what lies within a secret is no option of its own
            bare = value[0].lstrip("\"'\\")
            start = value.end() - len(bare)
            stop = start + len(bare.rstrip(_BEHIND))
            if start < stop:
                yield start, stop


def _names_secret(text: str, match: re.Match[str]) -> bool:
    within_address = match.start() > 0 and text[match.start() - 1] in "?&"
    return is_secret(match["name"]) or (within_address and match["name"].lower() == "key")


def _userinfo(text: str, *, whole: bool = False) -> Iterator[Span]:
    """Where passwords of addresses stand: up to the last @, since a password may hold anything.

    Args:
        text: maybe with addresses in it.
        whole: it is an address, from its beginning to its end.
    """
    for begin, colon, at in (_RAW, _ENCODED):
        last = text.rfind(at)
        while last > 0 and text[last + len(at) : last + len(at) + 1].isspace():  # no host follows
            last = text.rfind(at, 0, last)
        scheme = begin.search(text, 0, last) if last > 0 else None
        if scheme is None:
            continue
        start = scheme.end()
        first = colon.search(text, start, last)
        if not whole and re.search(r"\s", text[start:last]):  # then it may be no address up to there
            first = re.compile(colon.pattern + r"(?=\S)", re.IGNORECASE).search(text, start, last)
        elif first is None and text[:start].lower().endswith(("http://", "https://")):
            yield start, last
        if first is not None and first.end() < last:
            yield first.end(), last
    for token in re.finditer(r"https?://([^\s/@:]+)@", text, re.IGNORECASE):  # in the place of a user
        yield token.span(1)
    for run in re.finditer(r"\S+", text):  # without a scheme, or with a mistyped one
        colon_at, last = run[0].find(":"), run[0].rfind("@")
        if 0 <= colon_at < last - 1 and last + 1 < len(run[0]) and not _RAW[0].search(run[0]):
            yield run.start() + colon_at + 1, run.start() + last
