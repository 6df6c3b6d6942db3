"""LLM: the offline API. Load a model, generate, chat, stream.

    llm = LLM("smollm2-135m")
    print(llm.generate(["The capital of France is"], SamplingParams(max_tokens=16))[0].text)
    print(llm.chat([{"role": "user", "content": "A person?"}], grammar=Grammar.json_schema(schema)).text)
    for chunk in llm.stream("Once upon a time"):
        print(chunk.text, end="")

One thread at a time may use an LLM.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from forerun.backends.base import Backend, Limits, LoadedModel, Progress
from forerun.cache.layout import KvLayout, KvStack
from forerun.cache.plan import DEFAULT_MODEL_LEN, KvWish, plan_kv
from forerun.config import CacheConfig, SchedulerConfig, SpeculationConfig
from forerun.drafter_check import check_drafters
from forerun.engine import Engine
from forerun.errors import CapacityError, UsageError
from forerun.generation import Prompt, choice_of, drafters_of_pieces, live_text, make_request, predicting, under_grammar
from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.source import Grammar
from forerun.machine import available_memory
from forerun.models.aliases import cache_folder
from forerun.models.hub import resolve
from forerun.models.kv import kv_stack
from forerun.models.registry import ModelFiles, open_model
from forerun.models.weights import trim_vocabulary
from forerun.opening import load_tokenizer, open_backend, open_for_drafting
from forerun.options import EngineOptions
from forerun.profile import process_profile
from forerun.results import Generation, StreamChunk
from forerun.scheduler.scheduler import Scheduler
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.budget import Budget
from forerun.speculation.drafter import Drafter
from forerun.speculation.host import DraftHost, OpenedModel
from forerun.speculation.setup import (
    KnownCost,
    load_drafters,
    make_budget,
    make_drafters,
    make_guides,
    open_cost,
    plan_captures,
    plan_stacks,
)
from forerun.speculation.speculator import Speculator
from forerun.speculation.verification.verifier import make_verifier
from forerun.text.chat import ChatTemplate

DEFAULT_MODEL = "smollm2-135m"
OBJECT_DEPTH = 15  # longest draft of a drafter that is passed as an object

Message = Mapping[str, Any]
_Guide = tuple[Grammar | None, Prompt]  # grammar and prediction of a request

__all__ = ["DEFAULT_MODEL", "LLM", "EngineOptions"]


class LLM:
    """A loaded model with its engine.

    model           path, alias or hub id
    speculation     "auto", "off" or None, a drafter's name, or a SpeculationConfig
    threads         compute threads; None: as many as this process may use
    kv_cache_bytes  size of the KV cache; None: room for four sequences of full length, at most half of the free memory
    max_model_len   longest prompt plus output in tokens; None: the model's own, at most 8192

    Raises UsageError, ModelNotFound, ModelFileError, UnsupportedModel, DownloadError or CapacityError.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        speculation: str | SpeculationConfig | None = "auto",
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
        max_model_len: int | None = None,
        options: EngineOptions | None = None,
        progress: Callable[[str], Progress] | None = None,
    ) -> None:
        options = options or EngineOptions()
        config, drafters = _drafting(speculation)
        self._profile = options.profile or process_profile()
        self._backend = open_backend(options, threads, self._profile)
        self._threads, self._kv_format = threads, options.kv_format
        self._cost: KnownCost | None = None
        report = progress or (lambda _title: _no_progress)
        path = resolve(model, progress=report("Downloading"))
        self.files: ModelFiles = open_model(path)
        self.tokenizer = load_tokenizer(self.files)
        self.grammars = GrammarCompiler(self.tokenizer)
        self.model = trim_vocabulary(LoadedModel(self.files.spec, self.files.weights), self.tokenizer.vocab_size)
        self._opened = OpenedModel(str(path), self.model, self.tokenizer)
        self._wish = KvWish(kv_cache_bytes, max_model_len, options.block_size)
        self._load(options, config, drafters, report)
        self._configure(config, drafters, options)
        if options.check_drafters:
            check_drafters(self)

    # ---- what it is ----

    @property
    def numerics_id(self) -> str:
        """Everything that the bits of the logits depend on, see docs/design.md."""
        return self._backend.numerics_id

    @property
    def backend(self) -> Backend:
        return self._backend

    @property
    def opened(self) -> OpenedModel:
        """The model and its tokenizer, as drafters see them."""
        return self._opened

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template. Raises UsageError when it has none."""
        if self._template is None:
            raise UsageError("this model has no chat template: use generate, which continues text as it is")
        return self._template

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    # ---- generating ----

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        params: SamplingParams | None = None,
        *,
        salt: str = "",
        grammar: Grammar | None = None,
        prediction: Prompt = "",
    ) -> list[Generation]:
        """Continue each prompt (text or token ids); all of them run together, results in the order of the prompts.

        grammar     what every continuation must be
        prediction  what a continuation may turn out to be, such as the file that is to be edited: drafts, which change
                    the speed and no token

        Raises RequestError when a prompt or an option cannot be honoured; then nothing was generated.
        """
        many = [prompts] if _is_one_prompt(prompts) else list(prompts)
        guide = (grammar, prediction)
        requests = [self._request(index, prompt, params, salt, guide) for index, prompt in enumerate(many)]  # type: ignore[arg-type]
        added: list[list[Sequence]] = []
        try:
            for request in requests:
                added += [self.engine.add(request)]
            while self.engine.has_work:
                self.engine.step()
        finally:
            self._abort(sequence for sequences in added for sequence in sequences)
        return [_generation(sequences) for sequences in added]

    def chat(
        self,
        messages: Seq[Message],
        params: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
        prediction: Prompt = "",
    ) -> Generation:
        """Answer a conversation: messages are {"role": ..., "content": ...}. The rest is as in `generate`."""
        return self.generate([self.chat_prompt(messages)], params, grammar=grammar, prediction=prediction)[0]

    def stream(
        self,
        prompt: Prompt | Seq[Message],
        params: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
        prediction: Prompt = "",
    ) -> Iterator[StreamChunk]:
        """Continue one prompt, or answer one conversation, yielding what each step adds: nothing while a long prompt is
        computed, so that the caller can stop at any step.

        Closing the iterator ends the generation and frees its KV at once. Options with n > 1 are refused.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise UsageError("stream yields one choice: use generate for n > 1")
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            prompt = self.chat_prompt(prompt)  # type: ignore[arg-type]
        return self._stream(self._request(0, prompt, params, "", (grammar, prediction)))  # type: ignore[arg-type]

    def chat_prompt(self, messages: Seq[Message]) -> list[int]:
        """Token ids of a conversation, ready for the model's answer."""
        return self.tokenizer.encode_prompt(self.chat_template.render(messages))

    def _stream(self, request: Request) -> Iterator[StreamChunk]:
        sequence = self.engine.add(request)[0]
        text = live_text(sequence)
        sent_pieces = sent_tokens = 0
        try:
            while not sequence.is_finished:
                self.engine.step()
                if sequence.is_finished:
                    text.finish()
                sources = drafters_of_pieces(sequence)[sent_pieces:]
                pieces = tuple(zip(text.pieces[sent_pieces:], map(bool, sources), strict=True))
                tokens = tuple(sequence.output[sent_tokens:])
                sent_pieces, sent_tokens = len(text.pieces), sequence.num_output
                yield StreamChunk(pieces, tokens, choice_of(sequence) if sequence.is_finished else None)
        finally:
            self._abort([sequence])

    # ---- construction ----

    def _load(
        self,
        options: EngineOptions,
        config: SpeculationConfig,
        drafters: Seq[Drafter],
        report: Callable[[str], Progress],
    ) -> None:
        spec = self.model.spec
        stacks = (kv_stack("target", spec, self._kv_format), *self._draft_stacks(config, drafters, options))
        plan_kv(self._wish, stacks, spec.max_context, None)  # impossible wishes are refused before weights are loaded
        longest = self._wish.max_model_len or min(spec.max_context, DEFAULT_MODEL_LEN)
        self._limits = Limits(options.max_rows, options.max_outputs, longest)
        host = self._host(config, options, None)
        self._captures = plan_captures(drafters, host)
        self._backend.load(self.model, self._limits, report("Loading"), self._captures)
        self._allocate(stacks, drafters, host)

    def _allocate(self, stacks: tuple[KvStack, ...], drafters: Seq[Drafter], host: DraftHost) -> None:
        """Load drafters, and cut the KV memory from what they leave, in place of what there was."""
        smallest = KvLayout(1, self._wish.block_size, stacks)
        self._backend.allocate_kv(smallest)
        try:
            load_drafters(drafters, replace(host, layout=smallest))
        finally:  # where one fails, the engine goes on without it
            self._allocate_planned(stacks)

    def _allocate_planned(self, stacks: tuple[KvStack, ...]) -> None:
        layout, length = plan_kv(self._wish, stacks, self.model.spec.max_context, available_memory())
        try:
            self._backend.allocate_kv(layout)
        except MemoryError as error:
            raise CapacityError(
                f"{layout.total_bytes / 1e9:.2f} GB for the KV cache could not be allocated: lower kv_cache_bytes"
            ) from error
        self.kv_layout, self.max_model_len = layout, length

    def _draft_stacks(
        self, config: SpeculationConfig, drafters: Seq[Drafter], options: EngineOptions
    ) -> tuple[KvStack, ...]:
        """KV layers that drafters want beside the target's."""
        host = self._host(config, options, None)
        return tuple(stack for own in plan_stacks(drafters, host) for stack in own)

    def _host(self, config: SpeculationConfig, options: EngineOptions, layout: KvLayout | None) -> DraftHost:
        return DraftHost(
            target=self._opened,
            backend=self._backend,
            open_model=open_for_drafting,
            kv_format=self._kv_format,
            layout=layout,
            max_model_len=self._wish.max_model_len or min(self.model.spec.max_context, DEFAULT_MODEL_LEN),
            max_num_seqs=options.max_num_seqs,
            max_rows=config.max_draft_rows,
            verification=config.verification,
            cache_folder=options.drafter_files or cache_folder() / "drafters",
        )

    def _configure(
        self,
        config: SpeculationConfig,
        drafters: Seq[Drafter],
        options: EngineOptions,
        kv_blocks: int | None = None,
    ) -> None:
        layout = self.kv_layout
        host = self._host(config, options, layout)
        scheduler = Scheduler(
            SchedulerConfig(
                max_rows=options.max_rows,
                max_outputs=options.max_outputs,
                max_num_seqs=options.max_num_seqs,
                max_model_len=self.max_model_len,
                max_chunk=options.max_chunk,
                prefill_slowdown=options.prefill_slowdown,
            ),
            CacheConfig(kv_blocks or layout.num_blocks, layout.block_size, layout.codecs, options.prefix_caching),
        )
        vocab_size = self.model.spec.vocab_size
        guides = make_guides(drafters) if config.verification == "coupled" else []
        self.engine = Engine(
            self._backend,
            scheduler,
            Speculator(drafters, self._budget(config, drafters, options, host), vocab_size, guides),
            vocab_size,
            self._profile,
            make_verifier(config.verification),
        )
        template = self.tokenizer.chat_template
        self._template = ChatTemplate(template, self.tokenizer) if template else None

    def _budget(
        self, config: SpeculationConfig, drafters: Seq[Drafter], options: EngineOptions, host: DraftHost
    ) -> Budget:
        """A budget that goes on learning from what the engine before it knew."""
        learns = bool(drafters) and config.budget == "auto"
        if learns and self._cost is None:
            probes = 0 if self._profile else min(options.max_rows, options.max_outputs, self.max_model_len)
            self._cost = open_cost(host, self._threads, probes)
        return make_budget(config, host, self.max_model_len, self._cost if learns else None)

    def reconfigure(
        self,
        *,
        speculation: str | SpeculationConfig | Drafter | None = "auto",
        options: EngineOptions | None = None,
        kv_blocks: int | None = None,
    ) -> None:
        """Restart the engine with other settings and an empty cache, keeping weights and KV memory.

        Of `options` those apply that need no other weights or memory: prefix_caching, max_num_seqs, max_chunk,
        prefill_slowdown, and max_rows and max_outputs up to what the model was loaded with. A Drafter is used as it is.
        `kv_blocks` limits the engine to so many blocks of the KV memory. Raises UsageError while requests are running.
        """
        if self.engine.has_work:
            raise UsageError("the engine has unfinished requests: finish or close them first")
        options = options or EngineOptions()
        config, drafters = _drafting(speculation)
        stacks = (kv_stack("target", self.model.spec, self._kv_format), *self._draft_stacks(config, drafters, options))
        host = self._host(config, options, None)
        captures = plan_captures(drafters, host)
        if captures != self._captures:
            self._backend.load(self.model, self._limits, captures=captures)
            self._captures = captures
        if stacks != self.kv_layout.stacks:
            self._configure(SpeculationConfig("off"), [], options)  # the drafters that were leave their memory
            try:
                self._allocate(stacks, drafters, host)
            finally:  # no engine may remember prefixes that were in the old memory
                self._configure(SpeculationConfig("off"), [], options)
        else:
            load_drafters(drafters, replace(host, layout=self.kv_layout))
        if kv_blocks is not None and not 1 <= kv_blocks <= self.kv_layout.num_blocks:
            raise UsageError(f"kv_blocks must be between 1 and {self.kv_layout.num_blocks}, got {kv_blocks}")
        self._configure(config, drafters, options, kv_blocks)

    # ---- requests ----

    def _request(
        self, index: int, prompt: Prompt, params: SamplingParams | None, salt: str, guide: _Guide = (None, "")
    ) -> Request:
        request = make_request(self.tokenizer, prompt, params or SamplingParams(), id=str(index), salt=salt)
        grammar, predicted = guide
        request = predicting(request, self.tokenizer, predicted)
        return request if grammar is None else under_grammar(request, self.grammars.compile(grammar))

    def _abort(self, sequences: "Iterator[Sequence] | Seq[Sequence]") -> None:
        for sequence in sequences:
            self.engine.abort(sequence)


def _generation(sequences: Seq[Sequence]) -> Generation:
    return Generation(sequences[0].request.prompt, tuple(choice_of(sequence) for sequence in sequences))


def _is_one_prompt(prompts: Prompt | Seq[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _no_progress(done: int, total: int) -> None:
    pass


def _drafting(speculation: str | SpeculationConfig | Drafter | None) -> tuple[SpeculationConfig, list[Drafter]]:
    """How much to draft, and by whom: nobody decodes plainly. Raises UsageError for an unknown drafter."""
    if speculation is None:
        speculation = "off"
    if isinstance(speculation, str):
        speculation = SpeculationConfig(drafter=speculation)
    if not isinstance(speculation, SpeculationConfig):
        # An object is passed to try it out: all that it proposes is verified.
        return SpeculationConfig(speculation.name, OBJECT_DEPTH, 3 * OBJECT_DEPTH, budget="fixed"), [speculation]
    return speculation, make_drafters(speculation)
