"""`forerun chat`: lines from a pipe, commands, a context that fills up, and a terminal with Ctrl-C."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from forerun.cli.conversation import Conversation
from forerun.errors import RequestError
from forerun.llm import LLM
from forerun.sequence import SamplingParams
from tests.cli.conftest import Cli, Ran


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), max_model_len=256)


@pytest.fixture
def talk(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it with lines (and options): runs chat with these as standard input."""

    def run(*lines: str, options: tuple[str, ...] = ("--max-tokens", "6")) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("chat", "--model", str(tiny_model), *options)

    return run


class TestPipe:
    def test_each_line_is_a_message_and_answers_are_all_of_stdout(self, talk: Any) -> None:
        ran = talk("Hello there", "", "And again")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.endswith("\n")
        alone = talk("Hello there")
        assert ran.out.startswith(alone.out)
        assert len(ran.out) > len(alone.out)

    def test_exit_leaves(self, talk: Any) -> None:
        assert talk("/exit", "Hello").out == ""
        assert talk("/quit", "Hello").out == ""

    def test_commands_print_on_stderr(self, talk: Any) -> None:
        ran = talk("/help", "/stats", "/nonsense x")
        assert (ran.code, ran.out) == (0, "")
        assert "/speculation on|off|NAME" in ran.err
        assert "no answer yet" in ran.err
        assert "unknown command /nonsense: /help lists them, and //nonsense says /nonsense to the model" in ran.err

    def test_stats_tell_of_the_last_answer_and_the_cache(self, talk: Any) -> None:
        ran = talk("Hello there, how are you today?", "/stats", "Fine", "/stats")
        first, second = (line for line in ran.err.splitlines() if "accepted length" in line)
        assert "from the cache" not in first
        assert "from the cache" in second
        assert "draft tokens accepted" in ran.err
        assert "of 1024 tokens" in ran.err

    def test_save_writes_what_was_said(self, talk: Any, tmp_path: Path) -> None:
        file = tmp_path / "said.json"
        ran = talk("/system Be brief.", "Hello", f"/save {file}", "//stats", f"/save {file}")
        assert ran.code == 0
        messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
        assert [messages[i]["content"] for i in (0, 1, 3)] == ["Be brief.", "Hello", "/stats"]
        assert ran.out.startswith(messages[2]["content"])

    def test_save_overwrites_nothing_and_leaves_nothing_half_written(self, talk: Any, tmp_path: Path) -> None:
        file = tmp_path / "precious"
        file.write_text("mine")
        assert "choose another name" in talk(f"/save {file}").err
        assert file.read_text() == "mine"
        ran = talk(f"/save {tmp_path / 'absent' / 'said.json'}")
        assert (ran.code, "could not be written" in ran.err) == (1, True)
        assert list(tmp_path.rglob("*.part")) == []

    def test_reset_forgets(self, talk: Any) -> None:
        alone = talk("Hello there").out
        assert talk("Something else", "/reset", "Hello there").out.endswith(alone)

    def test_speculation_is_switched_and_changes_no_answer(self, talk: Any) -> None:
        options = ("--max-tokens", "40")
        plain = talk("Hello", "And again", options=options)
        for name in ("off", "on", "ngram"):
            switched = talk("Hello", f"/speculation {name}", "And again", "/stats", options=options)
            assert switched.out == plain.out
            assert ("0 of 0 draft tokens" in switched.err) is (name == "off")
        refused = talk("/speculation oracle")
        assert (refused.code, "unknown drafter 'oracle'" in refused.err) == (2, True)

    def test_a_full_context_is_told(self, talk: Any) -> None:
        lines, options = [f"Message number {n}" for n in range(6)], ("--max-tokens", "10", "--max-model-len", "128")
        ran = talk(*lines, options=options)
        assert ran.code == 0
        assert "the conversation outgrew the context: its oldest 2 messages are no longer seen" in ran.err
        assert talk(*lines, options=(*options, "--quiet")).err == ""

    def test_a_message_that_cannot_fit_is_refused_with_the_numbers(self, talk: Any) -> None:
        ran = talk("word " * 3000, "Hello")
        assert (ran.code, ran.out) == (2, "")
        assert "tokens but the context holds 1024" in ran.err

    def test_a_model_without_template_cannot_chat(self, cli: Cli, tiny_model_without_template: Path) -> None:
        ran = cli("chat", "--model", str(tiny_model_without_template))
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "no chat template" in ran.err


