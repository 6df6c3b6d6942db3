"""The process of a GrammarGuard: reads grammars, one JSON line each, and answers each with what is wrong with it.

The first line out says that it is ready. It ends when its input does, or by SIGPROF when a grammar takes too long: the
clock is that of its own processor time, so a busy machine refuses nothing that an idle one takes.
"""

import json
import resource
import signal
import sys

import llguidance

from forerun.grammar.matchers import new_matcher


class _Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main(memory_limit: int, time_limit_s: float) -> None:
    """Answer grammars until the input ends. memory_limit  bytes; time_limit_s  of a processor, for one grammar"""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=256, slices=[])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, time_limit_s)
        _, wrong = new_matcher(tokens, kind, text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
