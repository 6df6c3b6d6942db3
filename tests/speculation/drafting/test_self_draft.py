"""Parts of a target that draft for it: what runs, what it costs, and what is refused before anything is loaded."""

from pathlib import Path

import pytest

from forerun.backends.base import ProgramSpec
from forerun.backends.cpu import CpuBackend
from forerun.backends.recorder import Recorder
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from tests.speculation.self_drafts import LAYERS, SKIP, config_of, write_model, write_skips


@pytest.fixture
def loaded(tmp_path: Path) -> LLM:
    return LLM(str(write_model(tmp_path / "tiny.gguf")), speculation="off", threads=1)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[ProgramSpec]:
    """The passes that drafters load from now on."""
    made: list[ProgramSpec] = []
    right = CpuBackend.add_program

    def add(self, spec, progress=None):
        made.append(spec)
        return right(self, spec, progress)

    monkeypatch.setattr(CpuBackend, "add_program", add)
    return made


def layers_of(spec: ProgramSpec) -> set[str]:
    """Sub-layers whose weights a pass reads."""
    recorder = Recorder(dict(spec.weight_shapes))
    spec.forward(recorder)
    return {".".join(name.split(".")[:3]) for name in recorder.weights() if name.count(".") == 3}


def test_early_exit_runs_the_first_layers(loaded: LLM, programs: list[ProgramSpec]) -> None:
    loaded.reconfigure(speculation=config_of("early-exit", 1, layer=1))
    assert layers_of(programs[0]) == {"layers.0.attn", "layers.0.mlp"}
    loaded.reconfigure(speculation="early-exit")
    assert layers_of(programs[1]) == {f"layers.{i}.{part}" for i in range(LAYERS // 2) for part in ("attn", "mlp")}


def test_layer_skip_leaves_out_what_the_profile_says(loaded: LLM, programs: list[ProgramSpec], tmp_path: Path) -> None:
    every = {f"layers.{i}.{part}" for i in range(LAYERS) for part in ("attn", "mlp")}
    loaded.reconfigure(speculation=config_of("layer-skip", 1, profile=write_skips(loaded, tmp_path / "p.json")))
    assert layers_of(programs[0]) == every - set(SKIP)
    # Without the option, the file where the command puts it.
    write_skips(loaded, tmp_path / "drafters" / "layer-skip-tiny.gguf.json", SKIP[:1])
    loaded.reconfigure(speculation="layer-skip", options=EngineOptions(drafter_files=tmp_path / "drafters"))
    assert layers_of(programs[1]) == every - {SKIP[0]}


def test_parts_share_the_loaded_weights(loaded: LLM, tmp_path: Path) -> None:
    """A part of the loaded weights needs a workspace and norms; a copy in four bits has matrices of its own."""
    matrices = loaded.backend.memory().weights
    profile = write_skips(loaded, tmp_path / "p.json", ())
    sizes = {}
    for drafter, options in (("layer-skip", {"profile": profile}), ("self-int4", {})):
        loaded.reconfigure(speculation=config_of(drafter, 1, **options))
        program = loaded.engine.speculator.drafters[0]._drafting._program  # type: ignore[attr-defined]
        sizes[drafter] = program.weight_bytes
    assert sizes["layer-skip"] < matrices / 20
    assert matrices / 5 < sizes["self-int4"] < matrices / 2  # 5 bits of 16, and a panel's padding


def test_the_kv_cache_is_cut_from_what_drafters_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KV cache of default size takes at most half of what is free once the drafter's weights are there."""
    backends: list[CpuBackend] = []
    free = 2_000_000
    right = CpuBackend.load

    def load(self, *arguments, **options):
        backends.append(self)
        right(self, *arguments, **options)

    monkeypatch.setattr(CpuBackend, "load", load)
    monkeypatch.setattr("forerun.llm.available_memory", lambda: free - backends[-1].memory().drafts)
    path = write_model(tmp_path / "tiny.gguf")
    plain, drafting = (LLM(str(path), speculation=name, threads=1) for name in ("off", "self-int4"))
    drafts = drafting.backend.memory().drafts
    block = plain.kv_layout.bytes_per_block
    assert plain.kv_layout.num_blocks == free // 2 // block
    assert drafts > 100_000 > block
    assert drafting.kv_layout.num_blocks == (free - drafts) // 2 // block


def test_drafted_tokens_bear_the_drafters_name(loaded: LLM) -> None:
    loaded.reconfigure(speculation="early-exit")
    loaded.generate("The quick brown fox", SamplingParams(max_tokens=12, ignore_eos=True))
    assert set(loaded.engine.speculator.stats.by_drafter) == {"early-exit"}
    assert loaded.engine.speculator.stats.by_drafter["early-exit"].drafted > 0


class TestRefusals:
    def refusal(self, path: Path, config: SpeculationConfig, options: EngineOptions | None = None) -> str:
        """The line of the error, which comes before the weights are loaded."""
        loads: list[object] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CpuBackend, "load", lambda self, *rest: loads.append(rest))
            with pytest.raises(UsageError) as error:
                LLM(str(path), speculation=config, threads=1, options=options)
        assert loads == []
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_four_bits_of_four_bits(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "q4.gguf", formats="Q4_0")
        message = self.refusal(path, config_of("self-int4", 1))
        assert "self-int4 would read 100% of the bytes" in message
        assert "--weights bf16" in message
        LLM(str(path), speculation="self-int4", threads=1, options=EngineOptions(weights="bf16"))  # the remedy

    def test_int4_on_the_reference_backend_which_quantises_nothing(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "tiny.gguf")
        message = self.refusal(path, config_of("self-int4", 1), EngineOptions(backend="reference"))
        assert "100% of the bytes" in message

    def test_a_missing_profile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
        path = write_model(tmp_path / "tiny.gguf")
        assert f"forerun bench layer-skip --model {path}" in self.refusal(path, config_of("layer-skip", 1))

    def test_another_models_profile(self, tmp_path: Path, loaded: LLM) -> None:
        profile = write_skips(loaded, tmp_path / "p.json")
        other = write_model(tmp_path / "other.gguf", layers=5)
        assert "is the profile of tiny.gguf" in self.refusal(other, config_of("layer-skip", 1, profile=profile))

    @pytest.mark.parametrize("layer", [-1, LAYERS])
    def test_a_layer_that_is_not_inside(self, tmp_path: Path, layer: int) -> None:
        message = self.refusal(write_model(tmp_path / "tiny.gguf"), config_of("early-exit", 1, layer=layer))
        assert f"between 1 and {LAYERS - 1}" in message

    @pytest.mark.parametrize("drafter", ["self-int4", "layer-skip", "early-exit"])
    @pytest.mark.parametrize(
        ("option", "value"), [("width", 0), ("width", 17), ("depth", 0), ("depth", 64), ("min_survival", 1.0)]
    )
    def test_shapes(self, tmp_path: Path, drafter: str, option: str, value: float) -> None:
        option = {"depth": "max_depth"}.get(option, option)
        config = SpeculationConfig(drafter, options={option: value})
        assert f"{drafter}.{option} must be" in self.refusal(tmp_path, config)

    def test_unknown_options(self, tmp_path: Path) -> None:
        config = SpeculationConfig("early-exit", options={"speed": 9})
        assert "does not take these options" in self.refusal(tmp_path, config)
