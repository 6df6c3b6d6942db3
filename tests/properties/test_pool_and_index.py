"""Laws of BlockPool and PrefixIndex under any order of operations, as a state machine with a model beside it.

The model knows the token content of every block. A match must return blocks whose content is the asked prefix.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.cache.block_pool import BlockPool
from forerun.cache.prefix_index import PrefixIndex
from forerun.sequence import Request, SamplingParams, Sequence

SIZE = 16
NUM_BLOCKS = 7
# Prompts from few building bricks, so that prefixes, whole and partial, are shared often.
BRICKS = [(1,) * SIZE, (2,) * SIZE, (1,) * 8 + (3,) * 8, (4, 5)]
prompts = st.lists(st.sampled_from(BRICKS), min_size=1, max_size=4).map(lambda parts: sum(parts, ()))
salts = st.sampled_from(["", "a"])


class Cache(RuleBasedStateMachine):
    """Sequences come with what the index knows of their prompt, publish, and leave."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex(SIZE, ("bf16",))
        self.pool = BlockPool(NUM_BLOCKS, on_reuse=self.index.forget)
        self.live: list[Sequence] = []
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}  # block -> salt and all tokens up to its end
        self.count = 0

    @rule(prompt=prompts, salt=salts)
    def join(self, prompt, salt):
        match = self.index.match(prompt, salt)
        assert match.num_tokens <= len(prompt)
        assert len(match.blocks) == -(-match.num_tokens // SIZE)
        for place, block in enumerate(match.blocks):
            known_salt, known = self.content[block]
            upto = min(match.num_tokens, (place + 1) * SIZE)
            assert known_salt == salt
            assert known[:upto] == prompt[:upto], "a hit holds other tokens"
        whole = match.blocks[: match.num_tokens // SIZE]
        for block in whole:
            self.pool.share(block)
        owned_before = {block for sequence in self.live for block in sequence.block_ids}
        fresh = self.pool.allocate(-(-len(prompt) // SIZE) - len(whole))
        if fresh is None:
            self.pool.release(whole)
            return
        assert not owned_before & set(fresh), "a block was handed out twice"
        request = Request("r", prompt, SamplingParams(seed=0), salt=salt)
        blocks = [*whole, *fresh]
        sequence = Sequence(self.count, request, 0, 0, (0, 0), list(prompt), len(prompt), block_ids=blocks)
        self.count += 1
        for place in range(len(whole), len(blocks)):
            self.content[blocks[place]] = (salt, prompt[: (place + 1) * SIZE])
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def publish(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        upto = data.draw(st.integers(0, len(sequence.tokens)))
        is_first = not sequence.block_digests
        for block in self.index.publish(sequence, upto):
            assert block in sequence.block_ids[: upto // SIZE]
            self.pool.mark_indexed(block)
        # Published in one go it is all found again. In several, a twin's block that stood for the first part may have
        # been reused between.
        if is_first:
            assert self.index.match(sequence.tokens, sequence.request.salt).num_tokens >= upto // SIZE * SIZE

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.pool.release(sequence.block_ids)

    @invariant()
    def blocks_are_conserved(self):
        pool = self.pool
        pool.check(sequence.block_ids for sequence in self.live)
        blank = pool.num_free - pool.num_cached
        assert blank + pool.num_cached + pool.num_owned == NUM_BLOCKS
        assert pool.num_owned == len({block for sequence in self.live for block in sequence.block_ids})

    @invariant()
    def index_and_pool_agree(self):
        assert set(self.index._by_block) == {block for block in range(NUM_BLOCKS) if self.pool._is_indexed[block]}
        assert len(self.index) == sum(map(len, self.index._children.values()))


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
