"""Small routes: models, tokens, capabilities, and what this server does not have."""

import openai
import pytest

from forerun.server.config import ServerConfig
from forerun.server.routes.refused import REFUSED_PATHS
from tests.server.conftest import MODEL, Server, serving

TEXT = "naïve 你好 <|im_end|> end"

CHAT = {"messages": [{"role": "user", "content": "x"}]}


class TestModels:
    def test_the_served_model_goes_by_its_names_only(self, server: Server):
        path = "/models/tiny.gguf"
        config = ServerConfig(served_model=MODEL, model_aliases=("default", "org/tiny"), untold_names=(path,))
        with serving(server.llm, config) as named:
            (model,) = named.openai.models.list()
            assert model.id == MODEL
            assert named.openai.models.retrieve("org/tiny").id == MODEL
            assert model.aliases == ["default", "org/tiny"]
            for told in ("/v1/models", "/v1/capabilities", "/health"):
                assert path not in named.http.get(told).text
            for name in (MODEL, "default", "org/tiny", path):
                answer = named.openai.completions.create(model=name, prompt="x", max_tokens=1)
                assert answer.model == name
            for ask in (
                lambda: named.openai.models.retrieve("gpt-4"),
                lambda: named.openai.chat.completions.create(
                    model="gpt-4", messages=[{"role": "user", "content": "x"}]
                ),
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    ask()
                assert caught.value.code == "model_not_found"
                assert MODEL in caught.value.message


class TestTokens:
    def ask(self, server: Server, path: str, **body):
        return server.http.post(path, json=body)

    def test_a_text_becomes_ids_and_comes_back(self, server: Server):
        found = self.ask(server, "/tokenize", text=TEXT).json()
        assert found["tokens"] == server.llm.tokenizer.encode_prompt(TEXT)
        assert found["count"] == len(found["tokens"])
        assert self.ask(server, "/detokenize", tokens=found["tokens"]).json()["text"] == TEXT
        assert self.ask(server, "/tokenize", prompt=TEXT).json() == found

    def test_control_tokens_are_plain_text_when_asked(self, server: Server):
        plain = self.ask(server, "/tokenize", text="<|im_end|>", add_special_tokens=False).json()
        assert plain["count"] > 1
        special = self.ask(server, "/tokenize", text="<|im_end|>").json()["tokens"]
        assert len(special) == 1
        assert self.ask(server, "/detokenize", tokens=special).json()["text"] == "<|im_end|>"
        assert self.ask(server, "/detokenize", tokens=special, skip_special_tokens=True).json()["text"] == ""

    def test_a_conversation_is_counted_as_it_is_charged(self, server: Server):
        messages = [{"role": "developer", "content": "brief"}, {"role": "user", "content": "hello"}]
        count = self.ask(server, "/tokenize", messages=messages, model=MODEL).json()["count"]
        answer = server.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        assert answer.usage.prompt_tokens == count

    @pytest.mark.parametrize(
        ("path", "body", "word"),
        [
            ("/tokenize", {}, "text or messages"),
            ("/tokenize", {"text": "x", "messages": [{"role": "user", "content": "x"}]}, "text or messages"),
            ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}, "belongs"),
            ("/tokenize", {"text": "x", "prompt": "x"}, "text or messages"),
            ("/detokenize", {"tokens": [1], "prompt": "x"}, "pass tokens"),
            ("/v1/chat/completions", {"model": MODEL, "messages": [], "prompt": "x"}, "must not be empty"),
            ("/v1/chat/completions", {"model": MODEL, "prompt": "x", **CHAT}, "pass those"),
            ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": []}]}, "not be empty"),
            ("/v1/completions", {"model": MODEL, "prompt": []}, "prompt must not be empty"),
            ("/v1/completions", {"model": MODEL, "prompt": "x", "logit_bias": {"5": 100.5}}, "logit_bias"),
            ("/v1/chat/completions", {"model": MODEL, **CHAT, "logit_bias": {"5": -101}}, "logit_bias"),
            ("/detokenize", {"tokens": [10**6]}, "vocabulary"),
            ("/detokenize", {"tokens": [-1]}, "greater"),
            ("/detokenize", {"tokens": ["a"]}, "integer"),
        ],
    )
    def test_what_is_wrong_is_said(self, server: Server, path, body, word):
        answer = self.ask(server, path, **body)
        assert answer.status_code == 400
        assert word in answer.json()["error"]["message"]

    def test_another_model_has_no_tokens_here(self, server: Server):
        assert self.ask(server, "/detokenize", tokens=[1], model="gpt-4").status_code == 404


