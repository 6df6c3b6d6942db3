"""LearnedFile: what was kept comes back, anything else is ignored, and the folder does not grow without end."""

import json
import os

import pytest

from forerun.speculation.allocation.learned_file import MAX_BYTES, LearnedFile


def file_of(folder, identity=("a", "b"), kind="kind", version=1, max_files=None):
    return LearnedFile(folder, kind, version, identity, max_files)


def test_what_was_kept_comes_back(tmp_path):
    folder = tmp_path / "a" / "b"
    file_of(folder).keep([1, {"x": 2.5}])
    assert file_of(folder).load() == [1, {"x": 2.5}]
    assert len(list(folder.iterdir())) == 1  # nothing unfinished lies about


@pytest.mark.parametrize("other", [{"identity": ("a", "c")}, {"identity": ("a",)}, {"kind": "other"}, {"version": 2}])
def test_another_subject_knows_nothing_of_it(tmp_path, other):
    file_of(tmp_path).keep([1])
    assert file_of(tmp_path, **other).load() is None


def test_a_file_under_a_foreign_name_is_ignored(tmp_path):
    file_of(tmp_path).keep([1])
    other = file_of(tmp_path, ("x",))
    file_of(tmp_path).path.rename(other.path)
    assert other.load() is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"3", b"{}", b'{"format": 1}', b"\x00\xff", b"[" * 100_000, b" " * MAX_BYTES]
)
def test_a_damaged_file_is_ignored(tmp_path, data):
    file = file_of(tmp_path)
    file.path.write_bytes(data)
    assert file.load() is None


def test_a_huge_file_is_ignored_however_sound(tmp_path):
    file = file_of(tmp_path)
    file.keep("x" * 100)
    assert file.load() == "x" * 100
    file.keep("x" * MAX_BYTES)
    assert file.load() is None


def test_those_not_written_for_longest_are_deleted(tmp_path):
    others = [file_of(tmp_path, (str(i),), max_files=3) for i in range(5)]
    unlike = file_of(tmp_path, kind="unlike")
    unlike.keep(0)
    for age, file in enumerate(others):
        file.keep(age)
        os.utime(file.path, (age, age))
    assert [file.load() for file in others] == [None, None, 2, 3, 4]
    assert unlike.load() == 0


def test_a_folder_that_cannot_be_written_to_costs_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    file = file_of(tmp_path / "file" / "drafters")
    with caplog.at_level("INFO"):
        file.keep(1)
        file.keep(1)
    assert file.load() is None
    assert caplog.text.count("not kept") == 1


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    file = file_of(tmp_path)
    file.keep(1)
    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", lambda *_: (_ for _ in ()).throw(OSError("full")))
        file.keep(2)
    assert file.load() == 1
    assert len(list(tmp_path.iterdir())) == 1
