"""A name server on loopback: answers what a test puts there, and nothing else."""

import asyncio
import contextlib
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from tests.ports import free_port


class NameServer(asyncio.DatagramProtocol):
    """`records` by name and kind, as `{("vllm.test.", "A"): ["127.0.0.1"]}`. A name without any does not exist.

    Attributes:
        ttl: of every record, seconds.
        most: records in an answer over UDP, each time others and without a word of it, as a Consul does; None: all.
        silent: whether it answers nothing.
        asked: questions so far.
    """

    def __init__(self):
        self.records = {}
        self.ttl = 0
        self.most = None
        self.silent = False
        self.asked = 0

    @contextlib.asynccontextmanager
    async def serving(self, *, tcp=True):
        """Its address while it serves; over UDP alone without `tcp`."""
        loop = asyncio.get_running_loop()
        port = free_port()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", port))
        server = await loop.create_server(lambda: _OverTcp(self), "127.0.0.1", port) if tcp else None
        try:
            yield f"127.0.0.1:{port}"
        finally:
            transport.close()
            if server is not None:
                server.close()

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, addr):
        self.asked += 1
        if self.silent:
            return
        answer = self.answer(dns.message.from_wire(data))
        if self.most is not None and answer.answer:
            turn = self.asked % len(answer.answer[0])
            records = [*answer.answer[0]][turn:] + [*answer.answer[0]][:turn]
            answer.answer = [dns.rrset.from_rdata_list(answer.answer[0].name, self.ttl, records[: self.most])]
        self._transport.sendto(answer.to_wire(), addr)

    def answer(self, query):
        """The answer to a question, whole."""
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


class _OverTcp(asyncio.Protocol):
    def __init__(self, server):
        self._server = server
        self._read = b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._read += data
        if len(self._read) < 2 or len(self._read) < 2 + int.from_bytes(self._read[:2], "big"):
            return
        self._server.asked += 1
        if not self._server.silent:
            answer = self._server.answer(dns.message.from_wire(self._read[2:])).to_wire()
            self._transport.write(len(answer).to_bytes(2, "big") + answer)
            self._transport.close()
