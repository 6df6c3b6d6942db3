"""bench serve: what arrives is read with its times, figures follow their definitions, failed requests are no result."""

import asyncio
import json

import pytest

from forerun.bench.prompts import own_prompts, text_lines
from forerun.bench.serving import ServingRun, ServingWish, bench_serving, bodies, percentile
from forerun.bench.serving_client import Exchange, Reply, Target, read_reply
from forerun.bench.serving_interference import Interference, LongPrompts, measure_interference
from forerun.bench.serving_report import document, markdown
from forerun.errors import UsageError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MACHINE = {"cpu": "a processor", "threads": 2}
ABOUT = {"model": "m", "server": "s", "prompts": "p", "num_prompts": 3, "machine": MACHINE, "start_s": None}


def chunk(document) -> bytes:
    data = b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def text(content, finish=None):
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


WHOLE = [chunk(text("")), chunk(text("a")), chunk(text("b", "stop")), chunk({"choices": [], "usage": {"x": 1}})]
WHOLE += [chunk(b"[DONE]"), b"0\r\n\r\n"]


def reply_of(*parts, error=""):
    return read_reply(Exchange(0.0, [(float(at), part) for at, part in enumerate(parts, start=1)], 9.0, error))


class TestReading:
    def test_times_are_those_of_the_arrival(self):
        reply = reply_of(HEAD, *WHOLE)
        assert (reply.text, reply.chunk_s, reply.finish_reason, reply.error) == ("ab", [3.0, 4.0], "stop", "")
        assert reply.usage == {"x": 1}

    def test_what_comes_in_one_read_is_one_arrival(self):
        assert reply_of(HEAD + WHOLE[0], WHOLE[1] + WHOLE[2], *WHOLE[3:]).chunk_s == [2.0]

    @pytest.mark.parametrize("size", [1, 2, 7, 50])
    def test_cut_anywhere_it_says_the_same(self, size):
        raw = b"".join((HEAD, *WHOLE))
        reply = reply_of(*(raw[at : at + size] for at in range(0, len(raw), size)))
        assert (reply.text, reply.error) == ("ab", "")

    def test_without_frames(self):
        raw = [b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n']
        assert (reply_of(*raw).text, reply_of(*raw).chunk_s) == ("a", [2.0])

    @pytest.mark.parametrize(
        ("parts", "error"),
        [
            ((HEAD, *WHOLE[:2]), "the stream ended early"),
            ((b"HTTP/1.1 503 Busy\r\n\r\n{}",), "status 503"),
            ((), "no HTTP answer"),
            ((HEAD, chunk({"error": {"message": "broken"}})), "error event: broken"),
            ((HEAD, chunk(b"{nonsense")), "cannot be read"),
        ],
    )
    def test_what_is_not_whole_is_an_error(self, parts, error):
        assert error in reply_of(*parts).error


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://a:1/v1", "/v1/chat/completions"),
        ("http://a:1", "/v1/chat/completions"),
        ("a:1/x/v1/", "/x/v1/chat/completions"),
    ],
)
def test_base_urls(url, path):
    assert (Target.of(url).path, Target.of(url).port) == (path, 1)


def test_a_url_of_another_kind_is_refused():
    with pytest.raises(UsageError, match="no http URL"):
        Target.of("ftp://a/v1")


def test_prompts_are_shuffled_by_the_seed():
    def first(seed):
        queue = bodies(own_prompts(), ServingWish("m", seed=seed))
        return [next(queue)["messages"][0]["content"] for _ in range(5)]

    assert first(1) == first(1) != first(2)


def test_prompts_of_a_text_file(tmp_path):
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    assert [prompt.turns for prompt in text_lines(tmp_path / "p.txt").categories["text"]] == [("one",), ("two",)]


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.95, 10), (0.99, 10), (0.1, 1)])
def test_percentiles_are_ranks(share, value):
    assert percentile(range(10, 0, -1), share) == value
    assert percentile([], share) is None


def usage(tokens, cached=2):
    return {
        "prompt_tokens": 10,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"accepted_prediction_tokens": 9, "rejected_prediction_tokens": 1},
    }


