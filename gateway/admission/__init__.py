"""The admission core: pure decisions about which request may use an endpoint's KV cache, and when.

The core knows no clock, no network and no log. Events come in with their times, and commands go out. The same events
give the same commands. Read it from the top:

- `controller.py` handles events and carries out decisions. `decide.py` makes them and changes nothing. `pool.py` is the
  state that they are made from.
- `limits/`: the tenants' rate limits. The driver charges them before the core hears of a request.
- `queueing/`: the order of waiting requests, their waits, and when a refused client may come back (`Retry-After`).
- `placing/`: a request and its endpoints. `rules.py` is the table of reasons to decline it.
- `prediction/`: expected output lengths, and the KV cache peak that follows from them.
- `account/`: the blocks that requests in flight hold now, and the engine's gauges.
- `residency.py`: which engine of a group runs. `scaling.py`: the figures for autoscalers. `view.py`: snapshots.
- `tuning.py` has every tuned constant.

The values that go in and out are in `events.py`, `commands.py`, `outcomes.py`, `policy.py`, `snapshot.py` and
`explanation.py`. `docs/architecture.md` has the formulas, their sources, and a glossary ("Words").
"""
