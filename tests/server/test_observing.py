"""Request ids and what happens when a route fails: an error with the id, one log line, and the next request works."""

import pytest

from tests.server.conftest import serving, tiny_llm


@pytest.mark.parametrize("given", ["abc-123", "trace:7.b_C", "x" * 128])
def test_a_sane_id_is_returned(server, given):
    assert server.http.get("/v1/models", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "two words", 'quote"', "<script>"])
def test_any_other_is_replaced(server, given):
    answers = [server.http.get("/v1/models", headers={"X-Request-Id": given}) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert given not in ids
    assert len(set(ids)) == 2


def test_every_answer_has_an_id(server):
    for path in ("/nowhere", "/health", "/metrics", "/v1/models/unknown"):
        assert server.http.get(path).headers["x-request-id"]
    assert server.http.post("/v1/chat/completions", json={}).headers["x-request-id"]


def test_a_route_that_fails_is_a_500_with_its_id_and_no_detail(tiny_model, monkeypatch, caplog):
    with serving(tiny_llm(tiny_model)) as server:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        with monkeypatch.context() as broken:

            def fail(*_arguments):
                raise RuntimeError("a bug with a secret")

            broken.setattr("forerun.server.routes.chat.ask_chat", fail)
            answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"] in {
            record.fields["request_id"] for record in caplog.records if hasattr(record, "fields")
        }
        page = server.http.get("/metrics").text
        assert 'forerun_rejected_requests_total{reason="internal_error"} 1.0' in page
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
