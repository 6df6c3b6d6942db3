"""SamplingParams, Request, Sequence: what a user asked for and how far it has come.

A Sequence is the only mutable record of a running generation. Its laws:
    tokens is append-only;  KV exists for tokens[:num_computed];  num_computed <= len(tokens) - 1 while it runs,
so there is always at least one pending token, whose row yields the next one.
"""

import operator
import reprlib
import sys
from array import array
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from forerun.errors import RequestError

MAX_COUNT = 2**31 - 1  # counts and token ids fit 32 bits, here and in native code
SEED_BITS = 128
MAX_PRIORITY = 1000


def _is_whole(value: object, low: int = 0, high: int = MAX_COUNT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]  # false for NaN too


def _show(value: object) -> str:
    """Short repr; Python refuses to print whole numbers of more than some thousand digits."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a number too long to print"


@dataclass(frozen=True)
class SpeculationParams:
    """How one request wants to be drafted for. It changes the speed, never the tokens.

    drafter    "off", or one of the engine's drafters alone; None: all that the engine has
    max_depth  longest draft, in tokens; None: the engine's

    Raises RequestError.
    """

    drafter: str | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if not (self.drafter is None or isinstance(self.drafter, str)):
            raise RequestError(f"speculation.drafter must be a name, got {_show(self.drafter)}", param="speculation")
        if not (self.max_depth is None or _is_whole(self.max_depth, 1, 63)):
            got = _show(self.max_depth)
            raise RequestError(f"speculation.max_depth must be between 1 and 63, got {got}", param="speculation")


@dataclass(frozen=True)
class SamplingParams:
    """How one request draws its tokens. Validated on construction.

    Values are applied in this order to a row of logits: repetition penalty, frequency and presence penalty, logit bias,
    min_tokens (stop ids forbidden), temperature, top-k, top-p, min-p, noise. The default is greedy.

    Raises RequestError naming the option that is out of range.
    """

    max_tokens: int | None = 128  # None: until the context is full
    min_tokens: int = 0
    temperature: float = 0.0  # 0 is greedy: the largest logit, the lowest id among equals
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    frequency_penalty: float = 0.0  # over output
    presence_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: no logprobs; N: also the N most likely tokens
    prompt_logprobs: int | None = None  # the same for the prompt's tokens: no cached prefix is used for it
    n: int = 1
    seed: int | None = None  # None: a random one, returned with the result
    speculation: SpeculationParams = SpeculationParams()
    logits_hash: bool = False  # keep a hash of the fp32 logits behind every token (for `forerun verify`)

    def __post_init__(self) -> None:
        def check(ok: bool, param: str, want: str) -> None:
            if not ok:
                raise RequestError(f"{param} must be {want}, got {_show(getattr(self, param))}", param=param)

        def number(param: str, low: float, high: float, want: str) -> None:
            value = getattr(self, param)
            check(_is_finite(value) and low <= value <= high, param, want)

        def listed(param: str, want: str) -> None:
            try:
                object.__setattr__(self, param, tuple(getattr(self, param)))
            except TypeError:
                check(False, param, want)

        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        listed("stop", "a list of non-empty strings")
        listed("stop_token_ids", "a list of token ids")
        check(self.max_tokens is None or _is_whole(self.max_tokens, 1), "max_tokens", "a whole number of at least 1")
        check(_is_whole(self.min_tokens), "min_tokens", "a whole number of at least 0")
        check(self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens")
        number("temperature", 0.0, 100.0, "between 0 and 100")
        check(_is_whole(self.top_k), "top_k", "a whole number of at least 0 (0 is off)")
        number("top_p", sys.float_info.min, 1.0, "above 0 and at most 1")
        number("min_p", 0.0, 1.0, "between 0 and 1")
        number("repetition_penalty", sys.float_info.min, 100.0, "above 0 and at most 100")
        number("frequency_penalty", -100.0, 100.0, "between -100 and 100")
        number("presence_penalty", -100.0, 100.0, "between -100 and 100")
        check(all(isinstance(s, str) and s for s in self.stop), "stop", "a list of non-empty strings")
        check(len(self.stop) <= 64, "stop", "at most 64 strings")
        check(all(_is_whole(t) for t in self.stop_token_ids), "stop_token_ids", "a list of token ids")
        check(isinstance(self.logit_bias, Mapping), "logit_bias", "a map from token ids to finite numbers")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller's map may change later
        check(
            all(_is_whole(t) and _is_finite(b) for t, b in self.logit_bias.items()),
            "logit_bias",
            "a map from token ids to finite numbers",
        )
        check(isinstance(self.ignore_eos, bool), "ignore_eos", "true or false")
        for param in ("logprobs", "prompt_logprobs"):
            count = getattr(self, param)
            check(count is None or _is_whole(count, 0, 1000), param, "between 0 and 1000")
        check(_is_whole(self.n, 1, 128), "n", "between 1 and 128")
        limit = 1 << SEED_BITS
        check(self.seed is None or _is_whole(self.seed, -limit, limit), "seed", f"a whole number below 2^{SEED_BITS}")
        check(isinstance(self.speculation, SpeculationParams), "speculation", "SpeculationParams")
        check(isinstance(self.logits_hash, bool), "logits_hash", "true or false")

    @property
    def has_penalties(self) -> bool:
        """True when drawing needs to know which tokens came before."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence id, stop id or stop string
    LENGTH = "length"  # max_tokens or the context
    ABORTED = "aborted"  # the caller left
    NUMERICAL_ERROR = "numerical_error"  # NaN in a drawn row
    ERROR = "error"  # the step failed twice for this sequence, or its stop matcher failed


