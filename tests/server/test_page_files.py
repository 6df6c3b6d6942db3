"""The page's files over HTTP: all there, nothing from elsewhere, and headers that allow nothing else."""

import re
from importlib.resources import files

import pytest

from tests.server.conftest import Server

WEB = files("forerun.server").joinpath("web")
NAMES = sorted(entry.name for entry in WEB.iterdir())


def test_the_page(server: Server):
    answer = server.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served(server: Server, name):
    answer = server.http.get(f"/page/{name}")
    assert answer.content == WEB.joinpath(name).read_bytes()
    assert "content-security-policy" in answer.headers
    again = server.http.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("name", ["nothing.js", "..%2f__init__.py", "%2e%2e/page.py", "web"])
def test_nothing_else_is_served(server: Server, name):
    assert server.http.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_from_elsewhere(name):
    text = WEB.joinpath(name).read_text(encoding="utf-8")
    assert [url for url in re.findall(r"https?://[^\s\"']+", text) if "www.w3.org/2000/svg" not in url] == []
    assert "innerHTML" not in text
    assert "eval(" not in text


def test_what_the_page_names_is_there():
    for name in NAMES:
        text = WEB.joinpath(name).read_text(encoding="utf-8")
        named = re.findall(r'"/page/([\w.]+)"', text) + re.findall(r'from "\./([\w.]+)"', text)
        assert set(named) <= set(NAMES)


def test_the_icon_where_browsers_look_for_it(server: Server):
    assert server.http.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
