"""Commands as bytes."""

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.redis_client.resp import _pack_any, pack

WORDS = st.one_of(st.binary(), st.text(), st.integers(), st.floats(allow_nan=False), st.booleans())


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_the_compiled_packer_and_ours_agree(words: list[bytes | str | int | float]) -> None:
    assert pack(*words) == _pack_any(words)


def test_words_of_all_kinds() -> None:
    assert pack("SET", b"\x00", 1.5, 10**20) == (
        b"*4\r\n$3\r\nSET\r\n$1\r\n\x00\r\n$3\r\n1.5\r\n$21\r\n100000000000000000000\r\n"
    )


def test_subclasses_are_packed_as_text() -> None:
    class Word(enum.StrEnum):
        GET = "GET"

    assert pack(Word.GET, True) == b"*2\r\n$3\r\nGET\r\n$4\r\nTrue\r\n"


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack("SET", "\ud800")