class TestConversation:
    PARAMS = SamplingParams(max_tokens=20)

    def test_the_oldest_turns_leave_when_the_context_is_full(self, llm: LLM) -> None:
        conversation = Conversation(llm, self.PARAMS, system="Be brief.")
        dropped = []
        for number in range(12):
            dropped.append(conversation.ask(f"Message number {number}"))
            assert conversation.num_prompt_tokens() + 20 <= llm.max_model_len
            assert len(conversation.answer().token_ids) <= 20
        assert sum(dropped) > 0
        assert dropped.count(0) > 6  # several turns leave at once, so that the next prompts begin alike
        assert all(count % 2 == 0 for count in dropped)
        assert len(conversation.messages()) == 1 + 24

    def test_what_left_is_not_seen_and_the_system_message_stays(self, llm: LLM) -> None:
        conversation = Conversation(llm, self.PARAMS, system="Be brief.")
        while conversation.ask("Tell me more of this") == 0:
            conversation.answer()
        shown = llm.tokenizer.decode(llm.chat_prompt(conversation._messages()))
        assert "Be brief." in shown
        assert shown.count("Tell me more of this") < len(conversation.turns) // 2

    def test_a_refused_message_leaves_no_trace(self, llm: LLM) -> None:
        conversation = Conversation(llm, self.PARAMS)
        conversation.ask("Hello")
        conversation.answer()
        turns = list(conversation.turns)
        assert conversation.ask("word " * 2000) == 2
        with pytest.raises(RequestError, match="the context holds 256"):
            conversation.answer()
        assert (conversation.turns, conversation.first) == (turns, 0)
        assert conversation.ask("Hello again") == 0


class TestTerminal:
    @pytest.fixture
    def terminal(self, tiny_model: Path) -> Iterator[Any]:
        """A chat on a pseudo-terminal, at its first prompt; each chunk of its answers takes 20 ms."""
        code = (
            "import sys, time\n"
            "from forerun.cli.main import main\n"
            "from forerun.engine import Engine\n"
            "step = Engine.step\n"
            "Engine.step = lambda self: (time.sleep(0.02), step(self))[1]\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        options = ["--model", str(tiny_model), "--ignore-eos", "--max-tokens", "400", "--logit-bias", "68=1000"]
        child = pexpect.spawn(
            sys.executable,
            ["-c", code, "chat", *options, "--speculation", "off"],
            env={**os.environ, "TERM": "dumb"},
            encoding="utf-8",
            timeout=20,
            echo=False,
        )
        child.expect("/help for commands")
        child.expect("> ")
        yield child
        child.close(force=True)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self, terminal: Any, tmp_path: Path) -> None:
        terminal.sendline("Hello")
        terminal.expect("b" * 5)  # token 68
        terminal.sendintr()
        terminal.expect("stopped")
        terminal.expect("> ")
        file = tmp_path / "said.json"
        terminal.sendline(f"/save {file}")
        terminal.expect("saved to")
        _, reply = json.loads(file.read_text(encoding="utf-8"))["messages"]
        assert reply["role"] == "assistant"
        assert 5 <= len(reply["content"]) < 400
        terminal.expect("> ")
        terminal.sendline("/exit")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0

    def test_ctrl_c_twice_at_the_prompt_leaves(self, terminal: Any) -> None:
        terminal.sendintr()
        terminal.expect("again or Ctrl-D leaves")
        terminal.expect("> ")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0

    def test_an_error_is_told_and_the_chat_goes_on_until_ctrl_d(self, terminal: Any) -> None:
        terminal.sendline("/speculation oracle")
        terminal.expect("unknown drafter 'oracle'")
        terminal.expect("> ")
        terminal.sendintr()
        terminal.expect("again or Ctrl-D leaves")
        terminal.expect("> ")
        terminal.sendline("/stats")
        terminal.expect("no answer yet")
        terminal.expect("> ")
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
