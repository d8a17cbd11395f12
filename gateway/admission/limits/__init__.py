"""The limits of each tenant: requests and tokens per minute, and requests at once, over all models.

They stand before the queue: what one of them refuses never reaches the core of a model. A tenant is a flow with limits.
"""
