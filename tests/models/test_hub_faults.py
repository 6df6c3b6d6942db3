"""Downloads that go wrong: cut, truncated, corrupt, refused, without room. A half file is never the model."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from forerun.errors import CapacityError, DownloadError, ModelNotFound
from forerun.models import download, repository
from forerun.models.aliases import cache_folder
from forerun.models.cached import ModelFolder
from forerun.models.hub import resolve
from tests.models.hub_server import WEIGHTS, FakeHub, leftovers

# ---- interrupted, cut, wrong ----


def test_a_cut_connection_is_continued(fake_hub: FakeHub) -> None:
    fake_hub.cuts["model.Q4_1.gguf"] = [1_000_000, 500_000]
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS
    ranges = [headers.get("Range") for headers in fake_hub.requests_of("model.Q4_1.gguf")]
    assert ranges == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_server_without_ranges_is_read_from_the_start(fake_hub: FakeHub) -> None:
    fake_hub.cuts["model.Q4_1.gguf"] = [1_000_000]
    fake_hub.honour_ranges = False
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS


def test_a_body_that_always_ends_early_gives_up_and_keeps_the_part(fake_hub: FakeHub) -> None:
    fake_hub.cuts["model.Q4_1.gguf"] = [1_000_000, 0, 0]
    with pytest.raises(DownloadError, match=r"stopped at 1000000 of 3000000 bytes.*continues from there"):
        resolve("org/one-GGUF")
    assert len(leftovers()) == 1
    with pytest.raises(ModelNotFound):
        resolve("org/one-GGUF", offline=True)  # a half file is not the model
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS
    assert fake_hub.requests_of("model.Q4_1.gguf")[-1]["Range"] == "bytes=1000000-"
    assert leftovers() == []


def test_ctrl_c_leaves_a_part_that_the_next_run_continues(fake_hub: FakeHub) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("org/one-GGUF", progress=interrupt)
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS
    assert fake_hub.requests_of("model.Q4_1.gguf")[-1]["Range"].startswith("bytes=1")


def test_a_part_of_another_version_is_not_continued(fake_hub: FakeHub) -> None:
    fake_hub.cuts["model.Q4_1.gguf"] = [1_000_000, 0, 0]
    with pytest.raises(DownloadError):
        resolve("org/one-GGUF")
    newer = os.urandom(2_000_000)
    fake_hub.repositories["org/one-GGUF"]["model.Q4_1.gguf"] = newer
    assert resolve("org/one-GGUF").read_bytes() == newer
    assert leftovers() == []


def test_a_part_that_is_too_long_starts_again(fake_hub: FakeHub) -> None:
    content = download.Content(len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    root = ModelFolder.of("org/one-GGUF").root
    root.mkdir(parents=True)
    download.part_path(root / "model.Q4_1.gguf", content).write_bytes(WEIGHTS + b"more")
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.Q4_1.gguf", "config.json"])
def test_wrong_content_is_deleted(fake_hub: FakeHub, name: str) -> None:
    """The first is checked by its SHA-256, the second, small and outside LFS, by git's SHA-1."""
    fake_hub.corrupt.add(name)
    with pytest.raises(DownloadError, match=r"has the hash .* expected .* was deleted"):
        resolve("org/one-GGUF" if name.endswith(".gguf") else "org/tensors")
    assert leftovers() == []
    assert not list(cache_folder().rglob(name))


def test_a_file_cut_after_the_download_is_fetched_again(fake_hub: FakeHub) -> None:
    path = resolve("org/one-GGUF")
    path.write_bytes(WEIGHTS[:1000])
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS


def test_a_damaged_record_costs_only_a_download(fake_hub: FakeHub) -> None:
    path = resolve("org/one-GGUF")
    for text in ("", "[]", '{"snapshot": false, "files": {"a": {"size": 1}}}'):
        (path.parent / ".forerun.json").write_text(text)
        assert resolve("org/one-GGUF").read_bytes() == WEIGHTS


def test_two_at_once_download_once(fake_hub: FakeHub) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(resolve("org/one-GGUF"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert len(results) == 2
    assert len(fake_hub.requests_of("model.Q4_1.gguf")) == 1


# ---- access, network, disk ----


def test_a_gated_repository_asks_for_a_token(fake_hub: FakeHub) -> None:
    fake_hub.gated.add("org/one-GGUF")
    with pytest.raises(DownloadError, match=r"HTTP 403.*HF_TOKEN"):
        resolve("org/one-GGUF")


def test_an_unauthorised_listing_asks_for_a_token(fake_hub: FakeHub) -> None:
    fake_hub.status = 401
    with pytest.raises(DownloadError, match="HF_TOKEN"):
        resolve("org/one-GGUF")


def test_the_token_goes_to_the_hub_and_no_further(fake_hub: FakeHub) -> None:
    fake_hub.redirect = True
    assert resolve("org/one-GGUF").read_bytes() == WEIGHTS
    first, redirected = fake_hub.requests_of("model.Q4_1.gguf")
    assert first["Authorization"] == "Bearer hf_secret"
    assert "Authorization" not in redirected


def test_a_hub_that_fails_or_is_silent_is_left_soon(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.status = 503
    with pytest.raises(DownloadError, match="check the network"):
        resolve("org/one-GGUF")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="cannot ask the hub"):
        resolve("org/one-GGUF")
    monkeypatch.setattr(repository, "DEADLINE_S", 0.05)
    silent = threading.Event()
    monkeypatch.setattr(repository, "_list", lambda *arguments: silent.wait(5))
    with pytest.raises(DownloadError, match="does not answer within"):
        resolve("org/one-GGUF")
    silent.set()


def test_a_full_disk_is_seen_before_the_download(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CapacityError, match=r"needs 3\.0 MB in .*, and only 1\.0 MB are free.*FORERUN_CACHE"):
        resolve("org/one-GGUF")
    assert fake_hub.requests_of("model.Q4_1.gguf") == []


def test_a_disk_that_fills_up_leaves_nothing(fake_hub: FakeHub) -> None:
    content = download.Content(len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    root = ModelFolder.of("org/one-GGUF").root
    root.mkdir(parents=True)
    download.part_path(root / "model.Q4_1.gguf", content).symlink_to("/dev/full")
    with pytest.raises(CapacityError, match="no space left on the disk"):
        resolve("org/one-GGUF")
    assert leftovers() == []


def test_a_cache_that_cannot_be_written_is_named(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match=r"cannot write to .*file.*FORERUN_CACHE"):
        resolve("org/one-GGUF")
