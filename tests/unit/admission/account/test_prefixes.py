from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.account.prefixes import RecentPrefixes, SharedPrefixes
from gateway.admission.events import Prefix

LADDER = (64, 128, 192, 320)


@dataclass(slots=True, eq=False)
class Request:
    prefix: Prefix
    shared: int = 0


def prefix(*names: str, ladder: Sequence[int] = LADDER) -> Prefix:
    """Parts that are equal to another's as far as the names are."""
    return tuple((tokens, _hash(names[: index + 1])) for index, tokens in enumerate(ladder[: len(names)]))


def _hash(names: tuple[str, ...]) -> int:
    return int.from_bytes("".join(names).encode())


def test_two_prompts_share_what_they_have_in_common() -> None:
    shared: SharedPrefixes[Request] = SharedPrefixes(16)
    one, two = Request(prefix("a", "b", "c")), Request(prefix("a", "b", "x", "y"))
    shared.add(one)
    assert (one.shared, shared.tokens, shared.saved_tokens) == (0, 0, 0)
    shared.add(two)
    assert (one.shared, two.shared, shared.tokens, shared.saved_tokens) == (128, 128, 128, 128)
    shared.remove(one)
    assert (two.shared, shared.tokens, shared.saved_tokens) == (0, 0, 0)


def test_the_last_of_several_holds_it_alone() -> None:
    shared: SharedPrefixes[Request] = SharedPrefixes(16)
    requests = [Request(prefix("a", "b")) for _ in range(3)]
    for request in requests:
        shared.add(request)
    assert (shared.tokens, shared.saved_tokens) == (128, 256)
    shared.remove(requests[1])
    assert [request.shared for request in requests] == [128, 0, 128]
    assert (shared.tokens, shared.saved_tokens) == (128, 128)
    shared.remove(requests[0])
    assert [request.shared for request in requests] == [0, 0, 0]
    assert shared.held(requests[2].prefix) == 128


def test_only_whole_blocks_are_shared() -> None:
    shared: SharedPrefixes[Request] = SharedPrefixes(100)
    one, two = Request(prefix("a", "b", "c")), Request(prefix("a", "b", "c", "d"))
    shared.add(one)
    shared.add(two)
    assert (one.shared, two.shared, shared.tokens, shared.saved_tokens) == (100, 100, 100, 100)
    assert shared.held(prefix("a", "x")) == 0
    assert shared.held(prefix("a", "b")) == 100


def test_a_prompt_without_parts_costs_and_shares_nothing() -> None:
    shared: SharedPrefixes[Request] = SharedPrefixes(16)
    requests = [Request(()), Request(())]
    for request in requests:
        shared.add(request)
    assert shared.held(()) == shared.tokens == shared.saved_tokens == 0
    for request in requests:
        shared.remove(request)


class Sharing(RuleBasedStateMachine):
    """Against counting every part of every holder."""

    @initialize(block=st.sampled_from((16, 64, 100, 128)))
    def start(self, block: int) -> None:
        self.block = block
        self.shared: SharedPrefixes[Request] = SharedPrefixes(block)
        self.holders: list[Request] = []

    @rule(names=st.lists(st.sampled_from("ab"), max_size=4))
    def add(self, names: list[str]) -> None:
        request = Request(prefix(*names))
        expected = max((self.floor(self.common(request, other)) for other in self.holders), default=0)
        assert self.shared.held(request.prefix) == expected
        self.shared.add(request)
        self.holders.append(request)
        assert request.shared == expected

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.shared.remove(request)
        assert request.shared == 0

    @invariant()
    def shares_what_others_hold_too(self) -> None:
        for request in self.holders:
            others = [other for other in self.holders if other is not request]
            assert request.shared == max((self.floor(self.common(request, other)) for other in others), default=0)

    @invariant()
    def totals_are_those_of_all_parts(self) -> None:
        count: Counter[tuple[int, int]] = Counter()
        own = {}
        for request in self.holders:
            before = 0
            for part in request.prefix:
                own[part] = self.floor(part[0]) - before
                before = self.floor(part[0])
                count[part] += 1
        assert self.shared.tokens == sum(own[part] for part, holders in count.items() if holders > 1)
        assert self.shared.saved_tokens == sum(own[part] * (holders - 1) for part, holders in count.items())
        alone = sum(self.floor(request.prefix[-1][0]) - request.shared for request in self.holders if request.prefix)
        assert alone + self.shared.tokens == sum(own.values())

    def common(self, one: Request, other: Request) -> int:
        return max((tokens for tokens, _ in set(one.prefix) & set(other.prefix)), default=0)

    def floor(self, tokens: int) -> int:
        return tokens - tokens % self.block


