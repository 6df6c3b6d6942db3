"""KvLayout: bytes and slots."""

from forerun.cache.layout import KvLayout, KvStack


def test_sizes():
    target, draft = KvStack("target", 30, 3, 64, "bf16"), KvStack("draft", 2, 1, 64, "fp32")
    assert target.bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert draft.bytes_per_token == 2 * 2 * 1 * 64 * 4
    layout = KvLayout(10, 16, (target, draft))
    assert layout.codecs == ("bf16", "fp32")
    assert layout.bytes_per_block == 16 * (target.bytes_per_token + draft.bytes_per_token)
    assert layout.total_bytes == 10 * layout.bytes_per_block
    assert layout.num_slots == 160
