"""All tuned constants of the admission core: numbers chosen by measurement or judgement that change its decisions.

`python -m tests.proof.ablation` tells what each is worth, ADR 24 what it told. Bounds of memory and of work, rounding
guards, mathematical constants and what protocols fix stand where they are used. The operator's settings are in
`policy.py`.

"Judgement" means that no measurement of the value is known.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Tuning:
    """The tuned constants, by the module that uses them."""

    # account/: what requests in flight hold

    smoothing_polls: float = 2.0
    """Time constant of the EWMAs over scrapes, in polls: an endpoint's decode rate, and the difference between its
    gauge and the ledger. Judgement."""
    sample_weight: float = 0.1
    """Weight of one request in the means over requests: the delay of first tokens, and the prefill time. Judgement."""
    fresh_polls: float = 3.0
    """Polls for which a scrape is fresh. An older one closes no gate by itself: the ledger carries on. Judgement."""
    gauge_lag: float = 0.25
    """Most seconds by which a gauge trails the engine, which sets it at the end of a step. Judgement: longer than any
    usual step."""
    prefill_deviations: float = 2.0
    """Mean deviations added to a predicted prefill: a first token that is promised in time should come in time.
    Judgement."""
    stream_pace: float = 0.8
    """Speed of the decode clock for a stream, as a share of its rate: slower, so that its noise does not overtake the
    stream's own, better reports. Not 0, as tokens that are merged into one delta or held back are not reported in time.
    Judgement."""
    recheck_tokens: int = 64
    """Tokens until the clock checks a reporting request again. A request that does not report is checked exactly at
    each block boundary. Judgement."""
    abort_bound: float = 1.0
    """Seconds until an aborted request counts as gone from the engine, even if no step was seen. Judgement."""
    let_go_after: float = 2.0
    """Seconds from the report that a client is behind until its request may be let go: the engine may be between two
    steps. Judgement."""
    report_span: float = 0.05
    """A progress report may tell of steps up to this many seconds ago: one that comes sooner after an abort does not
    prove a step after it. Judgement: two of the driver's batches, one every 25 ms."""

    # prediction/: what they will hold

    lengths_kept: int = 256
    """Latest output lengths remembered of each kind of requests. Judgement."""
    lengths_enough: int = 24
    """Least number of lengths for a prediction from a kind's own. Simulated: a larger number changed nothing in the
    first minute (ADR 19)."""
    prior_lengths: tuple[float, ...] = (16.0, 32.0, 64.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0, 2048.0)
    """Prior of output lengths, tokens, in order of size: used while nothing is known. Judgement."""
    prior_quantile: float = 0.7
    """Quantile of every prediction while only the prior is known. If the lengths themselves are a guess, errors do not
    even out: all predictions are wrong in the same way, and requests sent together end together. Simulated cold starts
    (ADR 19): 0.65 led to preemptions, 0.75 left more of the cache unused than preemptions cost."""
    tail_lengths: int = 4
    """Least number of longer lengths for a prediction from them; with fewer, a Pareto tail is used. Judgement."""
    tail_index: float = 2.0
    """Index of that Pareto tail. Judgement."""
    review_divisor: int = 2
    """A request is predicted again when its shortest prediction has only 1 / this of its tokens left. Its progress says
    more about its length, and an early review catches most requests before they outlive their prediction. Judgement
    (ADR 14)."""
    predictions: int = 4
    """Predictions of each request while few are in flight, a power of two. Simulated: eight brought no more
    (ADR 15)."""
    most_predictions: int = 256
    """Most predictions of each request times sequences in flight: above it a new request gets fewer. A bound of cost
    (ADR 15)."""
    forecast_age_per_request: float = 250e-6
    """Seconds per request in flight for which a rule may decline by a forecast although requests came and went. A new
    one takes about a microsecond per request, less if compiled: this bounds its cost on a full endpoint. Judgement."""
    forecast_age: float = 0.25
    """Longest validity of a forecast, seconds: requests make progress, and some outlive their predictions.
    Judgement; simulated in ADR 34."""
    forecast_share: float = 0.96
    """Most of the cache that the forecast may fill if `kv_high` is not lower: the rest is for what it cannot know.
    Judgement (ADR 7)."""
    waiting_draw: float = 0.5
    """Position in the quantile range assumed for a request not yet dispatched, 0 to 1: the middle. Judgement."""
    quantile_top: float = 0.985
    """Upper end of the quantile range: the quantile of the most cautious prediction. Of ADR 14, which
    chose two constants on simulated workloads and does not say which."""
    caution_start: float = 0.80
    """Lower end of the range, before any sign, if the forecast may fill the whole cache. See `quantile_top`."""
    caution_margin: float = 5.0
    """Decrease of that per share of the cache that the forecast must leave free: free room is caution, too. See
    `quantile_top`."""
    caution_sequences: int = 16
    """Sequences in flight that the lower end is for: with more it is lower, with fewer higher. See `quantile_top`."""
    caution_fewest: int = 4
    """Fewer sequences in flight than this count as this many. Judgement."""
    caution_raise: float = 0.1
    """Step of the lower end towards `quantile_top` after a scrape with a sign of too little caution, as a share of the
    distance. The predictions adapt by themselves; this covers what they miss. Simulated (ADR 24): 0.05 and 0.2
    are alike."""
    caution_fade: float = 1000.0
    """Time constant of its way back, seconds. Simulated (ADR 24): 300 is alike."""
    caution_full: float = 0.97
    """Cache usage that the forecast should have prevented: a sign of too little caution. Judgement."""

    # placing/: which endpoint takes a request

    prefilling_share: float = 1 / 3
    """Most of the cache that streams without a token may hold, as a share. They have yet to grow, and a stalled engine
    does not show it: a burst must not fill the cache with prompts. Measured on a busy CPU: a tenth starved an engine
    whose first tokens take a second (0.63 of direct's throughput). Simulated (ADR 24): no bound at all is as good."""
    engine_backlog: float = 1.0
    """Most seconds of prompts that may wait in an engine. Simulated (ADR 47): 2 is a little worse."""
    most_spared: float = 0.3
    """Most of a cache that is kept free for flows within their share, as a share of it. Judgement (ADR 11). It
    trades the goodput of all for the TTFT of these flows (ADR 24)."""
    most_places_spared: float = 1 / 16
    """The same of the sequences that an endpoint runs. Simulated (ADR 48): 0.3 costs up to 14 points of goodput, and
    this up to 3, for about the same TTFT of these flows: a place is free sooner than room for a long prompt."""
    prefix_pull: float = 0.3
    """Extra usage at which an endpoint is still preferred if it has the whole prompt cached, as a share of its KV
    cache. Judgement. Simulated (ADR 24): 0.15 to 1 are alike."""
    closing_samples: int = 2
    """Consecutive scrapes that must show waiting requests until the gate closes: one may be a burst on its way in.
    Judgement."""
    busy_span: float = 1.0
    """Seconds for which an endpoint that answered "busy" gets no more than it had, unless a scrape comes sooner.
    Judgement."""
    failing_after: int = 3
    """Requests in a row that an endpoint fails on, without a token for any, until it is spared. Judgement: a poisonous
    request fails on two endpoints, once on each."""
    failing_span: float = 5.0
    """Seconds for which it is spared after each, and from the first one on for which tokens of earlier requests still
    speak for it. Judgement: as long as an engine rests that hung. Simulated: in 1 s one client with one bad request
    after the other has an endpoint spared for most of the time, at the one place that is free."""
    unreached: float = 1.0
    """Seconds for which a front's requests are kept off an endpoint that it could not connect to. Judgement."""
    probe_after: float = 30.0
    """Seconds at a learned sequence limit, with no request waiting in the engine, until a higher limit is tried.
    Doubled with each trial that fails. Simulated (ADR 47)."""
    probe_after_most: float = 600.0
    """Most seconds until such a trial. Judgement: behind one address the engines may become more."""
    max_failures: int = 2
    """Endpoints that may fail on a request before it ends: a poisonous request must not reach all of them.
    Judgement."""

    # queueing/: whose turn it is, and who waits in vain

    output_weight: int = 2
    """Service of an output token, in prompt tokens. From the Virtual Token Counter, arXiv 2401.00588."""
    place_rate: float = 20.0
    """Output tokens a second that a place is worth while no rate is known: the engine tells none, or had no token yet.
    Slow for one sequence on a GPU. Judgement."""
    starved_share: float = 0.02
    """Least share of service of a band, so that none starves. If the shares sum up to over 1, none gets its full share.
    Judgement."""
    band_credit: float = 4.0
    """Most service that a band may be owed, in requests as costly as the costliest that waits. Judgement."""
    accrual_interval: float = 0.9
    """Least time between two counts of what requests in flight have had, seconds: about once per scrape, however many
    endpoints are scraped. Judgement (ADR 50)."""
    band_debt: float = 300.0
    """Longest time for which a band waits for what its requests took beyond their cost, seconds. Judgement (ADR 50)."""
    backfill_window: int = 8
    """Requests behind a blocked head that are considered for backfill. Judgement."""
    backfill_tries: int = 4
    """Most of these that are offered to an endpoint. Judgement."""
    drain_window: float = 10.0
    """Averaging window of the drain rate, seconds of pressure. Judgement."""
    drain_least_span: float = 1.0
    """Shortest measured span that gives a drain rate, seconds. Judgement."""
    drain_pressed: float = 1.0
    """Seconds for which a pool counts as under pressure after a request could not go at once: it is still about full.
    Judgement."""
    sure_multiple: float = 2.0
    """Multiple of its queue budget that the predicted wait of a request must exceed for a refusal on arrival.
    Predictions err, and a request that runs out of time in the queue costs nobody but itself. Simulated: 1 cost up to
    6 % of the tokens in SLO (ADR 8)."""
    waiting_share: float = 0.5
    """Least queue budget as a share of the TTFT target, however long the prefill: a long prompt alone is no reason to
    refuse a request. Judgement (ADR 8)."""
    retry_unknown: float = 5.0
    """Retry-After while no drain rate is known, seconds. Judgement."""
    retry_jitter: float = 0.25
    """Jitter as a share of the Retry-After: requests refused together must not come back together. Judgement."""
    promise_late: float = 2.0
    """Least validity of a promise after its due time, seconds: the header has whole seconds, and a client may be slow.
    Judgement (ADR 18)."""
    promise_late_share: float = 0.25
    """The same as a share of the time told, if that is more. Judgement (ADR 18)."""
    promise_lead: float = 2.0
    """Most seconds by which a request is told to come back before its turn: so a late one leaves no turn empty.
    Judgement (ADR 18)."""
    promise_horizon: float = 120.0
    """Longest time ahead that is promised, seconds. SDKs try three times, a minute apart at most. Simulated: with 60,
    polite clients were served 0.5 times where others were 12 times (ADR 18)."""
    active_span: float = 30.0
    """Seconds for which a flow counts as active after it last asked for something, and window of its peak holdings.
    Judgement (ADR 11)."""
    kept_flows: int = 16
    """Most active flows that room is kept for: those that asked last. The others use what these leave.
    Judgement (ADR 11)."""
    holdings_window: float = 10.0
    """Averaging window of a flow's holdings, seconds: a short burst does not take it beyond its share. Judgement
    (ADR 11)."""
    refused_span: float = 5.0
    """Seconds after a refusal of a flow within its share in which a group of another one, beyond its share, begins only
    as a whole: time to come back. Judgement (ADR 48)."""
    over_share: float = 1.1
    """Multiple of its share above which a flow is beyond it: flows with equal demand must not take turns in being so.
    Judgement."""


TUNING: Final = Tuning()
