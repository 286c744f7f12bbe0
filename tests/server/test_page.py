"""The page in a real browser: load, search, explain, refine, and an error that is shown."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gqe.index import Index
from gqe.server import IndexEngine, Settings, Tokens
from gqe.server.pictures import FolderPictures
from server.worlds import READ, describer, jpeg, serving
from server.worlds import build as build_index

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no /usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
N = 60


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple:
    """An index of pictures that `describer` describes."""
    place = tmp_path_factory.mktemp("page")
    folder = place / "pictures"
    folder.mkdir()
    names = [f"{number:02d} & co.jpg" for number in range(N)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(jpeg(number % 12, 48 + number))
    table = np.stack([describer()((folder / name).read_bytes()) for name in names])
    table += 0.05 * np.random.default_rng(0).normal(size=table.shape)
    index = Index.build(table, "aqe-g", place / "index", ids=names, device="cpu")
    return index, folder, names


@pytest.fixture(scope="module")
def served(world):
    index, folder, _ = world
    with serving(index, describe=describer(), pictures=FolderPictures(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A page that may complain about nothing but what a test expects."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.complaints = []
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("console", lambda line: opened.complaints.append(line.text) if line.type == "error" else None)
    opened.outside = []
    opened.on(
        "request",
        lambda asked: (
            None if asked.url.startswith(("http://127.0.0.1", "blob:")) else opened.outside.append(asked.url)
        ),
    )
    yield opened
    assert opened.outside == []
    opened.close()


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def search_first(page, served) -> None:
    page.goto(served.url)
    page.locator("#examples button").first.click()
    page.locator("#after .card").first.wait_for()


def test_search_shows_both_lists_and_what_moved(page, served, world) -> None:
    index, _, names = world
    search_first(page, served)
    row = IndexEngine(index).vectors(names[:1])
    before = index.search(row, 12, expand=False, exclude=[names[0]]).ids[0].tolist()
    after = index.search(row, 12, exclude=[names[0]]).ids[0].tolist()
    assert texts(page, "#before .name") == before
    assert texts(page, "#after .name") == after
    risen = [i for i, name in enumerate(after) if name not in before or before.index(name) > i]
    badges = page.locator("#after .card").evaluate_all(
        "cards => cards.map((card) => card.querySelector('.badge')?.textContent ?? '')"
    )
    assert [i for i, badge in enumerate(badges) if badge == "new" or badge.startswith("▲")] == risen
    assert risen
    assert texts(page, "#after .score") == [
        f"{s:.3f}" for s in index.search(row, 12, exclude=[names[0]]).scores[0]
    ]
    assert f"{len(risen)} moved up" in page.locator("#status").text_content()
    image = page.locator("#after .card img").first
    image.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert image.evaluate("image => image.naturalWidth") > 0
    assert page.complaints == []


def test_the_graph_can_be_clicked_through_and_reached_by_keyboard(page, served) -> None:
    search_first(page, served)
    nodes = page.locator("#graph .node[role=button]")
    assert nodes.count() >= 10
    widths = page.locator("#graph line").evaluate_all("all => all.map(l => +l.getAttribute('stroke-width'))")
    assert max(widths) == pytest.approx(13)
    name = nodes.nth(2).locator("title").text_content().partition(", hop")[0]
    nodes.nth(2).focus()
    page.keyboard.press("Enter")
    page.get_by_text(f"Item {name}", exact=True).wait_for()
    assert page.locator("#weights tbody tr").count() >= 10
    other = nodes.nth(1).locator("title").text_content().partition(", hop")[0]
    nodes.nth(1).click()
    page.get_by_text(f"Item {other}", exact=True).wait_for()
    assert page.complaints == []


def test_methods_k_and_rerankers_change_the_search(page, served) -> None:
    search_first(page, served)
    for select, value, asked in [
        ("#method", "alpha", "alpha"),
        ("#neighbors", "4", "alpha:k=4"),
        ("#method", "none", "none"),
    ]:
        with page.expect_request(lambda r: "/v1/search" in r.url and "method" in (r.post_data or "")) as sent:
            page.select_option(select, value)
        assert sent.value.post_data_json["method"] == asked
    page.locator("#neighborhood").wait_for(state="hidden")
    assert page.complaints == []


def test_likes_and_dislikes_refine(page, served, world) -> None:
    search_first(page, served)
    names = texts(page, "#after .name")
    page.locator("#after .card").nth(2).get_by_role("button", name="Like", exact=False).first.click()
    page.locator("#after .card").nth(0).get_by_role("button", name="Dislike").click()
    assert (
        page.locator("#after .card")
        .nth(0)
        .get_by_role("button", name="Dislike")
        .get_attribute("aria-pressed")
        == "true"
    )
    with page.expect_request(lambda r: "/v1/search" in r.url and "dislike" in (r.post_data or "")) as sent:
        page.get_by_role("button", name="Refine with these").click()
    content = sent.value.post_data_json
    assert [each["id"] for each in content["like"]][1:] == [names[2]]
    assert [each["id"] for each in content["dislike"]] == [names[0]]
    page.wait_for_timeout(200)
    page.locator("#after .card").first.wait_for()
    shown = texts(page, "#after .name")
    assert len(shown) == 12
    assert not {names[0], world[2][0]} & set(shown)  # neither what is disliked nor the query itself
    page.get_by_role("button", name="Forget likes and dislikes").click()
    page.locator("#forget").wait_for(state="hidden")
    assert page.complaints == []


def test_a_picture_is_searched_and_a_bad_one_is_explained(page, served, tmp_path) -> None:
    page.goto(served.url)
    page.locator("#examples button").first.wait_for()
    content = BytesIO()
    Image.new("RGB", (60, 40), "red").save(content, format="PNG")
    page.set_input_files("#file", {"name": "red.png", "mimeType": "image/png", "buffer": content.getvalue()})
    page.locator("#after .card").first.wait_for()
    assert page.locator("#query-name").text_content() == "red.png"
    assert page.complaints == []
    page.set_input_files("#file", {"name": "bad.png", "mimeType": "image/png", "buffer": b"<svg/>"})
    page.locator("#error").wait_for()
    assert "not a picture" in page.locator("#error").text_content()
    assert page.locator("#error").get_attribute("role") == "alert"
    assert page.locator("#query-name").text_content() == "red.png"  # what was there stays


def test_a_phone_scrolls_only_downwards_and_the_dark_is_dark(page, served, tmp_path) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    search_first(page, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(back) != light
    page.screenshot(path=tmp_path / "phone.png")


def test_everything_can_be_named_by_a_screen_reader(page, served) -> None:
    search_first(page, served)
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, select, input, [role=button]')]
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length
            || e.querySelector('img')?.alt))
        .map(e => e.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("[aria-live=polite]").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


def test_a_token_is_asked_for(page, world) -> None:
    index, folder, _ = world
    settings = Settings(tokens=Tokens({READ: {"read"}}))
    with serving(index, settings, pictures=FolderPictures(folder)) as served:
        page.goto(served.url)
        page.locator("#token").wait_for()
        page.fill("#token-text", READ)
        page.keyboard.press("Enter")
        page.locator("#examples button img").first.wait_for()
        page.wait_for_timeout(300)
        assert page.locator("#examples img").first.evaluate("image => image.naturalWidth") > 0


def test_an_index_without_pictures_shows_names(page, tmp_path) -> None:
    with serving(build_index(tmp_path / "index")) as served:
        search_first(page, served)
        assert page.locator("#drop").is_hidden()
        assert page.locator("#after .words").count() == 12
        assert texts(page, "#after .score")[0].startswith("0.")
        assert page.complaints == []


def test_texts_are_searched_and_shown_with_their_titles(page, tmp_path) -> None:
    columns = {
        "title": [f"Title {i}" for i in range(120)],
        "text": [f"Text of item {i}." for i in range(120)],
    }
    index = build_index(tmp_path / "index", metadata=columns | {"year": [1900 + i for i in range(120)]})
    row = index.vectors([7])[0]
    with serving(index, embed=lambda text: row if text == "seven" else row[::-1]) as served:
        page.goto(served.url)
        page.locator("#examples button").first.wait_for()
        page.fill("#text", "seven")
        page.keyboard.press("Enter")
        page.locator("#after .card").first.wait_for()
        assert "“seven”" in page.locator("#query-name").text_content()
        first = page.locator("#before .card").first.text_content()
        assert "Title 7" in first
        assert "Text of item 7." in first
        assert "year: 1907" in first
        assert page.evaluate("location.search") == "?text=seven"
        assert page.complaints == []


def test_back_reload_and_a_shared_address_show_the_same(page, served, world) -> None:
    names = world[2]
    search_first(page, served)
    page.fill("#id", names[3])
    page.get_by_role("button", name="Search", exact=True).last.click()
    page.get_by_text(f"Item {names[3]}", exact=True).wait_for()
    with page.expect_response("**/v1/search"):
        page.select_option("#method", "alpha")
    page.locator("#status", has_text="results in").wait_for()
    shown, address = texts(page, "#after .name"), page.url
    page.reload()
    page.locator("#after .card").first.wait_for()
    assert (texts(page, "#after .name"), page.input_value("#method")) == (shown, "alpha")
    page.go_back()
    page.wait_for_function("document.getElementById('method').value === 'index'")
    page.go_back()
    page.get_by_text(f"Item {names[0]}", exact=True).wait_for()
    page.goto(address)
    page.locator("#after .card").first.wait_for()
    assert texts(page, "#after .name") == shown
    assert page.complaints == []


def test_green_is_right_where_the_truth_is_known(page, tmp_path) -> None:
    labels = {item: item % 2 for item in range(120)}
    with serving(build_index(tmp_path / "index"), labels=labels) as served:
        page.goto(f"{served.url}?id=4")
        page.locator("#after .card").first.wait_for()
        ids = [
            int(each)
            for each in page.locator("#after .card").evaluate_all("all => all.map(c => c.dataset.id)")
        ]
        right = page.locator("#after .card").evaluate_all(
            "all => all.map(c => c.classList.contains('right'))"
        )
        assert right == [item % 2 == 0 for item in ids]
        assert page.locator("#after .card.wrong").count() == right.count(False)
        assert f"{right.count(True)} of 12 right" in page.locator("#after-hint").text_content()


def test_without_expansion_it_says_so(page, served, world) -> None:
    page.goto(f"{served.url}?id={world[2][0].replace('&', '%26')}&method=none")
    page.locator("#after .card").first.wait_for()
    assert "Expansion is off" in page.locator("#after-hint").text_content()
    assert page.locator("#before-list").is_hidden()
    assert page.locator("#after-title").text_content() == "Without expansion"
    assert page.locator("#after .mark").count() == 0  # nothing is known to be right


def test_a_phone_shows_the_scores(page, served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    search_first(page, served)
    assert page.locator("#after .score").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
