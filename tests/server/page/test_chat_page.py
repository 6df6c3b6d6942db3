"""The chat in a browser: stream, stop, switch, compare, retry, errors, keys, and text that must stay text."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from forerun.server.config import ServerConfig
from forerun.server.keys import KeySources
from tests.server.conftest import MODEL, Server, serving, tiny_llm
from tests.server.page.conftest import OpenPage, answered, send

ANSWER = ".message.assistant .answer"


def text_of(page: Page) -> str:
    return page.locator(ANSWER).last.evaluate(
        "e => [...e.querySelectorAll('[data-token]')].map(t => t.textContent).join('')"
    )


def test_an_answer_streams_and_says_what_the_api_says(open_page: OpenPage, slow_server: Server):
    page = open_page()
    send(page, "hello there")
    page.wait_for_selector("#send.stop")
    page.wait_for_selector(f"{ANSWER} [data-token]")
    assert page.locator("#send.stop").count() == 1, "tokens came before the end"
    answered(page)
    messages = [{"role": "user", "content": "hello there"}]
    whole = slow_server.openai.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=60)
    shown = re.sub(r"\s", "", text_of(page))
    assert shown
    assert shown == re.sub(r"\s", "", whole.choices[0].message.content)
    expect(page.locator(".facts").last).to_contain_text("60 tokens")
    expect(page.locator(".facts").last).to_contain_text("cut at the longest answer")


def test_drafted_tokens_are_tinted_and_told_in_the_legend(open_page: OpenPage):
    page = open_page()
    send(page, "hello there")
    answered(page)
    assert page.locator(f"{ANSWER} .tok.tinted").count() > 0
    assert page.locator(f"{ANSWER} .tok:not(.tinted)").count() > 0
    expect(page.locator(".facts .legend").last).to_have_text(re.compile(r"ngram \d+ \(.+\)model \d+ \(.+\)"))


def test_a_token_tells_probability_and_source(open_page: OpenPage):
    page = open_page()
    fake_answer(page, "abcdefghi")
    send(page, "hello there")
    answered(page)
    page.locator("[data-token]", has_text="def").hover()
    expect(page.locator("#tooltip")).to_contain_text("drafted by ngram")
    expect(page.locator("#tooltip")).to_contain_text("60.65 %")
    page.locator("[data-token]", has_text="ghi").hover()
    expect(page.locator("#tooltip")).to_contain_text("the model itself")
    page.locator("#prompt").hover()
    expect(page.locator("#tooltip")).to_be_hidden()


def test_stop_ends_the_generation(open_page: OpenPage, slow_server: Server, wait_until):
    page = open_page(settings={"temperature": "0", "max_tokens": "900"})
    send(page, "a long one")
    page.wait_for_selector(f"{ANSWER} [data-token]")
    page.click("#send")
    answered(page)
    expect(page.locator(".facts").last).to_contain_text("stopped by you")
    wait_until(lambda: not slow_server.llm.engine.has_work)
    slow_server.llm.engine.check()


def test_the_switch_turns_speculation_off_and_both_speeds_stand_beside_it(open_page: OpenPage):
    page = open_page()
    send(page, "hello there")
    answered(page)
    first = text_of(page)
    page.locator("#speculation").uncheck(force=True)
    page.click("text=Retry")
    page.wait_for_selector("#send.stop")
    answered(page)
    assert text_of(page) == first
    assert page.locator(f"{ANSWER} .tinted").count() == 0
    expect(page.locator("#speeds")).to_have_text(re.compile(r"on [\d.,]+off [\d.,]+ tokens/s"))


def test_compare_answers_twice_and_finds_the_answers_equal(open_page: OpenPage):
    page = open_page(settings={"temperature": "0", "max_tokens": "40"})
    bodies = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    page.wait_for_selector("#status[data-state=up]")
    page.fill("#prompt", "hello there")
    page.click("#compare")
    page.wait_for_selector(".verdict:not([hidden])")
    expect(page.locator(".verdict")).to_contain_text("The answers are equal, token for token (40)")
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"[\d.]+× as fast"))
    assert page.locator(".side.off .speed").inner_text() != "–tokens/s"
    off, on = bodies
    assert off["speculation"] == {"drafter": "off"}
    assert "speculation" not in on
    assert off["seed"] == on["seed"]
    assert off["cache_salt"] != on["cache_salt"]
    page.reload()
    expect(page.locator(".verdict")).to_contain_text("equal")


def test_the_conversation_is_kept_in_the_tab_until_a_new_one_begins(open_page: OpenPage):
    page = open_page()
    bodies = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    page.fill("[name=system]", "Be brief.")
    send(page, "one")
    answered(page)
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert page.locator(f"{ANSWER} .tinted").count() > 0
    send(page, "two")
    answered(page)
    assert [message["role"] for message in bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    page.click("#new-chat")
    expect(page.locator(".welcome")).to_be_visible()
    page.reload()
    expect(page.locator(".message")).to_have_count(0)


def test_copy_gives_the_text(open_page: OpenPage):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    fake_answer(page, "plain **bold** text")
    send(page, "hello")
    answered(page)
    page.click("text=Copy")
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "plain **bold** text"


def test_errors_are_shown_as_the_server_words_them(open_page: OpenPage, slow_server: Server):
    page = open_page(settings={"temperature": "3"})
    send(page, "hello")
    answered(page)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 3}
    message = slow_server.http.post("/v1/chat/completions", json=body).json()["error"]["message"]
    expect(page.locator(".problem").first).to_have_text(message)
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "5")
    page.click("text=Retry")
    expect(page.locator(".facts").last).to_contain_text("5 tokens")


def fake_answer(page: Page, text: str) -> None:
    """The next answers say this, in tokens of three characters."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]

    def answer(route: Route) -> None:
        lines = []
        for at, piece in enumerate(pieces):
            detail = {"id": at, "text": piece, "drafter": "ngram" if at % 2 else None, "logprob": -0.5}
            choice = {"index": 0, "delta": {"content": piece}, "token_details": [detail], "finish_reason": None}
            lines.append({"choices": [choice]})
        lines.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        events = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
        route.fulfill(content_type="text/event-stream", body=events + "data: [DONE]\n\n")

    page.route("**/v1/chat/completions", answer)


