"""PURE. vLLM's grouping of layers with different caches, so that all share one pool of blocks.

From vLLM 0.32, v1/core/kv_cache_utils.py: `get_kv_cache_groups`, `unify_kv_cache_spec_page_size`,
`_get_kv_cache_groups_uniform_page_size`, `_get_packed_kv_cache_groups`.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.plan.pages import Page
from engine.plan.shape import Kind

_FULL = frozenset({Kind.FULL, Kind.MLA})
_PADDING_RATIO = 1.5
"""Below this ratio of the largest to the smallest number of layers, all groups have the largest number."""


class UnpackableError(Exception):
    """The layers' blocks have no common size, so vLLM would refuse to start."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table.

    Attributes:
        kind: how a request's blocks grow with its tokens.
        tokens: attention tokens in a block.
        window: tokens of a window or a chunk.
        checkpoints: further states of a request that prefix caching keeps.
        pages: of its layers.
    """

    kind: Kind
    tokens: int
    window: int
    checkpoints: int
    pages: tuple[Page, ...]

    def bytes_of(self, layers: range) -> int:
        """Bytes of one block in the layers of one pipeline stage."""
        return sum(page.bytes for page in self.pages if page.layer in layers)


def grouped(pages: Sequence[Page], *, packed: bool) -> tuple[Group, ...]:
    """Group the layers of a model.

    Args:
        pages: of all layers, over all pipeline stages.
        packed: whether blocks of different sizes lie side by side (the block is the outermost dimension).

    Raises:
        UnpackableError: vLLM would refuse this combination.
    """
    if not pages:
        return ()
    if _one_type(pages):
        return (_group(pages),)
    if packed and len({page.bytes for page in pages}) > 1:
        return _packed(pages)
    return _split(_unified(pages))


def _group(pages: Sequence[Page]) -> Group:
    first = pages[0]
    return Group(first.kind, first.tokens, first.window, first.checkpoints, tuple(pages))


def _one_type(pages: Sequence[Page]) -> bool:
    """Whether all layers always need the same number of blocks."""
    first = pages[0]
    if first.kind in _FULL:
        return all(page.kind in _FULL and page.tokens == first.tokens for page in pages)
    if first.kind is Kind.STATE:
        return all(page.kind is Kind.STATE and page.bytes == first.bytes for page in pages)
    return all(
        page.kind is first.kind and page.tokens == first.tokens and page.window == first.window for page in pages
    )


def _unified(pages: Sequence[Page]) -> list[Page]:
    """Give every layer the largest page: with more tokens if it divides evenly, else with padding."""
    largest = max(page.bytes for page in pages)
    unified = []
    for page in pages:
        if page.bytes == largest:
            unified.append(page)
        elif page.kind is Kind.STATE or (largest % page.bytes and page.kind is not Kind.MLA):
            unified.append(replace(page, bytes=largest))
        elif largest % page.bytes:
            raise UnpackableError(f"a block of latent attention of {page.bytes} bytes does not divide {largest}")
        else:
            times = largest // page.bytes
            unified.append(replace(page, tokens=page.tokens * times, bytes=largest, content=page.content * times))
    return unified


def _split(pages: Sequence[Page]) -> tuple[Group, ...]:
    """Split layers of one page size into groups of equal numbers of layers."""
    alike: defaultdict[tuple[object, ...], list[Page]] = defaultdict(list)
    for page in pages:
        alike[page.kind, page.tokens, page.content, page.window, page.cells].append(page)
    counts = [len(layers) for layers in alike.values()]
    size = max(counts) if max(counts) < _PADDING_RATIO * min(counts) else min(counts)
    groups = []
    for layers in alike.values():
        number = -(-len(layers) // size)
        groups += [_group(layers[index::number]) for index in range(number)]
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one type in a packed layout, by the size of their page."""

    pages: tuple[Page, ...]
    by_size: dict[int, list[Page]]

    @property
    def balanced(self) -> bool:
        """Whether each size has the same number of layers, as in a repeating pattern."""
        return len({len(pages) for pages in self.by_size.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(Counter(page.bytes for page in self.pages).values())

    def widest(self, groups: int) -> int:
        """Bytes of the largest group when split into this many."""
        return sum(-(-len(pages) // groups) * size for size, pages in self.by_size.items())


def _packed(pages: Sequence[Page]) -> tuple[Group, ...]:
    buckets = _buckets(pages)
    floor = max((bucket.repeats for bucket in buckets if bucket.balanced and len(bucket.by_size) > 1), default=0)
    repeats = _least_padding([bucket.repeats for bucket in buckets if bucket.balanced], floor) if floor else None

    def number(bucket: _Bucket) -> int:
        return -(-bucket.repeats // repeats) if bucket.balanced and repeats else 1

    def divisible(bucket: _Bucket) -> bool:
        kind = bucket.pages[0].kind
        return kind is Kind.STATE or (repeats is None and kind is Kind.SLIDING)

    anchor = max(bucket.widest(len(bucket.pages) if divisible(bucket) else number(bucket)) for bucket in buckets)
    groups: list[Group] = []
    for bucket in buckets:
        count = number(bucket)
        if divisible(bucket):
            count = max(count, -(-len(bucket.pages) // max(1, anchor // bucket.pages[0].bytes)))
        if count == 1:
            groups.append(_group(bucket.pages))
            continue
        pattern = list(zip(*bucket.by_size.values(), strict=False))
        groups += [_group([page for repeat in pattern[index::count] for page in repeat]) for index in range(count)]
    return tuple(groups)


def _buckets(pages: Sequence[Page]) -> list[_Bucket]:
    found: list[list[Page]] = []
    for page in pages:
        for bucket in found:
            if _one_type([*bucket, page]):
                bucket.append(page)
                break
        else:
            found.append([page])
    buckets = []
    for bucket in found:
        by_size: defaultdict[int, list[Page]] = defaultdict(list)
        for page in bucket:
            by_size[page.bytes].append(page)
        buckets.append(_Bucket(tuple(bucket), dict(by_size)))
    return buckets


def _least_padding(counts: Sequence[int], floor: int) -> int:
    """The number of repeats per group that pads least; among equals the largest."""
    return min(
        range(floor, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size), default=floor
    )
