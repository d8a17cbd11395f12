"""The TLS contexts that settings name, towards an endpoint and for clients; the check of kvgate's own certificate.

Each reload reads the files again (`app/named_files.py`); new connections get the new context (`server/server.py`).
"""

import contextlib
import datetime as dt
import ssl
from pathlib import Path

from gateway.config.endpoint import TlsSettings
from gateway.config.settings import ServerSettings

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE = b"PRIVATE KEY-----"
_ENCRYPTED = b"ENCRYPTED"
_EXPIRED = 10
_NOT_YET = 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""
_UTC_TIME, _VERSION = 0x17, 0xA0
"""Tags of DER."""
_LONG = 0x80
"""In DER, that a length is a number of bytes, which follow with the length."""
_TURNS = 4
"""Flights of a handshake, and one to spare."""


def ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    """The context for probes and requests to an endpoint, with the system's CAs or the configured one.

    Raises:
        ValueError: a file cannot be read or has the wrong content; names the setting.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls.ca_file: {tls.ca_file} is no readable CA bundle: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        _load(context, tls.cert_file, tls.key_file or tls.cert_file, ("tls.cert_file", "tls.key_file"))
    return context


def clients_context(server: ServerSettings) -> ssl.SSLContext | None:
    """The context for connections of clients; None where they speak plain HTTP.

    Raises:
        ValueError: a file cannot be read or has the wrong content; names the setting.
    """
    if server.tls_cert is None or server.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, server.tls_cert, server.tls_key, ("server.tls_cert", "server.tls_key"))
    return context


def expect_usable(server: ServerSettings) -> None:
    """Find out whether clients can accept the certificate today, as far as that does not depend on whom they trust.

    A client is played that trusts this very certificate.

    Raises:
        ValueError: they cannot, or a file cannot be used; names the setting.
    """
    context = clients_context(server)
    if context is None or server.tls_cert is None:
        return
    at = f"server.tls_cert: the certificate in {server.tls_cert}"
    try:
        _rehearse(context, server.tls_cert)
    except ssl.SSLCertVerificationError as error:
        since, until = _validity(server.tls_cert)
        if error.verify_code == _EXPIRED:
            raise ValueError(f"{at} expired at {until:%Y-%m-%d %H:%M} UTC: renew it") from None
        if error.verify_code == _NOT_YET:
            raise ValueError(f"{at} is valid from {since:%Y-%m-%d %H:%M} UTC on: is the clock right?") from None
        raise ValueError(f"{at} is refused by every client: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ValueError(f"{at} cannot be used: {error.reason or error}") from None


def _load(context: ssl.SSLContext, certificate: Path, key: Path, settings: tuple[str, str]) -> None:
    """Load a certificate and its key; `settings` named the two."""
    for name, file, mark, what in (
        (settings[0], certificate, _CERTIFICATE, "certificate"),
        (settings[1], key, _PRIVATE, "private key"),
    ):
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ValueError(f"{name}: {file} cannot be read: {error.strerror}") from None
        if mark not in text:
            raise ValueError(f"{name}: expected a {what} in PEM, {file} has none")
    if _ENCRYPTED in text:
        raise ValueError(
            f"{settings[1]}: the key in {key} has a password, for which kvgate cannot ask: "
            f"`openssl pkey -in {key} -out OTHER` writes it without"
        )
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{settings[1]}: {key} is not the key of the certificate in {certificate}") from None
        why = error.reason or "one of them is damaged"
        raise ValueError(f"{settings[0]}: {certificate} and {settings[1]}: {key} cannot be used: {why}") from None


def _rehearse(server: ssl.SSLContext, certificate: Path) -> None:
    """Shake hands in memory with a client that trusts this certificate and no other."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # by which names clients know this machine, only they know
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(_TURNS):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


def _validity(certificate: Path) -> tuple[dt.datetime, dt.datetime]:
    """From when until when the first certificate of a file is valid."""
    pem = certificate.read_text(errors="replace")
    begin = pem.index(_CERTIFICATE.decode())
    end = "-----END CERTIFICATE-----"
    der = ssl.PEM_cert_to_DER_cert(pem[begin : pem.index(end, begin) + len(end)])
    fields = _parts(_parts(_parts(der)[0][1])[0][1])  # of the TBSCertificate (RFC 5280, 4.1)
    version = fields[0][0] == _VERSION
    since, until = (_time(tag, content) for tag, content in _parts(fields[3 + version][1]))
    return since, until


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """The values that follow one another in DER: tag and content of each."""
    found = []
    while der:
        tag, length, begin = der[0], der[1], 2
        if length & _LONG:
            begin += length & ~_LONG
            length = int.from_bytes(der[2:begin])
        found.append((tag, der[begin : begin + length]))
        der = der[begin + length :]
    return found


def _time(tag: int, content: bytes) -> dt.datetime:
    """A UTCTime, whose years are two digits and before 2050 (RFC 5280, 4.1.2.5.1), or a GeneralizedTime."""
    text = content.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