class TestCapabilities:
    def test_what_it_says_of_combinations_is_what_requests_meet(self, server: Server):
        found = server.http.get("/v1/capabilities").json()
        base = {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
            "/v1/completions": {"prompt": "x"},
        }
        honoured = []
        for entry in found["combinations"]:
            limit = {} if {"max_tokens", "max_completion_tokens"} & entry["options"].keys() else {"max_tokens": 4}
            body = {"model": MODEL, **base[entry["endpoint"]], **limit, **entry["options"]}
            answer = server.http.post(entry["endpoint"], json=body)
            assert (answer.status_code == 200) == entry["honoured"], (entry, answer.text)
            if not entry["honoured"]:
                assert answer.json()["error"]["message"] == entry["reason"]
            honoured.append(entry["honoured"])
        assert any(honoured)
        assert not all(honoured)

    def test_every_refused_option_is_refused_with_its_sentence(self, server: Server):
        refused = server.http.get("/v1/capabilities").json()["refused"]
        for option, sentence in refused["options"].items():
            body = {"model": MODEL, "input": "x", option: 1}
            error = server.http.post("/v1/responses", json=body).json()["error"]
            assert error["param"] == option
            if error["code"] == "unsupported_parameter":
                assert sentence in error["message"]

    def test_it_names_the_model_and_the_drafters(self, server: Server):
        found = server.http.get("/v1/capabilities").json()
        assert found["model"]["numerics_id"] == server.llm.numerics_id
        loaded = [drafter.name for drafter in server.llm.engine.speculator.drafters]
        assert set(found["speculation"]["drafters"]) == {*loaded, "grammar", "prediction"}
        assert found["speculation"]["verification"] == {"name": "coupled", "repeats_seeds": True, "is_lossy": False}
        assert found["endpoints"]["/v1/completions"]["suffix"]
        for drafter in found["speculation"]["drafters"]:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 2, "speculation": {"drafter": drafter}}
            assert server.http.post("/v1/completions", json=body).status_code == 200


class TestRefusedEndpoints:
    @pytest.mark.parametrize("name", REFUSED_PATHS)
    def test_each_says_why(self, server: Server, name):
        for method, path in (("POST", f"/v1/{name}"), ("GET", f"/v1/{name}/x"), ("DELETE", f"/v1/{name}/x/y")):
            answer = server.http.request(method, path, json={})
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["code"] == "unsupported_endpoint"
            assert REFUSED_PATHS[name] in error["message"]

    def test_the_official_client_reads_the_sentence(self, server: Server):
        with pytest.raises(openai.NotFoundError, match="embeddings need a model"):
            server.openai.embeddings.create(model=MODEL, input="x")

    def test_a_body_of_another_type_is_told_so(self, server: Server):
        answer = server.http.post("/tokenize", content=b'{"text": "x"}', headers={"Content-Type": "text/plain"})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_content_type"
        assert "'text/plain': send application/json" in answer.json()["error"]["message"]
        right = {"Content-Type": "application/json; charset=utf-8"}
        assert server.http.post("/tokenize", content=b'{"text": "x"}', headers=right).status_code == 200

    def test_an_unknown_path_is_an_error_document_too(self, server: Server):
        answer = server.http.get("/v2/anything")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
        assert "'/v2/anything'" in answer.json()["error"]["message"]
        assert "/v1/capabilities" in answer.json()["error"]["message"]
        wrong = server.http.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        assert "use POST" in wrong.json()["error"]["message"]


def test_without_a_key_or_a_cache_salt_a_request_has_no_salt(server, monkeypatch):
    """What drafters keep between runs comes from such requests alone."""
    add, salts = server.llm.engine.add, []
    monkeypatch.setattr(server.llm.engine, "add", lambda request: salts.append(request.salt) or add(request))
    for options in ({}, {"cache_salt": ""}, {"cache_salt": "own"}):
        body = {"model": "tiny", "prompt": "one", "max_tokens": 2} | options
        assert server.http.post("/v1/completions", json=body).status_code == 200
    assert salts == ["", "", "/own"]
