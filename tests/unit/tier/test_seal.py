import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tier.seal import (
    LONGEST_CLAIM,
    LONGEST_RECORD,
    NONCE,
    TAG,
    Claim,
    DisagreementError,
    Role,
    SealError,
    Session,
    SharedKey,
    agreed,
)

KEY = SharedKey(b"k" * 32)
FRONT = Claim(Role.FRONT, "f", (1, 2), b"settings", b"templates")
OWNER = Claim(Role.OWNER, "o", (1, 2), b"settings", b"templates")
PROOF = NONCE + TAG


def caller(key=KEY, nonce=b"c", claim=FRONT):
    return Session(key, claim, nonce * NONCE, calls=True)


def called(key=KEY, nonce=b"o", claim=OWNER):
    return Session(key, claim, nonce * NONCE, calls=False)


class Talk:
    """A front and an owner that have proved themselves, and what each said until then."""

    def __init__(self, nonces=(b"c", b"o")):
        self.front, self.owner = caller(nonce=nonces[0]), called(nonce=nonces[1])
        self.proof = self.front.opening
        self.counter, _ = self.owner.feed(self.proof)
        self.claim, _ = self.front.feed(self.counter)
        self.welcome, _ = self.owner.feed(self.claim)
        assert self.front.feed(self.welcome) == (b"", b"")


def test_two_with_the_key_know_each_other_and_hear_what_is_said():
    talk = Talk()
    assert (talk.front.theirs, talk.owner.theirs) == (OWNER, FRONT)
    for said in (b"one", b"", b"two", bytes(3 * LONGEST_RECORD + 1)):
        assert talk.owner.feed(talk.front.seal(said)) == (b"", said)
        assert talk.front.feed(talk.owner.seal(said)) == (b"", said)


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_what_is_said_arrives_however_it_is_cut(said, cuts):
    talk = Talk()
    sealed = b"".join(map(talk.front.seal, said))
    heard, at, turn = b"", 0, 0
    while at < len(sealed):
        heard += talk.owner.feed(sealed[at : at + cuts[turn % len(cuts)]])[1]
        at += cuts[turn % len(cuts)]
        turn += 1
    assert heard == b"".join(said)


def test_proofs_arrive_however_they_are_cut():
    front, owner = caller(), called()
    to_owner, to_front = front.opening, b""
    while to_owner or to_front:
        said, to_owner = to_owner, b""
        for at in range(len(said)):
            to_front += owner.feed(said[at : at + 1])[0]
        said, to_front = to_front, b""
        for at in range(len(said)):
            to_owner += front.feed(said[at : at + 1])[0]
    assert (front.theirs, owner.theirs) == (OWNER, FRONT)


def test_what_is_said_right_after_a_claim_is_heard():
    front, owner = caller(), called()
    claim, _ = front.feed(owner.feed(front.opening)[0])
    welcome, _ = owner.feed(claim)
    assert front.feed(welcome + owner.seal(b"at once")) == (b"", b"at once")


def test_the_called_one_says_nothing_before_it_has_a_whole_proof():
    owner = called()
    assert owner.opening == b""
    proof = caller().opening
    assert owner.feed(proof[:-1]) == (b"", b"")
    assert len(owner.feed(proof[-1:])[0]) == PROOF


@given(st.binary(min_size=PROOF, max_size=PROOF))
def test_a_stranger_gets_nothing(proof):
    with pytest.raises(SealError, match="not the key"):
        called().feed(proof)


def test_another_key_gets_nothing():
    with pytest.raises(SealError, match="not the key"):
        called().feed(caller(key=SharedKey(b"x" * 32)).opening)


def test_who_calls_finds_out_that_the_called_one_has_another_key():
    front = caller()
    with pytest.raises(SealError, match="not the key"):
        front.feed(bytes(PROOF))


def test_a_reflected_proof_is_none():
    front = caller()
    with pytest.raises(SealError, match="not the key"):
        front.feed(front.opening)


@pytest.mark.parametrize("more", [1, 10_000])
def test_who_says_more_than_a_proof_is_cut_off_before_it_is_read(more):
    with pytest.raises(SealError, match="more than it was asked"):
        called().feed(caller().opening + bytes(more))


def test_a_long_claim_is_not_waited_for():
    owner = called()
    owner.feed(caller().opening)
    with pytest.raises(SealError, match="too long"):
        owner.feed((LONGEST_CLAIM + 1).to_bytes(2))


def test_a_recorded_caller_gets_no_further_than_the_counter_proof():
    earlier = Talk()
    owner = called(nonce=b"n")
    assert len(owner.feed(earlier.proof)[0]) == PROOF
    with pytest.raises(SealError, match="changed on the way"):
        owner.feed(earlier.claim)
    assert owner.theirs is None


def test_a_recorded_owner_is_none():
    earlier = Talk()
    with pytest.raises(SealError, match="not the key"):
        caller(nonce=b"n").feed(earlier.counter)


@pytest.mark.parametrize("claim", [b"\xc1", msgspec.msgpack.encode(["front"]), msgspec.msgpack.encode(["king", "f"])])
def test_a_claim_that_cannot_be_read_is_none(claim, monkeypatch):
    front, owner = caller(), called()
    monkeypatch.setattr(front, "_sealed_claim", lambda: front.seal(claim))
    sealed, _ = front.feed(owner.feed(front.opening)[0])
    with pytest.raises(SealError, match="claim cannot be read"):
        owner.feed(sealed)


