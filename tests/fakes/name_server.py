"""A name server on loopback: answers what a test puts there, and nothing else."""

import asyncio
import contextlib
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """`records` by name and kind, as `{("vllm.test.", "A"): ["127.0.0.1"]}`. A name without any does not exist.

    Attributes:
        ttl: of every record, seconds.
        silent: whether it answers nothing.
        asked: questions so far.
    """

    def __init__(self):
        self.records = {}
        self.ttl = 0
        self.silent = False
        self.asked = 0

    @contextlib.asynccontextmanager
    async def serving(self):
        """Its address while it serves."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        try:
            yield "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
        finally:
            transport.close()

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, addr):
        self.asked += 1
        if not self.silent:
            self._transport.sendto(self._answer(dns.message.from_wire(data)).to_wire(), addr)

    def _answer(self, query):
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        question = query.question[0]
        name, kind = question.name.to_text(), question.rdtype.name
        if values := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(name, self.ttl, "IN", kind, *values))
        elif not any(known == name for known, _ in self._there()):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer

    def _there(self) -> Iterator:
        return (key for key, values in self.records.items() if values)
