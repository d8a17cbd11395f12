"""The model that a multipart form names (RFC 7578). Only the heads of the form's parts and that one field are read.

Parts are found by their boundary, so a file of any size and content costs one search through its bytes.
"""

import re

from gateway.wire.request import InvalidRequestError, decoded, forbid_transfer

MAX_PARTS = 2000
"""The limit of the server that vLLM runs on: 1,000 fields and 1,000 files."""
_LONGEST_HEAD = 8 * 2**10
_LONGEST_MODEL = 4096
_BOUNDARY = re.compile(rb';[ \t]*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAMED = rb'(?im)^content-disposition:[^\r\n]*;[ \t]*name=(?:"%b"|%b)[ \t]*(?:;|\r?$)'
_MODEL = re.compile(_NAMED % (b"model", b"model"))
_EXTRA = re.compile(_NAMED % (b"vllm_xargs", b"vllm_xargs"))


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is a form."""
    return content_type[:19].lower() == b"multipart/form-data"


def form_model(body: bytes, content_type: bytes) -> str | None:
    """The model a form names, or None; of several the last, as vLLM reads it.

    Raises:
        InvalidRequestError: it is not a form, has too many parts, or its model is not a name.
    """
    given = _BOUNDARY.search(content_type)
    if given is None:
        raise InvalidRequestError("The form's `Content-Type` names no boundary.")
    delimiter = b"\r\n--" + (given[1] or given[2])
    start = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    if start == 1:
        raise InvalidRequestError("The form has no part: its boundary was not found.")
    model = None
    for _ in range(MAX_PARTS):
        start += len(delimiter) - 2
        if body.startswith(b"--", start):
            return model
        head = body.find(b"\r\n\r\n", start, start + _LONGEST_HEAD)
        if head < 0:
            raise InvalidRequestError(f"A part of the form has no head, or one of over {_LONGEST_HEAD} bytes.")
        end = body.find(delimiter, head + 2)
        if end < 0:
            raise InvalidRequestError("The form is not complete: its closing boundary was not found.")
        if _MODEL.search(body, start, head) is not None:
            model = _name(body[head + 4 : min(end, head + 5 + _LONGEST_MODEL)])
        elif _EXTRA.search(body, start, head) is not None:
            forbid_transfer(decoded(body[head + 4 : end], "vllm_xargs"))
        start = end + 2
    raise InvalidRequestError(f"The form has more than {MAX_PARTS} parts.")


def _name(value: bytes) -> str:
    if len(value) > _LONGEST_MODEL:
        raise InvalidRequestError(f"`model` is over {_LONGEST_MODEL} bytes long.", "model")
    return value.decode("utf-8", "replace")
