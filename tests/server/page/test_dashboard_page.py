"""The dashboard in a browser: it moves while something runs, and is fed only while it can be seen."""

import re
import threading

from playwright.sync_api import Page, expect

from tests.server.conftest import MODEL, Server
from tests.server.page.conftest import OpenPage


def figure(page: Page, name: str) -> str:
    return page.locator(".strip > div", has=page.get_by_text(name, exact=True)).locator(".figure").inner_text()


def test_it_moves(open_page: OpenPage, slow_server: Server):
    page = open_page(hash="#/dashboard")
    expect(page.locator(".strip .figure")).to_have_count(6)
    expect(page.locator(".map")).to_have_attribute("aria-label", re.compile(r"Map of [\d,]+ blocks: 0 blocks in use"))
    messages = [{"role": "user", "content": "hello there"}]
    options = {"model": MODEL, "messages": messages, "max_tokens": 400, "temperature": 0, "n": 2}
    asking = threading.Thread(
        target=lambda: slow_server.openai.chat.completions.create(**options, extra_body={"ignore_eos": True})
    )
    asking.start()
    expect(page.locator("tr.live")).to_have_count(2)
    expect(page.locator(".map")).to_have_attribute("aria-label", re.compile(r": [1-9]\d* blocks in use"))
    expect(page.get_by_role("img", name="Tokens per second: ")).to_have_attribute(
        "aria-label", re.compile(r"Tokens per second: [1-9]")
    )
    assert figure(page, "Running") == "2"
    drawn = "() => new Set(document.querySelector('.map').getContext('2d').getImageData(0, 0, 600, 60).data).size > 8"
    page.wait_for_function(drawn)
    asking.join()
    expect(page.locator("tr.live")).to_have_count(0)
    expect(page.locator("tr.ended").first).to_contain_text("400")
    expect(page.locator(".drafters")).to_contain_text(re.compile(r"ngram[\d.]+ %"))
    page.locator(".chart canvas").first.hover()
    expect(page.locator(".chart .readout").first).to_contain_text("s ago")


def test_it_is_fed_only_while_it_can_be_seen(open_page: OpenPage):
    page = open_page()
    began, ended = [], []
    page.on("request", lambda request: began.append(request) if "stream" in request.url else None)
    page.on("requestfailed", lambda request: ended.append(request) if "stream" in request.url else None)
    page.wait_for_selector("#status[data-state=up]")
    assert began == []
    page.click("#tab-dashboard")
    expect(page.locator(".strip .figure")).to_have_count(6)
    assert len(began) == 1
    page.click("#tab-chat")
    page.wait_for_timeout(300)
    assert ended == began


def test_a_feed_that_breaks_off_is_told_and_found_again(open_page: OpenPage):
    page = open_page()
    page.route("**/v1/dashboard/stream", lambda route: route.abort())
    page.click("#tab-dashboard")
    expect(page.locator("#dashboard .problem")).to_contain_text("cannot be reached")
    page.unroute("**/v1/dashboard/stream")
    expect(page.locator("#dashboard .problem")).to_be_hidden()
    expect(page.locator(".strip .figure")).to_have_count(6)
