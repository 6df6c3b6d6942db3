"""Repl: the loop of `forerun chat`: reads lines, runs /commands, shows answers.

On a terminal it prompts, edits lines and keeps them in a history; Ctrl-C ends an answer, and at the prompt leaves when
pressed twice. In a pipe it reads lines, prints answers only, and the first failure ends it.
"""

import contextlib
import json
import sys
from pathlib import Path

from forerun.cli.conversation import Conversation
from forerun.cli.render import TextWriter, draft_summary, failure, note, summary
from forerun.config import SpeculationConfig
from forerun.errors import ForerunError, UsageError
from forerun.llm import EngineOptions
from forerun.results import GenerationStats

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  # gives input() line editing and history

HELP = """\
/help                      this list
/reset                     forget the conversation; the system message stays
/system [TEXT]             set the system message, or remove it
/speculation on|off|NAME   draft tokens ahead of the model, or not; NAME is a drafter such as ngram
/stats                     how the last answer came about
/save FILE                 write the conversation to a JSON file
/exit                      leave (so does Ctrl-D)
//TEXT                     say /TEXT to the model"""


class Repl:
    """One session.

    options      the engine's, which changing the drafter needs again
    speculation  what "/speculation on" means
    """

    def __init__(
        self,
        conversation: Conversation,
        writer: TextWriter,
        options: EngineOptions,
        *,
        interactive: bool,
        quiet: bool = False,
        speculation: str | SpeculationConfig = "auto",
    ) -> None:
        self._conversation = conversation
        self._writer = writer
        self._options = options
        self._interactive = interactive
        self._quiet = quiet
        self._on: str | SpeculationConfig = speculation
        self._stats: GenerationStats | None = None
        self._saved: set[Path] = set()
        self._commands = {
            "help": lambda _: self._say(HELP),
            "reset": self._reset,
            "system": self._system,
            "speculation": self._speculation,
            "stats": self._show_stats,
            "save": self._save,
        }

    def run(self, model: str) -> None:
        """Talk until /exit, Ctrl-D or the end of the input."""
        if self._interactive and not self._quiet:
            self._say(f"{model}: /help for commands, Ctrl-C stops an answer, Ctrl-D leaves")
        while (line := self._read()) is not None:
            try:
                if not self._take(line.strip()):
                    return
            except ForerunError as error:
                if not self._interactive:
                    raise
                self._say(str(error))

    def _read(self) -> str | None:
        """The next line, None at the end."""
        if not self._interactive:
            try:
                return sys.stdin.readline() or None
            except UnicodeDecodeError as error:
                raise UsageError(f"standard input is not {error.encoding} text: pass text") from None
        for warning in ("Ctrl-C again or Ctrl-D leaves", ""):
            try:
                return input("> ")
            except EOFError:
                break
            except KeyboardInterrupt:
                print()
                if warning:
                    self._say(warning)
        return None

    def _take(self, line: str) -> bool:
        """Run a command or answer a message; False to leave."""
        if line.startswith("/") and not line.startswith("//"):
            name, _, argument = line[1:].partition(" ")
            if name in ("exit", "quit"):
                return False
            command = self._commands.get(name)
            if command is None:
                self._say(f"unknown command /{name}: /help lists them, and //{name} says /{name} to the model")
            else:
                command(argument.strip())
        elif line:
            self._reply(line[1:] if line.startswith("//") else line)
        return True

    def _reply(self, text: str) -> None:
        dropped = self._conversation.ask(text)
        if dropped and not self._quiet:
            self._say(f"the conversation outgrew the context: its oldest {dropped} messages are no longer seen")
        answer = self._conversation.answer(self._writer)
        if answer.choice is None:
            self._say("stopped")
            return
        self._stats = answer.choice.stats
        if (problem := failure(answer.choice)) is not None:
            raise ForerunError(f"the answer failed: {problem}")

    # ---- commands ----

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._say("the conversation is empty")

    def _system(self, text: str) -> None:
        self._conversation.system = text or None
        self._say("the system message is set" if text else "there is no system message of yours now")

    def _speculation(self, name: str) -> None:
        if not name:
            raise UsageError("say /speculation on, off, or the name of a drafter such as ngram")
        drafting = self._on if name == "on" else name
        self._conversation.llm.reconfigure(speculation=drafting, options=self._options)
        self._say(f"speculation is {name}; answers stay the same, and the next one reads the conversation anew")

    def _show_stats(self, _: str) -> None:
        llm = self._conversation.llm
        if self._stats is None:
            self._say("no answer yet")
        else:
            self._say(summary(self._stats))
            self._say(f"{self._stats.accepted} of {self._stats.drafted} draft tokens accepted")
            if drafts := draft_summary(llm.engine.speculator.stats.by_drafter):
                self._say(f"since the chat began or changed its drafter, {drafts}")
        self._say(f"the conversation has {self._conversation.num_prompt_tokens()} of {llm.max_model_len} tokens")

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("say /save FILE")
        path = Path(name).expanduser()
        if path.exists() and path not in self._saved:
            raise UsageError(f"{path} exists: choose another name")
        document = {"messages": self._conversation.messages()}
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ForerunError(f"{path} could not be written: {error.strerror}; choose another place") from error
        self._saved.add(path)
        self._say(f"saved to {path}")

    def _say(self, text: str) -> None:
        """What is no answer: to stderr, so that stdout holds answers only."""
        if self._interactive:
            print(text, file=sys.stderr)
        else:
            note(text)
