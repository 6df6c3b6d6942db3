"""KvLayout: bytes and slots."""

from forerun.cache.layout import KvLayout, KvStack


def test_sizes():
    target, draft = KvStack("target", 30, 3, 64), KvStack("draft", 2, 1, 64)
    assert target.bytes_per_token("bf16") == 2 * 30 * 3 * 64 * 2
    assert target.bytes_per_token("fp32") == 2 * target.bytes_per_token("bf16")
    layout = KvLayout(10, 16, "bf16", (target, draft))
    assert layout.bytes_per_block == 16 * (target.bytes_per_token("bf16") + draft.bytes_per_token("bf16"))
    assert layout.total_bytes == 10 * layout.bytes_per_block
    assert layout.num_slots == 160
