"""The two arms of `bench speculation`: one loaded model, one engine that drafts and one that has no drafters at all.

Both stand on the same weights and the same KV memory, which is safe because only one of them has requests at a time and
neither keeps a prefix cache. So changing arms costs nothing, a pair is two runs one right after the other, and the
plain arm carries nothing of the other: no drafter to ask, no budget to consult, no rows reserved. What drafters have
allocated (KV layers, weights) stays in memory meanwhile.

Drafters are made anew for every cell and their files are copies, so that a cell knows no answer of another one.
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from forerun.bench.prompts import Prompt
from forerun.config import CacheConfig, SpeculationConfig
from forerun.engine import Engine
from forerun.llm import LLM, EngineOptions
from forerun.scheduler.scheduler import Scheduler
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.budget import FixedBudget
from forerun.speculation.speculator import DrafterStats, Speculator


@dataclass(frozen=True)
class Asked:
    """One request of a run: a prompt and how it is answered."""

    prompt: Prompt
    params: SamplingParams


@dataclass
class ArmRun:
    """What one run of an arm came to. Times are seconds.

    total_s     from the arrival of each wave's requests to the end of its last answer
    decode_s    the part from the moment when every prompt of the wave has its first token until the first answer ends,
                while all of them decode together: what a server does all the time
    draft_s     in the drafters, of total_s
    steps       steps that yielded tokens, summed over the sequences
    answers     tokens of every answer, in the order of the requests and turns
    drafted_at, accepted_at  drafts that reached a depth, and those accepted there: entry d is depth d + 1
    """

    total_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)
    hashes: list[tuple[bytes, ...]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Of decoding; of the whole run where every answer is a single token."""
        return self.decode_tokens / self.decode_s if self.decode_tokens else self.whole_tokens_per_s

    @property
    def whole_tokens_per_s(self) -> float:
        """All tokens over the whole time, prompts included."""
        return self.tokens / self.total_s

    def add(self, sequence: Sequence) -> None:
        """Count a finished sequence."""
        stats = sequence.stats
        self.tokens += sequence.num_output
        self.steps += stats.steps
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        add_counts(self.drafted_at, stats.drafted_at)
        add_counts(self.accepted_at, stats.accepted_at)
        self.answers.append(tuple(sequence.output))
        self.hashes.append(tuple(sequence.logits_hashes))


class Arms:
    """Both engines, ready to run. Restarts the model's engine with fresh drafters.

    Raises UsageError or UnsupportedModel when the drafters cannot draft for this model.
    """

    def __init__(self, llm: LLM, config: SpeculationConfig, options: EngineOptions) -> None:
        options = replace(options, prefix_caching=False)
        llm.reconfigure(speculation=config, options=options)
        self._llm = llm
        self.drafted = llm.engine
        self.plain = _without_drafters(llm)

    def run(self, engine: Engine, asked: Seq[Asked], batch: int) -> ArmRun:
        """Answer all requests on one of the two engines, in waves of `batch` that run together."""
        run = ArmRun()
        before = _draft_seconds(engine)
        for start in range(0, len(asked), batch):
            for requests in self._turns(asked[start : start + batch], run):
                self._time(engine, requests, run)
        run.draft_s = _draft_seconds(engine) - before
        return run

    def by_drafter(self) -> dict[str, DrafterStats]:
        """Totals of each drafter since the arms were made."""
        return self.drafted.speculator.stats.by_drafter

    def _turns(self, asked: Seq[Asked], run: ArmRun) -> Iterator[list[Request]]:
        """The requests of each turn; a later turn contains the answers that `run` has received."""
        messages: list[list[dict[str, str]]] = [[] for _ in asked]
        for turn in range(max(len(one.prompt.turns) for one in asked)):
            open_ones = [i for i, one in enumerate(asked) if turn < len(one.prompt.turns)]
            for i in open_ones:
                messages[i].append({"role": "user", "content": asked[i].prompt.turns[turn]})
            yield [self._request(asked[i], messages[i]) for i in open_ones]
            for i, answer in zip(open_ones, run.answers[-len(open_ones) :], strict=True):
                messages[i].append({"role": "assistant", "content": self._llm.tokenizer.decode(answer)})

    def _request(self, asked: Asked, messages: Seq[dict[str, str]]) -> Request:
        ids = prompt_ids(self._llm, messages)
        return Request(asked.prompt.id, tuple(ids), asked.params, eos_ids=self._llm.tokenizer.eos_ids)

    def _time(self, engine: Engine, requests: Seq[Request], run: ArmRun) -> None:
        start = time.perf_counter()
        sequences = [engine.add(request)[0] for request in requests]
        while any(sequence.num_output == 0 and not sequence.is_finished for sequence in sequences):
            engine.step()
        prefilled = time.perf_counter()
        before = sum(sequence.num_output for sequence in sequences)
        while engine.has_work and not any(sequence.is_finished for sequence in sequences):
            engine.step()
        run.decode_s += time.perf_counter() - prefilled
        run.decode_tokens += sum(sequence.num_output for sequence in sequences) - before
        while engine.has_work:
            engine.step()
        run.total_s += time.perf_counter() - start
        for sequence in sequences:
            run.add(sequence)


def prompt_ids(llm: LLM, messages: Seq[dict[str, str]]) -> list[int]:
    """Token ids of a conversation; of the bare text, turn below turn, where the model has no chat template."""
    if llm.has_chat_template:
        return llm.chat_prompt(messages)
    return llm.tokenizer.encode_prompt("\n\n".join(message["content"] for message in messages))


def add_counts(total: list[int], counts: Seq[int]) -> None:
    """Add `counts` to `total`, entry by entry; `total` grows where it is shorter."""
    total.extend([0] * (len(counts) - len(total)))
    for index, count in enumerate(counts):
        total[index] += count


def _draft_seconds(engine: Engine) -> float:
    return sum(stats.seconds for stats in engine.speculator.stats.by_drafter.values())


def _without_drafters(llm: LLM) -> Engine:
    """An engine as `speculation="off"` makes it, on the model and the KV memory of the one that is configured."""
    layout, vocab_size = llm.kv_layout, llm.model.spec.vocab_size
    cache = CacheConfig(layout.num_blocks, layout.block_size, layout.codecs, prefix_caching=False)
    budget = FixedBudget(SpeculationConfig("off", max_depth=1), llm.max_model_len)
    scheduler = Scheduler(llm.engine.scheduler.config, cache)
    return Engine(llm.backend, scheduler, Speculator((), budget, vocab_size), vocab_size)
