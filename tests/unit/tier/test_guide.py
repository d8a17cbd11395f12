import asyncio
import contextlib

from gateway.tier.guide import Follow, Guide, Post
from tests.until import until

FOLLOW = Follow(False, "b:1", True, b"{}")


def guide(path):
    return Guide(path, here=None, elsewhere=None, turned=lambda: None, following=lambda: None)


@contextlib.asynccontextmanager
async def listening(*guides):
    tasks = [asyncio.create_task(one.run()) for one in guides]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_front_that_comes_late_is_told_what_was_said_before(tmp_path):
    at = tmp_path / "guide"
    post, early, late = Post(at, lambda _epoch: None), guide(at), guide(at)
    await post.open()
    async with listening(early):
        post.tell(FOLLOW)
        await until(lambda: early.ready)
        async with listening(late):
            await until(lambda: late.ready)
    post.close()
