"""Pictures to test with."""

from gateway.ops.pictures.picture import Endpoint, Model, Picture, Quantiles, Request, Sign

GOOD = Sign(key="serving", level="good", text="Serving.")


def picture(at: float = 1000.0, **fields) -> Picture:
    return Picture(
        **{"at": at, "version": "0", "mode": "enforce", "kv_high": 0.9, "kv_low": 0.8, "headline": GOOD, **fields}
    )


def request(key: str, **fields) -> Request:
    return Request(**{"key": key, "phase": "running", "model": "m", "flow": "a", "came": 990.0, **fields})


def endpoint(name: str = "a:1", **fields) -> Endpoint:
    known = {"url": f"http://{name}", "model": "m", "kind": "vllm", "state": "up", "healthy": True, "reason": ""}
    return Endpoint(**{"id": name, **known, "since": 900.0, "usage": 0.71, **fields})


def model(name: str = "m", **fields) -> Model:
    return Model(**{"model": name, "ttft_target": 5.0, "ttft": Quantiles(count=0), **fields})
