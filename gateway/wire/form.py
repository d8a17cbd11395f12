"""The model that a multipart form names (RFC 7578). Only the heads of the form's parts and that one field are read.

Parts are found by their boundary, so a file of any size and content costs one search through its bytes. What servers
read differently is refused: else a part could be one field for kvgate and another one for the engine.
"""

import re

from gateway.wire.request import InvalidRequestError, decoded, forbid_transfer

MAX_PARTS = 2000
"""The limit of the server that vLLM runs on: 1,000 fields and 1,000 files."""
_LONGEST_HEAD = 8 * 2**10
_LONGEST_MODEL = 4096
_CHARSET = rb'(?:[ \t]*;[ \t]*charset="?(?:utf-?8|us-ascii|iso-8859-1)"?)?'
_BOUNDARY = re.compile(
    rb"""multipart/form-data%b[ \t]*;[ \t]*boundary=("[\w'()+,./:=?\ -]{1,70}"|[\w'()+,./:=?-]{1,70})%b[ \t]*"""
    % (_CHARSET, _CHARSET),
    re.IGNORECASE,
)
"""All that clients write. In another charset a name could be spelled in other bytes."""
_TOKEN = rb"[\w!#$%&'*+.^`|~-]"
_HEAD = re.compile(
    rb"""(?:(?!content-disposition)%(token)b++:[^\r\n]*+\r\n)*
    content-disposition:[ \t]*form-data;[ \t]*name=(?P<name>"[^"\\\r\n]*+"|%(token)b++)
    (?:;[ \t]*filename(?:="(?:[^"\\\r\n]|\\[^\r\n])*"|\*?=%(token)b++)){0,2}
    (?:\r\n(?!content-disposition)%(token)b++:[^\r\n]*+)*"""
    % {b"token": _TOKEN},
    re.IGNORECASE | re.VERBOSE,
)
"""The head of a part as clients write it, with one disposition."""


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is a form."""
    return content_type[:19].lower() == b"multipart/form-data"


def form_model(body: bytes, content_type: bytes) -> str | None:
    """The model a form names, or None; of several the last, as vLLM reads it.

    Raises:
        InvalidRequestError: it is not a form, has too many parts, or its model is not a name.
    """
    given = _BOUNDARY.fullmatch(content_type)
    if given is None:
        raise InvalidRequestError("The form's `Content-Type` must name one boundary and nothing but it and a charset.")
    delimiter = b"\r\n--" + given[1].strip(b'"')
    start = 0 if body.startswith(delimiter[2:]) else 2
    if not body.startswith(delimiter[2:], start):
        raise InvalidRequestError("The form does not begin with its boundary.")
    model = extra = None
    for _ in range(MAX_PARTS):
        start += len(delimiter) - 2
        if body.startswith(b"--", start):
            return model
        head = body.find(b"\r\n\r\n", start, start + _LONGEST_HEAD)
        if head < 0:
            raise InvalidRequestError(f"A part of the form has no head, or one of over {_LONGEST_HEAD} bytes.")
        end = body.find(delimiter, head + 4)
        if end < 0:
            raise InvalidRequestError("The form is not complete: its closing boundary was not found.")
        match _field(body, start, head):
            case b"model":
                model = _name(body[head + 4 : min(end, head + 5 + _LONGEST_MODEL)])
            case b"vllm_xargs":
                if extra is not None:  # which of them an engine takes is its own affair
                    raise InvalidRequestError("The form has more than one `vllm_xargs`.", "vllm_xargs")
                extra = body[head + 4 : end]
                forbid_transfer(decoded(extra, "vllm_xargs"))
        start = end + 2
    raise InvalidRequestError(f"The form has more than {MAX_PARTS} parts.")


def _field(body: bytes, start: int, head: int) -> bytes:
    """The name of the part whose head is at `start`, after its boundary, and ends at `head`."""
    read = _HEAD.fullmatch(body, start + 2, head) if body.startswith(b"\r\n", start) else None
    if read is None:
        raise InvalidRequestError(
            'Each part of the form must have one `Content-Disposition: form-data; name="..."`, with `filename` at most.'
        )
    return read["name"].strip(b'"')


def _name(value: bytes) -> str:
    if len(value) > _LONGEST_MODEL:
        raise InvalidRequestError(f"`model` is over {_LONGEST_MODEL} bytes long.", "model")
    return value.decode("utf-8", "replace")