def test_a_claim_of_a_later_version_may_have_more_fields(monkeypatch):
    front, owner = caller(), called()
    longer = msgspec.msgpack.encode(["front", "f", (1, 2), b"settings", b"templates", "new"])
    monkeypatch.setattr(front, "_sealed_claim", lambda: front.seal(longer))
    owner.feed(front.feed(owner.feed(front.opening)[0])[0])
    assert owner.theirs == FRONT


class Recorded:
    """What was sent in one direction, record by record."""

    def __init__(self, count):
        self.talk = Talk()
        self.said = [bytes([number]) * 5 for number in range(count)]
        self.records = [self.talk.front.seal(said) for said in self.said]


COUNT = 6
CHANGES = st.one_of(
    st.tuples(st.just("drop"), st.integers(0, COUNT - 2)),
    st.tuples(st.just("repeat"), st.integers(0, COUNT - 1)),
    st.tuples(st.just("swap"), st.integers(0, COUNT - 2)),
    st.tuples(st.just("alter"), st.integers(0, COUNT - 1), st.integers(0, 22), st.integers(1, 255)),
    st.tuples(st.just("shorten"), st.integers(0, COUNT - 2), st.integers(0, 22)),
    st.tuples(st.just("insert"), st.integers(0, COUNT - 1), st.binary(min_size=18, max_size=30)),
    st.tuples(st.just("reflect"), st.integers(0, COUNT - 1)),
    st.tuples(st.just("earlier"), st.integers(0, COUNT - 1)),
)


def changed(recorded, how, at, *more):
    """What goes on of what was sent, and how many of its records are intact at its beginning."""
    records = list(recorded.records)
    record = records[at]
    earlier = Talk((b"C", b"o"))
    owner = recorded.talk.owner
    for said in recorded.said[:at]:
        owner.seal(said)
        earlier.front.seal(said)
    match how:
        case "alter":
            where, by = more
            pieces = [record[:where] + bytes([record[where] ^ by]) + record[where + 1 :]]
        case "shorten":
            pieces = [record[: more[0]] + record[more[0] + 1 :]]
        case _:
            pieces = {
                "drop": [],
                "repeat": [record, record],
                "swap": [records[-1], record],
                "insert": [*more, record],
                "reflect": [owner.seal(recorded.said[at])],
                "earlier": [earlier.front.seal(recorded.said[at])],
            }[how]
    return [*records[:at], *pieces, *records[at + 1 :]], at + (how == "repeat")


@given(CHANGES)
def test_nothing_is_heard_of_or_after_what_was_changed_on_the_way(change):
    recorded = Recorded(COUNT)
    records, intact = changed(recorded, *change)
    heard = []
    with contextlib.suppress(SealError):
        for record in records:
            heard.append(recorded.talk.owner.feed(record)[1])  # noqa: PERF401  # it ends where one is not opened
    assert b"".join(heard) == b"".join(recorded.said[:intact])


def test_a_changed_length_makes_nobody_wait_for_more_than_a_record():
    talk = Talk()
    sealed = b"\xff\xff" + talk.front.seal(b"short")[2:]
    assert talk.owner.feed(sealed) == (b"", b"")
    with pytest.raises(SealError, match="changed on the way"):
        talk.owner.feed(bytes(LONGEST_RECORD + TAG))


def test_each_connection_and_each_direction_has_other_tags():
    tags = set()
    for nonces in ((b"c", b"o"), (b"C", b"o"), (b"c", b"O")):
        talk = Talk(nonces)
        tags |= {session.seal(b"same")[-TAG:] for session in (talk.front, talk.front, talk.owner)}
    assert len(tags) == 9


def test_keys_for_two_purposes_differ_and_a_key_is_not_shown():
    assert len({KEY.derived("a"), KEY.derived("b"), SharedKey(b"x" * 32).derived("a")}) == 3
    assert KEY.derived("a") == SharedKey(b"k" * 32).derived("a")
    assert "kkk" not in repr(KEY)
    assert KEY.digest(b"x") == KEY.digest(b"x") != KEY.digest(b"y")
    assert KEY.digest(b"x") != SharedKey(b"x" * 32).digest(b"x")


@pytest.mark.parametrize(
    ("ours", "theirs", "version"), [((1, 1), (1, 2), 1), ((1, 2), (1, 2), 2), ((2, 3), (1, 2), 2), ((2, 3), (3, 4), 3)]
)
def test_two_talk_in_the_highest_version_that_both_speak(ours, theirs, version):
    assert agreed(_speaks(OWNER, ours), _speaks(FRONT, theirs)).version == version


@pytest.mark.parametrize(("ours", "theirs"), [((1, 2), (3, 4)), ((3, 4), (1, 2)), ((2, 1), (1, 2))])
def test_two_without_a_common_version_do_not_talk(ours, theirs):
    with pytest.raises(
        DisagreementError, match=rf"member f speaks versions {theirs[0]} to {theirs[1]} .* {ours[0]} to"
    ):
        agreed(_speaks(OWNER, ours), _speaks(FRONT, theirs))


@pytest.mark.parametrize(("claim", "words"), [(OWNER, "o is an owner"), (FRONT, "f is a front")])
def test_two_of_the_same_role_do_not_talk(claim, words):
    with pytest.raises(DisagreementError, match=words):
        agreed(claim, claim)


def test_what_differs_is_named():
    assert agreed(OWNER, FRONT).differs == ()
    other = msgspec.structs.replace(FRONT, settings=b"others", templates=b"others")
    assert agreed(OWNER, other).differs == ("settings", "chat templates")
    assert agreed(OWNER, other).claim is other


def _speaks(claim, versions):
    return msgspec.structs.replace(claim, versions=versions)