class StopMatcher(Protocol):
    """Finds stop strings across token borders; made by `text/detokenizer`, fed one token at a time by commit."""

    def push(self, token: int, may_stop: bool) -> bool:
        """Take one more output token; True when a stop string is complete. While `may_stop` is False (min_tokens) stop
        strings that complete are ordinary text."""
        ...


class TokenMask(Protocol):
    """Says which tokens may come next: a grammar's matcher. Fed one token at a time by commit."""

    def allowed(self) -> Any:  # this module is imported by `forerun --help`, which does not wait for numpy
        """[ceil(V / 32)] uint32 array: bit t % 32 of word t // 32 is set when token t may come next. Read at once, so
        the array may be used again."""
        ...

    def advance(self, token: int) -> None:
        """Take one more output token, an allowed one. The token that ends the sequence is not passed."""
        ...

    def fork(self) -> "TokenMask":
        """An independent copy, to look ahead along a draft."""
        ...


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one emitted token under the unprocessed distribution, and the most likely alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Request:
    """One prompt with its options; `n` choices become n sequences.

    Raises RequestError when the prompt is not a list of whole numbers or the priority is out of range.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    eos_ids: tuple[int, ...] = ()
    salt: str = ""  # separates tenants in the prefix index
    priority: int = 0  # lower goes first; see scheduler/queue
    make_stop_matcher: Callable[[], StopMatcher] | None = None  # required when params.stop is not empty
    make_token_mask: Callable[[], TokenMask] | None = None  # one for each choice, standing behind the prompt
    prediction: tuple[int, ...] = ()  # what the output may turn out to be, for the drafter of that name

    def __post_init__(self) -> None:
        try:
            ids = tuple(operator.index(token) for token in self.prompt)  # any integer type, stored as int
        except TypeError as error:
            raise RequestError("the prompt must be a list of whole numbers, the token ids", param="prompt") from error
        object.__setattr__(self, "prompt", ids)
        if not (isinstance(self.priority, int) and abs(self.priority) <= MAX_PRIORITY):
            raise RequestError(
                f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {_show(self.priority)}",
                param="priority",
            )


@dataclass
class SequenceStats:
    """Counts of one sequence; times are seconds on time.perf_counter's clock."""

    steps: int = 0  # steps that yielded at least one token
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)  # [depth - 1] drafts that reached this depth
    accepted_at: list[int] = field(default_factory=list)  # [depth - 1] of those, accepted
    accepted_by: dict[str, int] = field(default_factory=dict)  # drafter -> accepted tokens
    verified_by: dict[str, int] = field(
        default_factory=dict
    )  # drafter -> its nodes that were verified, accepted or not
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    arrived_s: float = 0.0
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(eq=False)
class Sequence:
    """One running choice of a request."""

    id: int
    request: Request
    choice: int
    seed: int  # given or drawn, so that a result can be repeated
    key: tuple[int, int]  # two 32-bit words: H(seed, choice), see sampling/noise
    tokens: list[int]
    num_prompt: int
    num_computed: int = 0
    block_ids: MutableSequence[int] = field(default_factory=lambda: array("i"))  # a step copies it: an array is fast
    block_digests: list[bytes] = field(default_factory=list)  # prefix digests of its leading full blocks
    prefix_digests: list[bytes] = field(default_factory=list)  # those computed so far of its tokens, with KV or without
    is_lossy: bool = False  # its drafts are verified by a rule that changes what is said
    fork_of: "Sequence | None" = None  # choice 0 of the same request, whose prompt this one shares
    seen_by: dict[str, int] = field(default_factory=dict)  # stack or drafter name -> tokens it has computed
    finish: FinishReason | None = None
    error: str = ""  # one line, set with FinishReason.ERROR
    stop_matcher: StopMatcher | None = None
    token_mask: TokenMask | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of the prompt's second token and those behind
    logits_hashes: list[bytes] = field(default_factory=list)
    drafted_by: list[str] = field(default_factory=list)  # per output token: whose draft it was, "" for the target's own
    stats: SequenceStats = field(default_factory=SequenceStats)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def output(self) -> list[int]:
        """Generated tokens so far."""
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet computed."""
        return len(self.tokens) - self.num_computed

    def truncate(self, num_tokens: int) -> None:
        """Drop what an append that failed left behind `num_tokens` tokens. The one exception from append-only: nobody
        has seen them."""
        del self.tokens[num_tokens:]
        for record in (self.logprobs, self.logits_hashes, self.drafted_by):
            del record[self.num_output :]

    @property
    def is_guided(self) -> bool:
        """True when the request itself says something of what will come: drafts cost next to nothing then."""
        return self.token_mask is not None or bool(self.request.prediction)

    @property
    def is_finished(self) -> bool:
        return self.finish is not None
