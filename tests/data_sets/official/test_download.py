from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe import InputError
from gqe.datasets.official.download import PARTIAL, DownloadResult, RetryPolicy, download
from web_server import Site, serving

CONTENT = np.random.default_rng(0).bytes(300_000)
OTHER = np.random.default_rng(1).bytes(280_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HASTY = RetryPolicy(timeout=2.0, tries=3, wait=0.01)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(files={"/f": CONTENT}) as running:
        yield running


def fetch(site: Site, target: Path, **options: object) -> DownloadResult:
    options.setdefault("retry", HASTY)
    return download(f"{site.address}/f", target, **options)  # type: ignore[arg-type]


def refused(site: Site, target: Path, **options: object) -> str:
    """The message of a download that fails and shows nothing."""
    with pytest.raises(InputError) as raised:
        fetch(site, target, **options)
    assert not target.exists()
    assert "\n" not in str(raised.value)
    assert site.address in str(raised.value) or str(target.parent) in str(raised.value)
    return str(raised.value)


def partial(target: Path) -> bytes:
    return (target.parent / PARTIAL / target.name).read_bytes()


def test_a_file_arrives_whole_and_leaves_nothing_beside(site: Site, tmp_path: Path) -> None:
    assert fetch(site, tmp_path / "f", sha256=SHA256) == DownloadResult(len(CONTENT), SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert list((tmp_path / PARTIAL).iterdir()) == []


def test_the_beginning_of_a_checksum_is_compared(site: Site, tmp_path: Path) -> None:
    fetch(site, tmp_path / "f", sha256=SHA256[:7])
    assert "SHA-256" in refused(site, tmp_path / "g", sha256="0" * 7)


def test_a_cut_transfer_goes_on_where_it_ended(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000, 50_000]
    fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert site.gets() == [("/f", None), ("/f", "bytes=100000-"), ("/f", "bytes=150000-")]


def test_every_byte_that_comes_is_a_reason_to_go_on(site: Site, tmp_path: Path) -> None:
    site.cuts = [10_000] * 8  # far more than the three tries
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert len(site.gets()) == 9


@pytest.mark.parametrize("validators", ["etag", "modified"])
def test_the_server_is_asked_whether_the_file_is_the_same(
    site: Site, tmp_path: Path, validators: str
) -> None:
    site.validators = validators
    site.cuts = [100_000]
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert site.conditions == [None, site.tag("/f")]
    assert site.gets()[1] == ("/f", "bytes=100000-")


def test_a_new_time_of_change_means_a_new_file(site: Site, tmp_path: Path) -> None:
    site.validators = "modified"
    site.cuts = [100_000]
    refused(site, tmp_path / "f", retry=RetryPolicy(2.0, 1, 0.01))
    site.files["/f"] = np.random.default_rng(2).bytes(len(CONTENT))  # as long as the old one
    site.changed = "Tue, 02 Jan 2018 00:00:00 GMT"
    site.if_range = False
    fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == site.files["/f"]


def test_wrong_content_is_neither_shown_nor_kept(site: Site, tmp_path: Path) -> None:
    assert "SHA-256 begins with" in refused(site, tmp_path / "f", sha256="ab" * 32)
    assert list((tmp_path / PARTIAL).iterdir()) == []
    assert len(site.gets()) == 1


def test_a_server_without_ranges_sends_it_all_again(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    site.cuts = [100_000]
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_without_proof_that_the_file_is_the_same_it_begins_anew(site: Site, tmp_path: Path) -> None:
    site.validators = ""
    site.cuts = [100_000]
    fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert site.gets() == [("/f", None), ("/f", None)]


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_changed_meanwhile_is_fetched_anew(site: Site, tmp_path: Path, honest: bool) -> None:
    site.cuts = [100_000]
    refused(site, tmp_path / "f", retry=RetryPolicy(2.0, 1, 0.01))
    assert partial(tmp_path / "f") == CONTENT[:100_000]
    site.files["/f"] = OTHER
    site.if_range = honest  # a dishonest server sends the rest of the new file
    fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == OTHER


def test_a_file_that_became_shorter_than_what_is_here(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000]
    refused(site, tmp_path / "f", retry=RetryPolicy(2.0, 1, 0.01))
    site.files["/f"] = OTHER[:50_000]
    site.if_range = False
    fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == OTHER[:50_000]


def test_two_halves_that_do_not_fit_are_settled_by_one_more_fetch(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000]
    refused(site, tmp_path / "f", retry=RetryPolicy(2.0, 1, 0.01))
    path = tmp_path / PARTIAL / "f"
    path.write_bytes(b"\0" * 100_000)  # what a failing disk leaves
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 410, 403, 401])
def test_a_missing_file_is_asked_for_once(site: Site, tmp_path: Path, status: int) -> None:
    site.errors = [status]
    assert str(status) in refused(site, tmp_path / "f")
    assert len(site.gets()) == 1


def test_errors_that_pass_are_waited_for(site: Site, tmp_path: Path) -> None:
    site.errors = [503, 500]
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert len(site.gets()) == 3
    site.errors = [503] * 9
    assert "tried 3 times" in refused(site, tmp_path / "g")


def test_a_server_that_falls_silent_is_given_up_and_what_came_is_kept(site: Site, tmp_path: Path) -> None:
    site.block, site.slow = 100_000, 0.0
    site.cuts, site.keep_open = [100_000], 1.0
    message = refused(site, tmp_path / "f", retry=RetryPolicy(0.2, 1, 0.01))
    assert "timed out" in message
    assert partial(tmp_path / "f") == CONTENT[:100_000]
    site.keep_open = 0.0
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert site.gets()[-1] == ("/f", "bytes=100000-")


def test_a_server_that_never_closes_does_not_hold_a_complete_file(site: Site, tmp_path: Path) -> None:
    site.keep_open = 1.5
    fetch(site, tmp_path / "f", retry=RetryPolicy(1.0, 1, 0.01))
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_an_unexpected_size_is_refused_before_the_transfer(site: Site, tmp_path: Path) -> None:
    assert f"{len(CONTENT)} bytes, 7 are expected" in refused(site, tmp_path / "f", size=7)
    assert fetch(site, tmp_path / "f", size=len(CONTENT)).size == len(CONTENT)


def test_nobody_there(tmp_path: Path) -> None:
    with serving() as site:
        pass  # the port is free again
    assert "cannot be reached" in refused(site, tmp_path / "f")


def test_a_full_disk(site: Site, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        message = refused(site, tmp_path / "f")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in message
    fetch(site, tmp_path / "f", sha256=SHA256)
    assert site.gets()[-1][1] is not None  # it went on from what fitted


def test_a_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        fetch(site, tmp_path / "file" / "f")


def test_content_of_the_wrong_kind_is_refused(site: Site, tmp_path: Path) -> None:
    def check(path: Path) -> None:
        raise InputError(f"{path}: is a web page")

    assert "is a web page" in refused(site, tmp_path / "f", check=check)
    assert list((tmp_path / PARTIAL).iterdir()) == []


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 120_000), max_size=4), ranges=st.booleans())
def test_however_it_is_cut_the_file_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], ranges: bool
) -> None:
    target = tmp_path_factory.mktemp("cut") / "f"
    with serving(files={"/f": CONTENT}, cuts=list(cuts), ranges=ranges) as site:
        fetch(site, target, retry=RetryPolicy(2.0, 6, 0.001))
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["\u00b2", "9" * 5000, "-1", "x"])
def test_a_length_that_is_no_number_is_as_good_as_none(length: str) -> None:
    from types import SimpleNamespace

    from gqe.datasets.official.download import _content_range, _remote_file

    headers = {"Content-Length": length, "Content-Range": f"bytes 0-1/{length}"}
    assert _remote_file("http://a/b", SimpleNamespace(headers=headers)).total is None
    assert _content_range(SimpleNamespace(headers=headers)) == (-1, None)


@pytest.mark.parametrize("name", ["../other", "/etc/passwd"])
def test_a_record_of_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    from gqe.datasets.official.record import RECORD_NAME, Entry, read_record, write_entry

    write_entry(tmp_path, "a", Entry("http://a/b", 1, "0", False))
    assert list(read_record(tmp_path)) == ["a"]
    text = (tmp_path / RECORD_NAME).read_text()
    (tmp_path / RECORD_NAME).write_text(text.replace('"a"', f'"{name}"'))
    with pytest.raises(InputError, match="is broken"):
        read_record(tmp_path)
