"""Choices of one request that end in the same step: both arrive, and the engine goes on."""

import pytest

from tests.server.conftest import MODEL, serving, tiny_llm


@pytest.mark.parametrize("streamed", [False, True])
def test_choices_that_end_together(tiny_model, streamed):
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    with serving(tiny_llm(tiny_model, "off")) as server:
        # The first answer leaves the prompt in the cache, so that the choices of the second begin, and end, together.
        for n in (1, 4):
            answer = server.http.post("/v1/chat/completions", json=body | {"n": n, "stream": streamed})
            assert answer.status_code == 200
            assert answer.text.count('"finish_reason":"length"') == n
        assert server.http.get("/health").json()["engine"]["alive"]
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        server.llm.engine.check()
