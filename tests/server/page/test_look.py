"""Keyboard only, phone width, dark mode, contrast, reduced motion."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.server.page.conftest import PHONE, OpenPage, answered, send

INK_ON_PAPER = [
    *((ink, paper) for ink in ("--text", "--muted", "--accent") for paper in ("--bg", "--surface", "--sunken")),
    ("--danger", "--danger-soft"),
    ("--good", "--sunken"),
    ("--on-accent", "--accent"),
    ("--text", "--accent-soft"),
]


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.className")


def test_everything_is_reached_with_the_keyboard(open_page: OpenPage):
    page = open_page()
    page.wait_for_selector("#status[data-state=up]")
    assert focused(page) == "prompt"
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send.stop")
    answered(page)
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(focused(page))
    assert {"prompt", "speculation", "compare", "send", "tab-chat", "theme", "answer", "new-chat"} <= seen
    page.focus(".answer")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-token]").nth(1)).to_be_focused()
    expect(page.locator("#tooltip")).to_contain_text("Probability")
    page.keyboard.press("End")
    expect(page.locator("[data-token]").last).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".answer")).to_be_focused()
    expect(page.locator("#tooltip")).to_be_hidden()
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#dashboard")).to_be_visible()
    expect(page.locator("#tab-dashboard")).to_have_attribute("aria-selected", "true")


def test_escape_stops(open_page: OpenPage):
    page = open_page(settings={"temperature": "0", "max_tokens": "900"})
    send(page, "hello")
    page.wait_for_selector("[data-token]")
    page.keyboard.press("Escape")
    expect(page.locator(".facts").last).to_contain_text("stopped by you")


@pytest.mark.parametrize("view", ["#/chat", "#/dashboard"])
def test_a_phone_scrolls_one_way_only(open_page: OpenPage, view):
    page = open_page(hash=view, viewport=PHONE, has_touch=True)
    if view == "#/chat":
        send(page, "hello")
        answered(page)
        page.click("text=Compare speeds")
        page.wait_for_selector(".verdict:not([hidden])")
    else:
        expect(page.locator(".strip .figure")).to_have_count(6)
    too_wide = """[...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('pre, .table, [hidden], .hidden')).length"""
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.evaluate("document.querySelector('.bar').getBoundingClientRect().top") == 0
    assert page.evaluate(too_wide) == 0


def test_settings_lie_over_the_chat_on_a_phone(open_page: OpenPage):
    page = open_page(viewport=PHONE)
    expect(page.locator("#settings")).to_be_hidden()
    page.click("#settings-open")
    expect(page.locator("#settings-close")).to_be_focused()
    assert page.evaluate("document.querySelector('.thread').inert")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#settings-open")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(open_page: OpenPage, scheme):
    page = open_page(color_scheme=scheme)
    background = luminance(page, "--bg")
    assert background < 0.1 if scheme == "dark" else background > 0.8
    for ink, paper in INK_ON_PAPER:
        high, low = sorted((luminance(page, ink), luminance(page, paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)


def luminance(page: Page, name: str) -> float:
    """Relative luminance of one of the page's colours, as WCAG defines it."""
    script = """name => {
        const probe = document.body.appendChild(document.createElement('i'));
        probe.style.color = `var(${name})`;
        const colour = getComputedStyle(probe).color;
        probe.remove();
        return colour;
    }"""
    channels = [int(value) / 255 for value in re.findall(r"\d+", page.evaluate(script, name))[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_chosen(open_page: OpenPage):
    page = open_page(color_scheme="light")
    page.click("#theme")
    page.click("#theme")
    assert luminance(page, "--bg") < 0.1
    page.reload()
    assert luminance(page, "--bg") < 0.1


def test_nothing_moves_for_those_who_want_it_so(open_page: OpenPage):
    page = open_page(reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('.track')).transitionDuration") == "0s"