def test_text_stays_text(open_page: OpenPage):
    attack = "<img src=x onerror=alert(1)> <script>alert(2)</script> [a](javascript:alert(3)) `<b>x</b>`"
    page = open_page()
    fake_answer(page, attack)
    send(page, attack)
    answered(page)
    assert page.locator("#conversation :is(img, script, a, b)").count() == 0
    assert text_of(page) == attack.replace("`", "")
    expect(page.locator(".message.user .body")).to_contain_text(attack)


def test_a_little_markdown(open_page: OpenPage):
    page = open_page()
    fake_answer(
        page, "# Title\nSome **bold** and `code`.\n\n- first\n- second\n\n```python\nx = '**1**'\n\ny = 2\n```\nEnd"
    )
    send(page, "hello")
    answered(page)
    answer = page.locator(ANSWER)
    expect(answer.get_by_role("heading")).to_have_text("Title")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("code.inline")).to_have_text("code")
    expect(answer.locator(".item")).to_have_text(["- first", "- second"])
    assert answer.locator("pre").inner_text() == "x = '**1**'\n\ny = 2"
    expect(answer.locator(".code-head span")).to_have_text("python")
    expect(answer.locator(".text").last).to_have_text("End")
    assert answer.locator("pre .tinted").count() > 0


def test_a_server_that_has_gone_is_reported(open_page: OpenPage, tiny_model: Path):
    with serving(tiny_llm(tiny_model)) as server:
        page = open_page(server)
        page.wait_for_selector("#status[data-state=up]")
    page.fill("#prompt", "hello")
    page.press("#prompt", "Enter")
    expect(page.locator(".problem").first).to_contain_text("cannot be reached")
    expect(page.locator("#status")).to_have_text("Not reachable")


def test_a_key_is_asked_for_and_kept_in_the_tab(open_page: OpenPage, tiny_model: Path):
    keys = KeySources(("alice:key-of-alice",))
    with serving(tiny_llm(tiny_model), ServerConfig(served_model=MODEL, keys=keys)) as server:
        page = open_page(server)
        expect(page.get_by_role("dialog")).to_contain_text("needs an API key")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.get_by_role("dialog")).to_contain_text("not valid here")
        page.fill("#key", "key-of-alice")
        page.press("#key", "Enter")
        send(page, "hello")
        answered(page)
        assert text_of(page)
        assert page.evaluate("Object.values(localStorage).includes('key-of-alice')") is False
        page.close()


@pytest.mark.parametrize("answer", [{"status": 502, "body": "<html>"}, {"status": 500, "body": "{}"}])
def test_an_answer_that_is_not_the_servers_is_an_error_too(open_page: OpenPage, answer):
    page = open_page()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
    send(page, "hello")
    expect(page.locator(".problem").first).to_contain_text(str(answer["status"]))
