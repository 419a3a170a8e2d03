"""Data inside a page survives the way there, and cannot get out of its element."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmix.report.packing import pack, pack_texts, script_json, visible


def unpacked(packed: dict[str, str]) -> bytes:
    return zlib.decompress(base64.b64decode(packed["data"]))


@pytest.mark.parametrize("kind", ["float32", "uint8", "uint16", "uint32", "int32"])
def test_numbers_are_little_endian_bytes_of_their_type(kind: str) -> None:
    values = np.array([0, 1, 200], dtype=kind)
    packed = pack(values.astype(values.dtype.newbyteorder(">")))
    np.testing.assert_array_equal(np.frombuffer(unpacked(packed), dtype=values.dtype.newbyteorder("<")), values)
    assert packed["type"] == {"float32": "f32", "uint8": "u8", "uint16": "u16", "uint32": "u32", "int32": "i32"}[kind]


def test_other_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        pack(np.zeros(2))


@given(st.lists(st.text()))
def test_texts_are_exact(texts: list[str]) -> None:
    assert json.loads(unpacked(pack_texts(texts))) == texts


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_json_in_a_script_has_nothing_that_html_sees(value: Any) -> None:
    text = str(script_json({"x": value, "y": "</script><!--"}))
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"x": value, "y": "</script><!--"}


def test_what_is_not_a_number_is_refused_in_json() -> None:
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_control_characters_are_shown_as_pictures() -> None:
    assert visible("a\x00b\x07c\x7f\r\n\td") == "a␀b␇c␡␍\n\td"