class TestFigures:
    def run_of(self, *replies):
        return document([ServingRun("closed", 2, replies, 10.0, 0.1)], [], ServingWish("m", max_tpot_s=0.5), ABOUT)

    def test_definitions(self):
        fast = Reply(0.0, 2.0, [0.5, 1.0, 2.0], "abc", "stop", usage(7), speculation={"drafted": 6, "accepted": 5})
        slow = Reply(1.0, 5.0, [4.0, 5.0], "ab", "stop", usage(3), speculation={"drafted": 2, "accepted": 1})
        run = self.run_of(fast, slow)["runs"][0]
        assert run["tokens_per_s"] == 10 / 5
        assert run["ttft_s"]["p50"] == 0.5
        assert run["ttft_s"]["p95"] == 3.0
        assert run["tpot_s"]["p50"] == 1.5 / 6
        assert run["inter_token_s"]["p99"] == 1.0
        assert run["good_share"] == 0.5
        assert run["goodput_per_s"] == 1 / 5
        assert run["cached_share"] == 0.2
        assert run["acceptance"] == 0.75

    def test_failed_requests_count_for_nothing_but_failures(self):
        found = self.run_of(Reply(0.0, 1.0, [0.5, 1.0], "ab", "stop", usage(2)), Reply(0.0, 9.0, error="gone"))
        assert found["runs"][0]["output_tokens"] == 2
        assert found["runs"][0]["errors"] == {"gone": 1}
        assert not found["passed"]
        assert "no result" in markdown(found)

    def test_a_server_that_does_not_say_what_was_cached(self):
        run = self.run_of(Reply(0.0, 1.0, [0.5, 1.0], "ab", "stop"))["runs"][0]
        assert (run["cached_share"], run["acceptance"], run["output_tokens"]) == (None, None, 2)

    def test_prompts_from_the_cache_are_warned_about(self):
        for cached, is_much in ((5, False), (6, True)):
            reply = Reply(0.0, 1.0, [0.5, 1.0], "ab", "stop", usage(2, cached))
            assert ("from the cache" in markdown(self.run_of(reply))) == is_much

    def test_other_servers_have_no_acceptance(self):
        assert self.run_of(Reply(0.0, 1.0, [0.5, 1.0], "ab", "stop", usage(2)))["runs"][0]["acceptance"] is None

    def test_columns_have_units(self):
        head = markdown(self.run_of(Reply(0.0, 1.0, [0.5, 1.0], "ab", "stop", usage(2)))).splitlines()[2]
        assert {name.strip() for name in head.split("|") if "p95" in name and "(ms)" not in name} == set()

    def test_interference(self):
        one = Interference(4, 4000, (0.1,) * 20, (0.15,) * 20, 1.0, 2.0)
        assert one.ratio == pytest.approx(1.5)
        assert "1.50x" in markdown(document([], [one], ServingWish("m"), ABOUT))


class _Tiny(asyncio.Protocol):
    """A server that says two words."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        body = json.loads(data.partition(b"\r\n\r\n")[2])
        raw = [
            text("one "),
            text("two", "stop"),
            {"choices": [], "usage": usage(2) | {"prompt_tokens": len(str(body))}},
        ]
        self.transport.write(HEAD + b"".join(chunk(document) for document in raw) + chunk(b"[DONE]") + b"0\r\n\r\n")
        self.transport.close()


def test_long_prompts_begin_like_none_before():
    texts = [writer.next(200) for writer in (LongPrompts(0), LongPrompts(0)) for _ in range(2)]
    assert len({text[:40] for text in texts}) == 4
    assert {len(text) for text in texts} == {200}


def test_loops_and_interference_against_a_server():
    async def main():
        server = await asyncio.get_running_loop().create_server(_Tiny, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = Target.of(f"http://127.0.0.1:{port}")
        wish = ServingWish("m", clients=(1, 3), rates=(200.0,), requests=5, warmup=1)
        seen = []
        runs = await bench_serving(target, own_prompts(), wish, lambda done, total: seen.append((done, total)))
        found = await measure_interference(target, wish, 1, 40, repeats=1)
        server.close()
        return runs, found, seen

    runs, found, seen = asyncio.run(main())
    assert [(run.kind, run.load, len(run.replies)) for run in runs] == [
        ("closed", 1, 5),
        ("closed", 3, 6),
        ("open", 200.0, 5),
    ]
    assert {reply.error for run in runs for reply in run.replies} == {""}
    assert seen[-1] == (17, 17)
    assert found.streams == 1


class _Recording(_Tiny):
    """The same, as forerun answers or as another server; keeps what it was asked."""

    def __init__(self, is_forerun, bodies):
        self.is_forerun, self.bodies = is_forerun, bodies

    def data_received(self, data):
        self.bodies.append(json.loads(data.partition(b"\r\n\r\n")[2]))
        last = {"choices": [], "usage": usage(2)} | ({"speculation": {"drafted": 0}} if self.is_forerun else {})
        raw = [text("one "), text("two", "stop"), last]
        self.transport.write(HEAD + b"".join(chunk(document) for document in raw) + chunk(b"[DONE]") + b"0\r\n\r\n")
        self.transport.close()


@pytest.mark.parametrize("is_forerun", [True, False])
def test_runs_share_no_cache_where_the_server_is_forerun(is_forerun):
    bodies = []

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Recording(is_forerun, bodies), "127.0.0.1", 0)
        target = Target.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        wish = ServingWish("m", clients=(1, 2), rates=(200.0,), requests=4, warmup=1, drafter="off")
        await bench_serving(target, own_prompts(), wish, lambda *_: None)
        server.close()

    asyncio.run(main())
    salts = [body.get("cache_salt") for body in bodies[1:]]
    assert len(salts) == 12
    assert len(set(salts)) == (3 if is_forerun else 1)
    assert (None in salts) != is_forerun
    assert all(body["speculation"] == {"drafter": "off"} for body in bodies)


def test_a_server_that_is_not_there():
    target = Target.of("http://127.0.0.1:9")
    with pytest.raises(UsageError, match="does not answer as it should"):
        asyncio.run(bench_serving(target, own_prompts(), ServingWish("m"), lambda *_: None))


def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    from forerun.bench.serving_plot import write_serving_plots

    reply = Reply(0.0, 2.0, [0.5, 1.0, 2.0], "abc", "stop", usage(7))
    runs = [ServingRun(kind, load, (reply,), 2.0, 0.1) for kind in ("closed", "open") for load in (1, 4)]
    written = write_serving_plots(document(runs, [], ServingWish("m"), ABOUT), tmp_path)
    assert [path.name for path in written] == ["serving.png", "serving.svg"]
    assert all(path.stat().st_size > 1000 for path in written)
    assert write_serving_plots(document([], [], ServingWish("m"), ABOUT), tmp_path) == []
