"""Drafts of the target itself change no token, no bit of a logit, and not the KV that later requests find."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from forerun.bench.lossless import Cell, answer_plainly
from forerun.bench.verify import make_cells
from forerun.llm import LLM
from forerun.sequence import FinishReason, SamplingParams
from forerun.speculation.drafting.draft_kv import StackKv
from tests.speculation.self_drafts import (
    BACKENDS,
    Subject,
    Way,
    config_of,
    differences,
    load_subject,
    run,
    run_again,
    write_model,
    write_skips,
)

WAYS = {
    "alone": Way(),
    "together": Way(batch=3),
    "chunks": Way(batch=3, chunk=5),
    "cache": Way(batch=3, cache=True),
    "preempted": Way(batch=3, tight=True),
    "preempted-cache": Way(batch=3, chunk=7, cache=True, tight=True),
}


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """A model behind a backend; loaded once."""
    folder = tmp_path_factory.mktemp("self-draft")
    return cache(lambda backend: load_subject(folder, backend))


def options_of(drafter: str, it: Subject, folder: Path) -> dict[str, str]:
    return {"profile": write_skips(it.llm, folder / "profile.json")} if drafter == "layer-skip" else {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    ("backend", "drafter"),
    [("cpu", "self-int4"), *((b, d) for b in BACKENDS for d in ("layer-skip", "early-exit"))],
)
def test_no_answer_changes(subject, tmp_path: Path, backend: str, drafter: str, width: int, way: str) -> None:
    """Greedy and seeded requests, with penalties and filters; the cells' samplings differ."""
    it = subject(backend)
    config = config_of(drafter, width, **options_of(drafter, it, tmp_path))
    sequences = run(it, config, it.cells, WAYS[way])
    assert differences(it.cells, sequences, it.plain) == []
    # The comparison has gone through what could have broken it.
    stats = it.llm.engine.speculator.stats
    assert stats.drafted > stats.accepted > 0
    if way == "preempted":  # with the cache, where prompts share blocks, the reference's few requests may all fit
        assert it.llm.engine.scheduler.num_preemptions > 0
    if WAYS[way].cache and not WAYS[way].tight:
        assert sum(one.stats.cached_prompt_tokens for one in sequences) > 0


@pytest.mark.parametrize("width", [1, 3])
def test_nothing_left_out_is_always_accepted(subject, tmp_path: Path, width: int) -> None:
    """A part that is the whole target says what the target says, greedy and sampled: the noise is shared."""
    it = subject("cpu")
    profile = write_skips(it.llm, tmp_path / "empty.json", ())
    sequences = run(it, config_of("layer-skip", width, profile=profile), it.cells, Way(batch=3))
    assert differences(it.cells, sequences, it.plain) == []
    whole = [one.stats for one in sequences if one.finish is FinishReason.LENGTH]  # not cut by a stop
    assert len(whole) > 4
    if width == 1:
        assert all(stats.drafted == stats.accepted for stats in whole)
        assert {stats.steps for stats in whole} == {1 + -(-23 // 7)}  # the prompt, then six drafted and one more
    else:
        stats = it.llm.engine.speculator.stats.by_drafter["layer-skip"]
        assert stats.accepted_at[0] >= stats.drafts - len(it.cells)


@pytest.mark.parametrize("drafter", ["self-int4", "layer-skip", "early-exit"])
def test_published_blocks_hold_the_targets_kv(subject, tmp_path: Path, drafter: str) -> None:
    """Later requests continue earlier answers from the prefix cache, as if everything had been computed anew."""
    it = subject("cpu")
    config = config_of(drafter, 3, **options_of(drafter, it, tmp_path))
    long = [replace(cell, params=replace(cell.params, max_tokens=100, ignore_eos=True)) for cell in it.cells[:4]]
    first = run(it, config, long, Way(batch=2, cache=True))
    assert it.llm.engine.speculator.stats.accepted > 20
    later = [
        Cell(f"later {cut} {cell.name}", (*cell.prompt, *one.output[:cut]), SamplingParams(max_tokens=12))
        for cell, one in zip(long, first, strict=True)
        for cut in (40, 77, 100)
    ]
    second = run_again(it, later)
    # All of the earlier answer was found but for what had no full block, and the last token.
    found = [one.stats.cached_prompt_tokens for one in second]
    assert all(count >= len(cell.prompt) - 17 for count, cell in zip(found, later, strict=True))
    plain = answer_plainly(it.llm, [*long, *later], it.options)
    assert differences(long, first, plain) == []
    assert differences(later, second, plain) == []


def test_hundreds_of_steps(subject, tmp_path: Path) -> None:
    it = subject("cpu")
    cells = [
        Cell("greedy", it.cells[0].prompt, SamplingParams(max_tokens=400, ignore_eos=True)),
        Cell("seeded", it.cells[0].prompt, SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.9, seed=5)),
    ]
    config = config_of("layer-skip", 2, **options_of("layer-skip", it, tmp_path))
    sequences = run(it, config, cells, Way(batch=2))
    assert min(one.stats.steps for one in sequences) > 80
    assert differences(cells, sequences, answer_plainly(it.llm, cells, it.options)) == []


def test_up_to_the_end_of_the_context(tmp_path: Path) -> None:
    """The last drafts are shorter: no row lies behind the context, nor behind the rotary table."""
    path, options = write_model(tmp_path / "tiny.gguf"), BACKENDS["cpu"]
    llm = LLM(str(path), speculation="off", threads=1, options=options, max_model_len=70)
    cells = [
        replace(cell, params=replace(cell.params, max_tokens=None, ignore_eos=True)) for cell in make_cells(llm, 4, 9)
    ]
    it = Subject(llm, options, cells, answer_plainly(llm, cells, options))
    assert {answer.finish for answer in it.plain.values()} == {"length"}
    for width in (1, 3):
        config = config_of("layer-skip", width, profile=write_skips(llm, tmp_path / "p.json"))
        assert differences(cells, run(it, config, cells, Way(batch=2)), it.plain) == []
        assert llm.engine.speculator.stats.accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_choices_that_share_a_prompt(subject, tmp_path: Path, temperature: float) -> None:
    """They fork inside a block: the first choice drafts into a block whose copy is still to come."""
    it = subject("cpu")
    params = SamplingParams(max_tokens=30, n=3, seed=4, temperature=temperature, logits_hash=True, ignore_eos=True)
    answers = []
    for speculation in ("off", config_of("layer-skip", 3, **options_of("layer-skip", it, tmp_path))):
        it.llm.reconfigure(speculation=speculation, options=replace(it.options, max_num_seqs=3, max_chunk=7))
        choices = it.llm.generate([list(cell.prompt) for cell in it.cells[:2]], params)
        answers.append([(one.token_ids, one.logits_hashes) for generation in choices for one in generation.choices])
    assert answers[0] == answers[1]
    assert it.llm.engine.speculator.stats.accepted > 0


def test_kv_of_a_draft_that_is_kept_would_be_found(subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that writes one committed token's KV anew: the tests above must not let it pass."""
    it = subject("cpu")
    config = config_of("layer-skip", 1, **options_of("layer-skip", it, tmp_path))
    right = StackKv.num_seen
    monkeypatch.setattr(StackKv, "num_seen", lambda self, sequence: max(0, right(self, sequence) - 1))
    assert differences(it.cells, run(it, config, it.cells, Way(batch=3)), it.plain) != []
