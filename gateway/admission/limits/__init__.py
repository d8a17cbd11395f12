"""The limits of each tenant: requests and tokens per minute, and requests at once, over all models.

They stand before the queue: what one of them refuses never reaches the core of a model. A tenant is a flow with limits.
Its share of the KV cache is in `queueing/kv_shares.py`; its output limit never comes here, the relay applies it.
"""
