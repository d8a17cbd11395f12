"""The share of all service that is reserved for a band."""

from gateway.admission.tuning import TUNING


class BandShare:
    """The service that a band is owed by its reserved share.

    It is owed its share of all service since a request began to wait in it, less the service given to it since. Service
    beyond its share is not held against it. But a request that goes because the band is owed that service may take more
    than expected, and the band pays for that, too. A band that is owed the cost of its head goes first. Of several such
    bands, the one longest without service goes first, so none starves if more is reserved than there is.
    """

    __slots__ = ("_paid_to", "share", "since")

    def __init__(self, share: float) -> None:
        self.resize(share)
        self._paid_to = 0.0
        """Total service of the pool up to which the band has had its share."""
        self.since = 0.0
        """Total service of the pool when the band last got some, or began to wait."""

    def resize(self, share: float) -> None:
        """Apply another share of all service."""
        self.share = max(share, TUNING.starved_share)

    def begin(self, served: float) -> None:
        """Begin to wait, at this total service of the pool: nothing is owed from before."""
        self._paid_to = max(self._paid_to, served)
        self.since = served

    def given(self, tokens: float, served: float) -> float:
        """Note service to the band, and the total service of the pool with it. Returns the part that it was owed."""
        before = self._paid_to
        self._paid_to = max(before, min(before + tokens / self.share, served))
        self.since = served
        return (self._paid_to - before) * self.share / tokens if tokens else 0.0

    def took(self, tokens: float, served: float, most: float) -> float:
        """Note that what it was owed took so much more. Returns the service of the pool for which it waits for that.

        It waits until `most` more was served.
        """
        before = self._paid_to
        self._paid_to = max(before, min(before + tokens / self.share, served + most))
        return self._paid_to - before

    def refund(self, tokens: float, waits: float) -> None:
        """Note that what it was owed took so much more in the end, or less if negative, though it waits for `waits`."""
        self._paid_to -= max(0.0, waits - tokens / self.share)

    def fell(self, tokens: float, served: float) -> None:
        """Note that another band's request had so much less than was counted; `served`: what is left for the pool."""
        owes = self._paid_to > served + tokens
        self._paid_to = self._paid_to - tokens if owes else min(self._paid_to, served)
        self.since = min(self.since, served)

    def due(self, cost: float, served: float, largest: float) -> float:
        """Total service of the pool at which the band is owed the cost of its head.

        `largest` is an upper bound of the cost of all waiting requests.
        """
        self._paid_to = max(self._paid_to, served - TUNING.band_credit * largest / self.share)
        return self._paid_to + cost / self.share
