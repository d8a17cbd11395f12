"""PURE. Advice for an endpoint that does not answer, or whose URL leads to something other than a vLLM."""

from http import HTTPStatus
from urllib.parse import urlsplit

from gateway.endpoints.identity import KVGATE, UnidentifiedError, identify, is_kvgate
from gateway.endpoints.replies import NoReply, Reply

_HELP = (
    ("name resolution", "there is no host of that name: check the URL"),
    ("Name or service not known", "there is no host of that name: check the URL"),
    ("No address associated", "there is no host of that name: check the URL"),
    ("CERTIFICATE_VERIFY_FAILED", "give its CA in `tls.ca_file`, or set `tls.verify: false`"),
    ("SSL", "does it speak TLS? If not, write http:// in its URL"),
    ("not HTTP", "does it speak TLS? Then write https:// in its URL"),
    ("no answer within", "something takes connections there and does not answer: is it a vLLM, and is it stuck?"),
    ("No such file", "there is no socket at that path: a vLLM makes it (`--uds`) when it starts; else check the path"),
    ("Permission denied", "this user may not write to that socket: have both run as one user, or in one group"),
    ("cannot connect", "nothing listens there: a vLLM does when its model is loaded; else check host and port"),
    ("answered 401", "give the key that it accepts in `api_key_file` of the endpoint"),
    ("answered 403", "give the key that it accepts in `api_key_file` of the endpoint"),
    ("answered 3", "it sends elsewhere: give the URL it leads to"),
)
"""Advice by a text in the reason; the first match counts."""


def helps(reason: str) -> str | None:
    """Advice for an endpoint that is unhealthy for this reason; None if there is none."""
    return next((remedy for mark, remedy in _HELP if mark in reason), None)


def mistaken(url: str, models: Reply | NoReply, version: Reply | NoReply) -> str | None:
    """What is wrong with a URL whose `/health` answers unlike a vLLM's; None if it may be a vLLM.

    Args:
        url: of the endpoint.
        models: its answer to `/v1/models`.
        version: its answer to `/version`.
    """
    if isinstance(version, Reply) and version.ok and is_kvgate(version.body):
        return KVGATE
    if not isinstance(models, Reply) or models.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return None
    if models.ok:
        try:
            identify(models.body, None)
        except UnidentifiedError as error:
            return str(error)
        return None
    parts = urlsplit(url)
    path = parts.path.rstrip("/") if parts.netloc else ""
    where = f"; is its path right? Without it: {url.replace(path, '', 1)}" if path else ""
    return f"this is no vLLM: it knows neither /health nor /v1/models{where}"
