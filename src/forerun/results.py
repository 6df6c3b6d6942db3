"""What a caller gets: generations, their choices, and the statistics of each. Light, for commands import it."""

from dataclasses import dataclass

from forerun.sequence import FinishReason, Sequence, TokenLogprob


@dataclass(frozen=True)
class GenerationStats:
    """How one choice came about. Times are in seconds.

    steps                   steps that yielded tokens; num_tokens / steps is the mean accepted length
    drafted, accepted       draft nodes verified, and those that became output
    drafted_at, accepted_at the same by depth: entry d counts drafts that reached depth d + 1
    accepted_by, verified_by  the same by drafter
    cached_prompt_tokens    prompt tokens whose KV came from the prefix cache
    time_to_first_token_s   from the request's arrival to its first token, waiting included
    time_per_token_s        between the first and the last token, per token after the first
    lossy                   verification was allowed to change what the model says
    """

    num_prompt_tokens: int
    num_tokens: int
    steps: int
    drafted: int
    accepted: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    accepted_by: dict[str, int]
    verified_by: dict[str, int]
    cached_prompt_tokens: int
    preemptions: int
    time_to_first_token_s: float
    time_per_token_s: float
    total_s: float
    lossy: bool = False

    @property
    def mean_accepted_len(self) -> float:
        """Tokens per step: 1.0 without accepted drafts."""
        return self.num_tokens / self.steps if self.steps else 0.0

    @classmethod
    def of(cls, sequence: Sequence) -> "GenerationStats":
        """Statistics of a finished sequence."""
        stats = sequence.stats
        end = stats.finished_s if stats.finished_s is not None else stats.arrived_s
        first = stats.first_token_s if stats.first_token_s is not None else end
        return cls(
            num_prompt_tokens=sequence.num_prompt,
            num_tokens=sequence.num_output,
            steps=stats.steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            drafted_at=tuple(stats.drafted_at),
            accepted_at=tuple(stats.accepted_at),
            accepted_by=dict(stats.accepted_by),
            verified_by=dict(stats.verified_by),
            cached_prompt_tokens=stats.cached_prompt_tokens,
            preemptions=stats.preemptions,
            time_to_first_token_s=first - stats.arrived_s,
            time_per_token_s=(end - first) / max(1, sequence.num_output - 1),
            total_s=end - stats.arrived_s,
            lossy=sequence.is_lossy,
        )


@dataclass(frozen=True)
class Choice:
    """One generated continuation. `text` ends before a stop string; `token_ids` include the token that ended it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int  # repeats this generation when given as SamplingParams.seed, under coupled verification
    stats: GenerationStats
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # of the prompt, from its second token on
    logits_hashes: tuple[bytes, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt; the properties are those of the first choice."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.choices[0].logprobs

    @property
    def stats(self) -> GenerationStats:
        return self.choices[0].stats


@dataclass(frozen=True)
class StreamChunk:
    """What one step added to a streamed generation.

    pieces  (text, came from a draft) per token, in order; a token whose text is not final yet has an empty piece and
            its text comes with a later one
    choice  the whole result, in the last chunk only
    """

    pieces: tuple[tuple[str, bool], ...]
    token_ids: tuple[int, ...]
    choice: Choice | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)
