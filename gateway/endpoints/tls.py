"""The TLS context of connections to an endpoint."""

import ssl

from gateway.config.endpoint import TlsSettings


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
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"tls.cert_file: {tls.cert_file} and tls.key_file: {tls.key_file} "
                f"are no certificate with its key: {error}"
            ) from error
    return context
