"""Requests and answers as bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import wire
from bench.wire import Answer, Answers

STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\nConnection: close\r\n\r\n\r\n\r"
)
ANSWERS = [Answer(200, False), Answer(204, False), Answer(429, True)]


@given(st.lists(st.integers(0, len(STREAM))))
def test_answers_are_the_same_in_any_chunking(cuts: list[int]) -> None:
    answers, found, at = Answers(), list[Answer](), 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += answers.feed(STREAM[at:cut])
        at = cut
    assert found == ANSWERS


def test_an_answer_of_unknown_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="Content-Length"):
        Answers().feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_a_request_has_its_length_and_headers() -> None:
    head, _, body = wire.post("/x", b"abc", {"Routing-Key": "k"}).partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    assert first == b"POST /x HTTP/1.1"
    assert {b"Routing-Key: k", b"Content-Length: 3", b"Host: 127.0.0.1"} == set(headers)
    assert body == b"abc"


@given(st.lists(st.binary(max_size=300)))
def test_requests_are_loaded_as_they_were_saved(
    tmp_path_factory: pytest.TempPathFactory, requests: list[bytes]
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "requests"
    wire.save(file, requests)
    assert wire.load(file) == requests
