from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
import httpx
import pytest

from gateway.wire.form import MAX_PARTS, form_model, is_form
from gateway.wire.request import ForbiddenFieldError, InvalidRequestError

KIND = b"multipart/form-data; boundary=b"


def part(name: bytes, value: bytes, *heads: bytes, boundary: bytes = b"b") -> bytes:
    lines = [b'Content-Disposition: form-data; name="%b"' % name, *heads]
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, b"\r\n".join(lines), value)


FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n%b\r\n'
END = b"--b--\r\n"


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (part(b"model", b"m") + END, "m"),
        (FILE % (b"\x00\r\n--a\r\n" * 1000) + part(b"model", b"m") + END, "m"),
        (part(b"model", b"m") + FILE % b"" + END, "m"),
        (part(b"model", b"a") + part(b"model", b"b") + END, "b"),
        (part(b"model", b"m", b"Content-Type: text/plain") + END, "m"),
        (b"\r\n" + part(b"model", b"m") + END + b"epilogue", "m"),
        (b"--b\r\nContent-Type: a\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n" + END, "m"),
        (part(b"model", b"") + END, ""),
        (part(b"model", "\u00e9".encode()) + END, "\u00e9"),
        (part(b"models", b"m") + FILE % b'name="model"\r\n\r\nx' + END, None),
        (END, None),
    ],
)
def test_the_model_of_a_form_is_found_wherever_it_stands(body: bytes, model: str | None) -> None:
    assert form_model(body, KIND) == model


@pytest.mark.parametrize(
    "kind", [b'multipart/form-data; boundary="a b"', b"Multipart/Form-Data;charset=UTF-8; BOUNDARY=a"]
)
def test_a_boundary_is_read_as_it_is_written(kind: bytes) -> None:
    assert is_form(kind)
    boundary = b"a b" if b'"' in kind else b"a"
    assert form_model(part(b"model", b"m", boundary=boundary) + b"--%b--" % boundary, kind) == "m"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (part(b"model", b"m") + END, b"multipart/form-data"),
        (part(b"model", b"m"), KIND),
        (b"", KIND),
        (b"name=model\r\n" * 1000, KIND),
        (b"--b\r\n" + b"a: b\r\n" * 10_000, KIND),
        (part(b"model", b"m" * 10_000) + END, KIND),
        (part(b"a", b"") * (MAX_PARTS + 1) + END, KIND),
        (b"preamble\r\n" + part(b"model", b"m") + END, KIND),
        (b"\n" + part(b"model", b"m") * 2 + END, KIND),
        (b"--b \r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n" + END, KIND),
        (b"--bc" + part(b"model", b"m") + END, KIND),
        (b"--b\r\n\r\nname=model\r\n" + END, KIND),
    ],
)
def test_what_is_no_form_is_refused_without_repeating_it(body: bytes, kind: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        form_model(body, kind)
    assert len(refused.value.message) < 120


HIDDEN = b'{"kv_transfer_params":{}}'


def headed(head: bytes) -> bytes:
    return FILE % b"RIFF" + b"--b\r\n%b\r\n\r\n%b\r\n" % (head, HIDDEN) + END


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name= "vllm_xargs"',
        b'Content-Disposition: form-data; name ="vllm_xargs"',
        b'Content-Disposition: form-data; name="vllm_xargs"; name="x"',
        b'Content-Disposition: form-data; name="x"; name="vllm_xargs"',
        b'Content-Disposition: form-data; name="x"\r\nContent-Disposition: form-data; name="vllm_xargs"',
        b'Content-Disposition: form-data; name="vllm_xargs"\r\nContent-Disposition: form-data; name="x"',
        b'Content-Disposition: form-data; name="x"\r\n content-disposition: form-data; name="vllm_xargs"',
        b'Content-Disposition: form-data; name="x"\nContent-Disposition: form-data; name="vllm_xargs"',
        b'Content-Disposition: form-data; name="x"\rContent-Disposition: form-data; name="vllm_xargs"',
        b"Content-Disposition: form-data; name*=utf-8''vllm_xargs",
        b"Content-Disposition: form-data; name='vllm_xargs'; name=vllm_xargs",
        b'Content-Disposition: form-data; name="vllm\\_xargs"',
        b'Content-Disposition: form-data; name="vllm_xargs" ; foo=1',
        b'Content-Disposition: form-data; name=""vllm_xargs""',
        b'Content-Disposition: form-data; filename="a"; name="vllm_xargs"',
        b'Content-Disposition: form-data; name="x"; filename="\\"; name="vllm_xargs"',
        b'Content-Disposition : form-data; name="vllm_xargs"',
        b'Content-Disposition: form-data;\r\n name="vllm_xargs"',
        b'Content-Disposition: attachment; name="vllm_xargs"',
    ],
)
def test_a_name_that_servers_may_read_differently_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="Each part of the form must have one"):
        form_model(headed(head), KIND)


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition:form-data;name="vllm_xargs"',
        b"content-disposition: form-data; name=vllm_xargs",
        b'A: b\r\nCONTENT-DISPOSITION: Form-Data; Name="vllm_xargs"; filename="a;b\\"c"\r\nContent-Length: 5',
        b"Content-Disposition: form-data; name=vllm_xargs; filename=a; filename*=utf-8''a%20b",
    ],
)
def test_a_name_is_found_as_clients_spell_it(head: bytes) -> None:
    with pytest.raises(ForbiddenFieldError):
        form_model(headed(head), KIND)


