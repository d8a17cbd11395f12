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
        (b"preamble\r\n" + part(b"model", b"m") + END + b"epilogue", "m"),
        (b"--b\r\nContent-Type: a\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n" + END, "m"),
        (b"--b \r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n" + END, "m"),
        (part(b"model", b"") + END, ""),
        (part(b"model", "\u00e9".encode()) + END, "\u00e9"),
        (part(b"models", b"m") + FILE % b'name="model"\r\n\r\nx' + END, None),
        (b"--b\r\n\r\nname=model\r\n" + END, None),
        (END, None),
    ],
)
def test_the_model_of_a_form_is_found_wherever_it_stands(body: bytes, model: str | None) -> None:
    assert form_model(body, KIND) == model


@pytest.mark.parametrize("kind", [b'multipart/form-data; boundary="a b"', b"Multipart/Form-Data;charset=x; BOUNDARY=a"])
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
    ],
)
def test_what_is_no_form_is_refused_without_repeating_it(body: bytes, kind: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        form_model(body, kind)
    assert len(refused.value.message) < 120


def test_json_is_no_form() -> None:
    assert not is_form(b"application/json")


def test_a_form_names_no_cache_of_another_engine():
    model = part(b"model", b"m")
    assert form_model(model + part(b"vllm_xargs", b'{"mine":1}') + END, KIND) == "m"
    with pytest.raises(ForbiddenFieldError):
        form_model(part(b"vllm_xargs", b'{"kv_transfer_params":""}') + model + END, KIND)
    for broken in (b"{", b"[" * 100_000):
        with pytest.raises(InvalidRequestError):
            form_model(model + part(b"vllm_xargs", broken) + END, KIND)