TestSharing = Sharing.TestCase


def test_what_was_sent_is_cached_as_far_as_it_agrees() -> None:
    recent = RecentPrefixes(10_000)
    recent.sent(prefix("a", "b", "c"), tokens=200)
    assert recent.cached(prefix("a", "b", "c", "d")) == 192
    assert recent.cached(prefix("a", "b", "x")) == 128
    assert recent.cached(prefix("x")) == recent.cached(()) == 0


def test_the_least_recent_goes_first_and_of_it_the_end() -> None:
    recent = RecentPrefixes(448)
    recent.sent(prefix("a", "b", "c"), tokens=192)
    recent.sent(prefix("x", "y", "z"), tokens=192)
    recent.sent(prefix("1", "2"), tokens=128)
    assert recent.cached(prefix("a", "b", "c")) == 128
    assert recent.cached(prefix("x", "y", "z")) == 192


def test_what_is_used_again_stays() -> None:
    recent = RecentPrefixes(256)
    recent.sent(prefix("a", "b"), tokens=128)
    recent.sent(prefix("x"), tokens=64)
    recent.sent(prefix("a"), tokens=64)
    recent.sent(prefix("y", "z"), tokens=128)
    assert recent.cached(prefix("a", "b")) == 64
    assert recent.cached(prefix("x")) == 64
    assert recent.cached(prefix("y", "z")) == 128


def test_tails_and_answers_take_room_too() -> None:
    recent = RecentPrefixes(1000)
    recent.sent(prefix("a", "b"), tokens=130)
    recent.sent((), tokens=870)
    assert recent.cached(prefix("a", "b")) == 128
    recent.sent((), tokens=1)
    assert recent.cached(prefix("a", "b")) == 128  # the tail of two tokens went
    recent.sent((), tokens=2)
    assert recent.cached(prefix("a", "b")) == 64


def test_an_endpoint_of_unknown_size_is_bounded_by_parts() -> None:
    recent = RecentPrefixes(None, most=6)
    recent.sent(prefix("a", "b", "c"), tokens=192)
    recent.sent((), tokens=10**9)
    assert recent.cached(prefix("a", "b", "c")) == 192
    recent.sent(prefix("a"), tokens=64)
    assert recent.cached(prefix("a", "b", "c")) == 64


def test_what_is_sent_again_and_again_is_kept_once() -> None:
    recent = RecentPrefixes(256)
    recent.sent(prefix("x"), tokens=64)
    for _ in range(100):
        recent.sent(prefix("a", "b", "c"), tokens=192)
    assert recent.cached(prefix("x")) == 64
    assert recent.cached(prefix("a", "b", "c")) == 192


@settings(max_examples=200)
@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=30), st.integers(0, 1500))
def test_what_is_cached_is_the_most_recent_and_never_more_than_fits(sent: list[list[str]], room: int) -> None:
    recent = RecentPrefixes(room)
    order: list[tuple[int, int]] = []
    own = dict(zip(LADDER, (64, 64, 64, 128), strict=True))
    for names in sent:
        parts = prefix(*names)
        recent.sent(parts, tokens=parts[-1][0] if parts else 0)
        order = [*[part for part in order if part not in parts], *reversed(parts)]
        while sum(own[tokens] for tokens, _ in order) > room:
            del order[0]
    for names in sent:
        parts = prefix(*names)
        assert recent.cached(parts) == max((part[0] for part in parts if part in order), default=0)


def test_the_sole_holder_is_whom_the_next_would_be_the_first_to_share_with() -> None:
    prefixes: SharedPrefixes[Request] = SharedPrefixes(16)
    prompt = ((64, 1), (128, 2), (192, 3))
    first, second = Request(prompt), Request(prompt[:2])
    assert prefixes.sole(prompt) is None
    prefixes.add(first)
    assert prefixes.sole(prompt) is first
    prefixes.add(second)
    assert prefixes.sole(prompt) is first
    assert prefixes.sole(prompt[:2]) is None
    prefixes.remove(first)
    assert prefixes.sole(prompt) is second