@pytest.mark.parametrize(
    "kind",
    [
        b"multipart/form-data; boundary=a; boundary=b",
        b'multipart/form-data; boundary="a"; boundary=b',
        b'multipart/form-data; x=";boundary=a"; boundary=b',
        b"multipart/form-data; boundary= b",
        b"multipart/form-data; boundary =b",
        b"multipart/form-data; charset=utf-7; boundary=b",
        b"multipart/form-data; boundary=b; charset=utf-16",
        b"multipart/form-data; boundary*=utf-8''b; boundary=b",
        b"multipart/form-data; boundary=b, multipart/form-data; boundary=a",
        b"multipart/form-data; boundary=\xe9",
    ],
)
def test_a_boundary_that_servers_may_read_differently_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="must name one boundary"):
        form_model(part(b"model", b"m") + END, kind)


def test_a_part_begins_only_where_its_boundary_has_a_line_of_its_own() -> None:
    shown = part(b"prompt", b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nshown')
    assert form_model(shown + part(b"model", b"m") + END, KIND) == "m"
    assert form_model(shown + END, KIND) is None


async def by_httpx() -> tuple[bytes, bytes]:
    files = {"file": ('a b;"\u00e9.wav', b"RIFF", "audio/wav")}
    request = httpx.Request("POST", "http://a", data={"model": "m", "prompt": "p"}, files=files)
    return request.read(), request.headers["content-type"].encode()


async def by_aiohttp(*, quoted: bool) -> tuple[bytes, bytes]:
    form = aiohttp.FormData(quote_fields=quoted)
    form.add_field("file", b"RIFF", filename="a b;\u00e9.wav", content_type="audio/wav")
    form.add_field("model", "m")
    made = form()
    return await made.as_bytes(), made.headers["content-type"].encode()


async def by_openai() -> tuple[bytes, bytes]:
    import httpx2
    import openai

    sent: list[tuple[bytes, bytes]] = []

    async def keep(request: httpx2.Request) -> httpx2.Response:
        sent.append((await request.aread(), request.headers["content-type"].encode()))
        return httpx2.Response(200, json={"text": ""})

    async with openai.AsyncOpenAI(
        api_key="k", base_url="http://a", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(keep))
    ) as client:
        await client.audio.transcriptions.create(
            file=("\u00e9.wav", b"RIFF"), model="m", timestamp_granularities=["word"], extra_body={"vllm_xargs": "{}"}
        )
    return sent[0]


@pytest.mark.parametrize(
    "client", [by_httpx, by_openai, partial(by_aiohttp, quoted=True), partial(by_aiohttp, quoted=False)]
)
async def test_the_forms_of_real_clients_are_read(client: Callable[[], Awaitable[tuple[bytes, bytes]]]) -> None:
    assert form_model(*await client()) == "m"


def test_json_is_no_form() -> None:
    assert not is_form(b"application/json")


def test_a_form_names_no_cache_of_another_engine():
    model = part(b"model", b"m")
    assert form_model(model + part(b"vllm_xargs", b'{"mine":1}') + END, KIND) == "m"
    with pytest.raises(ForbiddenFieldError):
        form_model(part(b"vllm_xargs", b'{"kv_transfer_params":""}') + model + END, KIND)
    with pytest.raises(InvalidRequestError, match="more than one `vllm_xargs`"):
        form_model(part(b"vllm_xargs", b"{}") * 2 + END, KIND)
    for broken in (b"{", b"[" * 100_000):
        with pytest.raises(InvalidRequestError):
            form_model(model + part(b"vllm_xargs", broken) + END, KIND)
