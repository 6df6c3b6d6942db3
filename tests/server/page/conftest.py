"""A headless Chromium, and servers slow enough to be watched."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from forerun.config import SpeculationConfig
from forerun.llm import LLM
from tests.server.conftest import Server, serving, tiny_llm

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
STEP_S = 0.03  # what every step of the slow server takes at least
TIMEOUT_MS = 45_000  # machines that run tests are busy
SETTINGS = {"temperature": "0", "max_tokens": "60"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Of a module, because Playwright's event loop would be in the way of other tests' loops."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        assert not os.environ.get("CI"), "CI must have the package chromium"
        pytest.skip("no chromium here: install the package chromium")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def slowed(llm: LLM, step_s: float = STEP_S) -> LLM:
    """The same, with steps that take at least so long."""
    step = llm.engine.step

    def slow_step() -> list:
        time.sleep(step_s)
        return step()

    llm.engine.step = slow_step  # type: ignore[method-assign]
    return llm


@pytest.fixture(scope="session")
def slow_server(tiny_model: Path) -> Iterator[Server]:
    """A server that always drafts, slowly."""
    with serving(slowed(tiny_llm(tiny_model, SpeculationConfig("ngram", max_depth=2, budget="fixed")))) as running:
        yield running


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, slow_server: Server) -> Iterator[OpenPage]:
    """Open the page; nothing may be logged as an error or refused by the content security policy."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def listen(page: Page) -> None:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)

    def open_it(server: Server = slow_server, settings: dict[str, str] = SETTINGS, hash: str = "", **options) -> Page:
        context = browser.new_context(**({"viewport": DESKTOP} | options))
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        # Only at first: a page that is loaded again keeps what was typed.
        script = "sessionStorage.getItem('forerun.settings') ?? sessionStorage.setItem('forerun.settings', %s)"
        context.add_init_script(script % json.dumps(json.dumps(settings)))
        page = context.new_page()
        listen(page)
        page.goto(server.url + hash)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


def send(page: Page, text: str) -> None:
    """Type and send a message with the keyboard."""
    page.wait_for_selector("#status[data-state=up]")
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Page) -> None:
    """Wait until nothing is being answered any more."""
    page.wait_for_selector("#send:not(.stop)")
