"""GET / and /page/{file}: the page, served from the package. Nothing on it comes from elsewhere."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forerun.server.errors import ApiError

router = APIRouter(include_in_schema=False)

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asks again each time; an unchanged file is answered 304
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    """Every file of the page by name, read once."""
    found = {}
    for entry in files("forerun.server").joinpath("web").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            content = entry.read_bytes()
            found[entry.name] = _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _answer("index.html", request)


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    """The icon, for those who do not read which one the page names."""
    return _answer("icon.svg", request)


@router.get("/page/{name}")
async def web_file(name: str, request: Request) -> Response:
    """A file of the page, 404 for any other."""
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    file = _files().get(name)
    if file is None:
        raise ApiError(404, f"no file {name!r} here", code="not_found")
    headers = _HEADERS | {"ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
