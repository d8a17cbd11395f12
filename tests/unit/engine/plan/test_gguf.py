import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.plan.gguf import GgufError, is_gguf, read_gguf
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.said import UnknownModelError
from tests.unit.engine.plan.written import LLAMA, header, string, tensors, value, written


@pytest.fixture
def whole(tmp_path):
    return written(tmp_path / "m.gguf", LLAMA, tensors())


def test_metadata_and_tensors_are_read(whole):
    file = read_gguf(str(whole))
    assert file.metadata["llama.block_count"] == 4
    assert file.lengths == {"tokenizer.ggml.tokens": 1000}
    assert len(file.tensors) == 3 + 4 * 9
    assert file.bytes == whole.stat().st_size
    embedding = next(tensor for tensor in file.tensors if tensor.name == "token_embd.weight")
    assert (embedding.shape, embedding.block, embedding.bytes) == ((256, 1000), "q8_0", 256 * 1000 // 32 * 34)


def test_arrays_of_numbers_are_kept_as_long_as_layers_may_be_many(tmp_path):
    said = {"a": [1, 2, 3], "b": [True, False], "long": [0] * 5000, "words": ["x"] * 3, "none": []}
    file = read_gguf(str(written(tmp_path / "m.gguf", said, tensors())))
    assert file.metadata == {"a": (1, 2, 3), "b": (True, False), "none": ()}
    assert file.lengths == {"a": 3, "b": 2, "long": 5000, "words": 3, "none": 0}


def test_a_vocabulary_larger_than_what_is_read_at_once_is_passed_over(tmp_path):
    words = ["w" * (number % 50) for number in range(100_000)]
    file = read_gguf(str(written(tmp_path / "m.gguf", {"words": words, "after": 7}, tensors())))
    assert file.metadata["after"] == 7


def test_the_parts_of_a_split_model_are_one(tmp_path):
    every = tensors()
    for number, part in enumerate((every[:10], every[10:30], every[30:])):
        said = {"split.no": number, "split.count": 3, "split.tensors.count": len(every)}
        said |= {} if number else LLAMA
        written(tmp_path / f"m-{number + 1:05}-of-00003.gguf", said, part)
    file = read_gguf(str(tmp_path / "m-00001-of-00003.gguf"))
    assert len(file.tensors) == len(every)
    assert file.bytes == sum(part.stat().st_size for part in tmp_path.iterdir())
    with pytest.raises(GgufError, match=r"is part 2 of 3\nName the first one: m-00001-of-00003.gguf"):
        read_gguf(str(tmp_path / "m-00002-of-00003.gguf"))
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(GgufError, match=r"m-00003-of-00003\.gguf is missing, part 3 of 3"):
        read_gguf(str(tmp_path / "m-00001-of-00003.gguf"))


def test_parts_that_lost_their_names_or_are_of_two_models_are_told(tmp_path):
    said = {"split.no": 0, "split.count": 2, "split.tensors.count": 40}
    with pytest.raises(GgufError, match="Give the parts their names again"):
        read_gguf(str(written(tmp_path / "m.gguf", said, tensors())))
    written(tmp_path / "m-00001-of-00002.gguf", said, tensors())
    written(tmp_path / "m-00002-of-00002.gguf", {}, tensors(tied=True)[:2])
    with pytest.raises(GgufError, match="They are parts of two models"):
        read_gguf(str(tmp_path / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "it is empty"),
        (b"\0" * 1000, "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "a page of a web site"),
        (b"PK\x03\x04....", "a zip archive"),
        (b"ggjt" + b"\0" * 60, "before GGUF"),
        (b"\x89PNG....", "it begins with"),
        (b"GGUF", "it ends at byte 4"),
        (b"GGUF" + struct.pack("<I", 1), "of version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "a string at byte"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 77), "type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "of type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 1 << 60), "strings in arr"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 10, 1 << 40), "it ends at byte"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (string("k") + value(1)), "there twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("general.alignment") + value(3), "no power of two"),
    ],
)
def test_what_is_no_model_is_told_with_what_it_is(tmp_path, content, cause):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=cause) as told:
        read_gguf(str(path))
    assert str(path) in told.value.cause
    assert told.value.remedy


def _one_tensor(shape, kind, offset=0):
    described = string("t") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + described + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (_one_tensor((32,), 200), "block type 200"),
        (_one_tensor((33,), 8), "no whole blocks of q8_0"),
        (_one_tensor((1 << 63, 1 << 63), 0), "would take"),
        (_one_tensor((32,), 0, offset=1 << 63), "would take"),
        (_one_tensor((1, 1, 1, 1, 1), 0), "dimensions"),
        (_one_tensor((1024,), 0), "bytes that its tensors take"),
    ],
)
def test_a_tensor_that_cannot_be_is_told(tmp_path, content, cause):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=cause):
        read_gguf(str(path))


def test_a_download_that_was_cut_off_is_told_with_what_is_missing(whole):
    with whole.open("r+b") as file:
        file.truncate(whole.stat().st_size - 100_000)
    with pytest.raises(GgufError, match=r"it has [\d,]+ of the [\d,]+ bytes that its tensors take\nThe download"):
        read_gguf(str(whole))


def test_what_is_not_there_or_not_a_file_is_told(tmp_path):
    with pytest.raises(GgufError, match="there is no file"):
        read_gguf(str(tmp_path / "none.gguf"))
    with pytest.raises(GgufError, match="is a folder"):
        read_gguf(str(tmp_path))


def test_a_file_is_known_by_its_ending_or_its_first_bytes(tmp_path, whole):
    blob = tmp_path / "sha256-0123"
    blob.write_bytes(whole.read_bytes()[:100])
    assert is_gguf(str(blob))
    assert is_gguf("no/such/model.GGUF")
    assert not is_gguf("meta-llama/Llama-3.1-8B-Instruct")
    (tmp_path / "folder.gguf").mkdir()
    assert not is_gguf(str(tmp_path / "folder.gguf"))


START, DATA = header(LLAMA, tensors())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, len(START) - 1), st.integers(0, 255)), max_size=4),
    end=st.integers(0, len(START)) | st.just(len(START)),
)
def test_a_damaged_file_is_read_or_told_and_nothing_else(tmp_path, changes, end):
    raw = bytearray(START)
    for at, byte in changes:
        raw[at] = byte
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(raw[:end])
        file.truncate(end + DATA)
    with contextlib.suppress(GgufError, UnknownModelError):
        LlamaModel.of(read_gguf(str(path)))


def test_what_is_kept_in_memory_is_bounded(tmp_path):
    path = tmp_path / "m.gguf"
    lie = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 10, 1 << 33)
    with path.open("wb") as file:
        file.write(lie)
        file.truncate(1 << 37)  # sparse: the file is as long as it says
    tracemalloc.start()
    read_gguf(str(path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 << 20


def test_many_arrays_take_no_more_memory_than_a_few(tmp_path):
    path = tmp_path / "m.gguf"
    keys = [string(f"k{number}") + struct.pack("<IIQ", 9, 0, 4096) + bytes(4096) for number in range(1000)]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys) + bytes(32))
    file = read_gguf(str(path))
    assert file.lengths["k999"] == 4096
    assert sum(map(len, file.metadata.values())) <= 1 << 18
