"""The admission cores behind a socket: one owner decides, fronts carry requests.

- Who owns: `election.py` (the table), `campaign.py` (at work), `redis_lease.py`, `claims.py`, `epoch.py`.
- The owner: `hall.py` has a `seat.py` for each front; `opening.py` is its beginning, `launchers.py` its way to engines.
- A front: `owner_link.py`, `carried.py` (what it declares to the next owner), `fence.py` (when it stops obeying),
  `guide.py` (which owner to follow), `remote_watch.py`.
- Between them: `line.py` over `channel.py`, `frames.py`, sealed by `seal.py` with the key of `key_file.py`.
- `questions.py`, `answers.py` and `reports.py` carry state and figures.
"""
