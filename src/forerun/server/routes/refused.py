"""Known endpoints of OpenAI that this server does not have: each says so, instead of a bare 404."""

from fastapi import APIRouter

from forerun.server.documented import errors
from forerun.server.errors import ApiError

router = APIRouter()

# The first part of a path below /v1, and why there is nothing behind it.
REFUSED_PATHS = {
    "embeddings": "this server generates text: embeddings need a model and a server made for them",
    "moderations": "this server does not moderate",
    "images": "the model makes text only",
    "videos": "the model makes text only",
    "audio": "the model reads and writes text only",
    "realtime": "the model reads and writes text only: stream /v1/chat/completions",
    "files": "this server stores no files",
    "uploads": "this server stores no files",
    "vector_stores": "this server stores no files",
    "batches": "this server runs no batches later: send the requests, it batches them by itself",
    "fine_tuning": "this server trains nothing",
    "fine-tunes": "this server trains nothing",
    "assistants": "this server has no assistants: ask /v1/chat/completions or /v1/responses",
    "threads": "conversations are not stored: pass all messages to /v1/chat/completions",
    "conversations": "conversations are not stored: pass all of it as input to /v1/responses",
    "evals": "this server evaluates nothing",
    "containers": "this server runs no code",
    "rerank": "this server generates text: it does not rank documents",
}
# What is behind an endpoint that does exist.
REFUSED_BEHIND = {
    "responses/input_tokens": "POST /tokenize counts the tokens of messages",
    "responses/compact": "the conversation is taken as it is: shorten it yourself",
    "responses": "responses are not stored, so there is none to fetch, cancel or delete",
    "chat/completions": "answers are not stored, so there is none to fetch, change or delete",
}
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def _answer_behind(name: str, sentence: str) -> None:
    async def refuse(rest: str = "") -> None:
        raise ApiError(404, f"there is nothing behind /v1/{name}: {sentence}", code="unsupported_endpoint")

    paths = [f"/v1/{name}/{{rest:path}}", *([f"/v1/{name}"] if name.startswith("responses/") else [])]
    for path in paths:
        router.add_api_route(path, refuse, methods=_METHODS, include_in_schema=False)


def _answer(name: str, sentence: str) -> None:
    async def refuse() -> None:
        raise ApiError(404, f"/v1/{name} does not exist here: {sentence}", code="unsupported_endpoint")

    path = f"/v1/{name}"
    router.add_api_route(path, refuse, methods=["POST"], status_code=404, responses=errors(404), name=f"no {name}")
    for further in (path, f"{path}/{{rest:path}}"):
        router.add_api_route(further, refuse, methods=_METHODS, include_in_schema=False)


for _name, _sentence in REFUSED_PATHS.items():
    _answer(_name, _sentence)
for _name, _sentence in REFUSED_BEHIND.items():
    _answer_behind(_name, _sentence)
