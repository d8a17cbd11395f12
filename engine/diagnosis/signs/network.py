"""PURE. Signs of ports and of the way to the hub.

Texts: Python, uvicorn and vLLM 0.32; httpx, requests and OpenSSL as huggingface_hub lets them through.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.NETWORK)

SIGNS = (
    _sign(
        "port taken",
        r"\[Errno 98\] .*[Aa]ddress already in use",
        "The engine's port is taken by another process.",
        "Free the port (`ss -ltnp` shows who listens); without a fixed one, kvgate takes a free port.",
    ),
    _sign(
        "port between the ranks taken",
        r"EADDRINUSE|errno: 98 - Address already in use|Address already in use \(addr=",
        "The port over which the engine's processes meet is taken.",
        "Set VLLM_PORT to the first of a free range, or end the engine that was left over (`ss -ltnp`).",
    ),
    _sign(
        "address not here",
        r"\[Errno 99\] .*[Cc]annot assign requested address",
        "The address to listen on is not one of this machine.",
        "Give --host 0.0.0.0, or an address that `ip -br addr` shows.",
    ),
    _sign(
        "port not allowed",
        r"\[Errno 13\] .*while attempting to bind",
        "This user may not listen on a port below 1024.",
        "Take a higher port.",
    ),
    _sign(
        "certificate refused",
        r"CERTIFICATE_VERIFY_FAILED",
        "The hub's certificate is not trusted here: most often a proxy of the company puts in its own.",
        "Set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to the CA bundle that has the proxy's.",
    ),
    _sign(
        "proxy refused",
        r"ProxyError|407 Proxy Authentication Required",
        "The HTTP proxy does not let the engine through to the hub.",
        "Correct HTTPS_PROXY, or name what is local in NO_PROXY.",
        weight=Weight.EFFECT,
        permanent=False,
    ),
    _sign(
        "hub too busy",
        r"429 Client Error|Too Many Requests for url",
        "The hub turns this address away: too many requests.",
        "Set HF_TOKEN: known users may ask more; load the model once, and set HF_HUB_OFFLINE=1 after.",
        permanent=False,
    ),
    _sign(
        "no way to the hub",
        r"(?:Temporary failure in name resolution|Name or service not known|Failed to resolve|"
        r"Network is unreachable|ConnectTimeout|ReadTimeout|Read timed out)",
        "The machine has no way to a host that it asks for files.",
        "Connect it, set HF_ENDPOINT to a mirror, or give a local folder and HF_HUB_OFFLINE=1.",
        weight=Weight.EFFECT,
        permanent=False,
    ),
)
