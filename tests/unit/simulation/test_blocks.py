"""The block pool by itself; `test_engine.py` holds it to a queue of single blocks."""

from gateway.simulation.blocks import BlockPool, Chain


def held(pool, blocks):
    """A chain that holds its first so many blocks."""
    chain = Chain()
    pool.allocate(blocks)
    chain.extended(blocks)
    return chain


def test_free_blocks_keep_their_content_until_they_are_needed():
    pool = BlockPool(10)
    chain = held(pool, 6)
    pool.release_cached(chain, 0)
    assert (pool.free, chain.active, chain.present) == (10, 0, 6)
    pool.allocate(4)
    assert chain.present == 6
    pool.allocate(2)
    assert (pool.free, chain.present) == (4, 4)


def test_what_was_freed_first_goes_first_and_its_last_block_before_its_first():
    pool = BlockPool(8)
    old, young = held(pool, 4), held(pool, 4)
    pool.release_cached(old, 0)
    pool.release_cached(young, 0)
    pool.allocate(5)
    assert (old.present, young.present) == (0, 3)


def test_a_hit_takes_blocks_out_of_the_free_ones():
    pool = BlockPool(8)
    chain = held(pool, 6)
    pool.release_cached(chain, 4)
    pool.release_cached(chain, 0)
    pool.touch(chain, 5)
    assert (pool.free, chain.active, chain.present) == (3, 5, 6)
    pool.allocate(3)
    assert (pool.free, chain.present) == (0, 5)


def test_blocks_without_content_are_taken_first():
    pool = BlockPool(8)
    chain = held(pool, 5)
    pool.allocate(3)
    pool.release_cached(chain, 0)
    pool.release(3)
    pool.allocate(3)
    assert chain.present == 5
