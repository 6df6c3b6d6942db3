"""`forerun chat`: a conversation with a model, line by line."""

import sys

from forerun.cli.console import stdout
from forerun.cli.drafting import Drafting
from forerun.cli.options import Display, ModelOptions, Sampling, SystemMessage, grouped
from forerun.cli.render import TextWriter


@grouped
def chat(
    model: ModelOptions,
    sampling: Sampling,
    drafting: Drafting,
    display: Display,
    system: SystemMessage = None,
) -> None:
    """Talk with a model: Ctrl-C stops an answer, /help lists commands. In a pipe each line is a message."""
    params = sampling.params()
    chosen = drafting.chosen

    from forerun.cli.conversation import Conversation
    from forerun.cli.load import engine_options, load_llm, model_name
    from forerun.cli.repl import Repl

    conversation = Conversation(load_llm(model, chosen), params, system)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    writer = TextWriter(stdout(), display.show_drafts)
    repl = Repl(
        conversation,
        writer,
        engine_options(model),
        interactive=interactive,
        quiet=display.quiet,
        speculation="auto" if chosen.drafter == "off" else chosen,
    )
    repl.run(model_name(model))
