"""The endpoints behind a DNS name: its addresses, or the targets of its SRV records."""

import asyncio
from urllib.parse import urlsplit

import dns.asyncresolver
import dns.exception
import dns.name
import dns.rdatatype
import dns.resolver

from gateway.config.discovery import DiscoverySettings

_TIMEOUT = 5.0
"""Longest time for all answers to one question, seconds."""
_TCP_TIMEOUT = 1.5
"""Seconds for an answer over TCP."""


class NoAnswerError(Exception):
    """The name server gave no endpoint. The message says why."""


async def endpoints_behind(source: DiscoverySettings) -> tuple[list[str], float]:
    """The base URLs of a source's endpoints, sorted, and the seconds for which the answer holds.

    An engine in a network with both families has an A and an AAAA record, and is one endpoint: the A records count.

    Raises:
        NoAnswerError: there is none, or no answer within `_TIMEOUT`.
    """
    try:
        async with asyncio.timeout(_TIMEOUT):
            resolver = await asyncio.to_thread(_resolver, source.nameserver)
            if source.srv is not None:
                return await _targets(resolver, source.srv)
            return await _addresses(resolver, str(source.dns))
    except TimeoutError:
        raise NoAnswerError(f"no answer within {_TIMEOUT:g} s") from None
    except dns.resolver.NXDOMAIN:
        raise NoAnswerError("there is no such name") from None
    except (dns.exception.DNSException, OSError) as error:
        raise NoAnswerError(" ".join(str(error).split()) or type(error).__name__) from None


def _resolver(nameserver: str | None) -> dns.asyncresolver.Resolver:
    """A resolver of this name server, or of those that the system names now."""
    resolver = dns.asyncresolver.Resolver(configure=nameserver is None)
    resolver.lifetime = _TIMEOUT
    if nameserver is not None:
        host, _, port = nameserver.rpartition(":")
        resolver.nameservers, resolver.port = [host.strip("[]")], int(port)
    return resolver


async def _records(
    resolver: dns.asyncresolver.Resolver, name: str, kind: dns.rdatatype.RdataType
) -> dns.resolver.Answer:
    """All records of a name: over TCP, and over UDP only where TCP is not answered.

    Over UDP some servers tell a part, another one each time, and do not say so (Consul three, by its users' reports).
    """
    try:
        return await resolver.resolve(
            name, kind, tcp=True, lifetime=_TCP_TIMEOUT, raise_on_no_answer=False, search=True
        )
    except (dns.exception.Timeout, dns.resolver.NoNameservers):
        return await resolver.resolve(name, kind, raise_on_no_answer=False, search=True)


async def _addresses(resolver: dns.asyncresolver.Resolver, base: str) -> tuple[list[str], float]:
    url = urlsplit(base)
    for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
        answer = await _records(resolver, url.hostname or "", kind)
        if answer.rrset:
            hosts = {record.address for record in answer.rrset}
            shown = (f"[{host}]" if ":" in host else host for host in hosts)
            port = f":{url.port}" if url.port is not None else ""
            urls = [url._replace(netloc=f"{host}{port}").geturl() for host in shown]
            return sorted(urls), float(answer.rrset.ttl)
    raise NoAnswerError("it has no address")


async def _targets(resolver: dns.asyncresolver.Resolver, service: str) -> tuple[list[str], float]:
    scheme, _, name = service.partition("://")
    answer = await _records(resolver, name, dns.rdatatype.SRV)
    records = [record for record in answer.rrset or () if record.target != dns.name.root]  # the root says "none here"
    urls = {f"{scheme}://{record.target.to_text(omit_final_dot=True)}:{record.port}" for record in records}
    if not urls or answer.rrset is None:
        raise NoAnswerError("it has no SRV record")
    return sorted(urls), float(answer.rrset.ttl)
