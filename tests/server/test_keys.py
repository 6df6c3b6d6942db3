"""API keys: how they are written, what is refused, and that tenants' salts cannot meet."""

from pathlib import Path

import pytest

from forerun.errors import UsageError
from forerun.server.keys import KeyLimits, KeySources, tenant_salt


def load(*entries: str, file: Path | None = None, limits: KeyLimits | None = None):
    return KeySources(entries, file, limits or KeyLimits()).load()


def test_a_key_is_found_with_its_tenant_and_limits():
    ring = load("alice:secret-one", "bob:secret-two tokens_per_minute=50 concurrent=none", limits=KeyLimits(9, 99, 1))
    assert ring.find("secret-one").tenant == "alice"
    assert ring.find("secret-one").limits == KeyLimits(9, 99, 1)
    assert ring.find("secret-two").limits == KeyLimits(9, 50, None)
    for wrong in ("secret-tw", "secret-two ", "", "alice:secret-one", "sécret", "\ud800"):
        assert ring.find(wrong) is None


def test_a_key_without_a_tenant_is_its_own_and_says_nothing_about_itself():
    ring = load("secret-one", "secret-two")
    names = {ring.find(key).tenant for key in ("secret-one", "secret-two")}
    assert len(names) == 2
    assert not any("secret" in name for name in names)
    assert "secret" not in repr(ring.keys)


def test_a_file_has_one_key_a_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# staff\n\nalice:secret-one requests_per_minute=3\nbob:secret-two\n")
    ring = load("secret-three", file=path)
    assert len(ring.keys) == 3
    assert ring.find("secret-one").limits.requests_per_minute == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no key"),
        ("alice:secret-one\nshort", ":2: a key has at least 8"),
        ("alice:secret-one tokens=5", "no limit 'tokens'"),
        ("alice:secret-one concurrent=0", "above 0"),
        ("alice:secret-one concurrent=many", "above 0"),
        (":secret-one", "tenant's name"),
        ("a:secret-one\nb:secret-one", "given twice"),
        ("alice:s\u00e9cret-one", "ASCII"),
    ],
)
def test_a_bad_file_is_refused_without_printing_keys(tmp_path, text, said):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file=path)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, said in ((tmp_path / "none", "No such file"), (binary, "UTF-8"), (tmp_path, "directory")):
        with pytest.raises(UsageError, match=said):
            load(file=path)


def test_no_tenant_can_imitate_another_with_a_cache_salt():
    salts = {tenant_salt(name) for name in ("a", "b", "a/b", "", "1:a")}
    assert len(salts) == 5
    assert len({len(salt) for salt in salts}) == 1  # of fixed length: what is appended cannot shift the border
    assert not any("/" in salt for salt in salts)
