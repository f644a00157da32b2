"""Draws damage to files, and forged content whose checksums and lengths are right."""

import io
import json
import zipfile

from hypothesis import strategies as st

NUMBERS = [0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**62, 2**63, 2**64 - 1]
VALUES = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63,
    -(2**63), 10**400, "", "8", "\x00", "\ud800", "../../etc", "a" * 5000, [], [[]], {},
    [None], ["a"], [0] * 7, {"a": 1}, [{}], [["a", 1]], {"type": "Sequence"}, {"content": 3}, "BPE",
    "float32", "Replace",
]  # fmt: skip
BYTES = [
    b"\x00", b"\xff", b"\x80" * 10, b"\xff" * 10, b"{", b"[" * 3000, b'{"a":' * 3000, b"\n", b"'O'",
    b"\xe2\x96\x81", b"[PAD]", b"<unk>", b"\r", b"\x93NUMPY", b"PK\x05\x06",
    b"\x0a\xff\xff\xff\x7f",
    b"\x08\x03", b"\x1a\x00", b"nan", b"#version", b'"', b"<f4", b"|O", b"\xed\xa0\x80",
]  # fmt: skip
EDITS = ["flip", "set", "delete", "insert", "number", "cut", "repeat"]
JSON_EDITS = ["replace", "remove", "rename", "nest", "double"]

place = st.integers(0, 2**20 - 1)
byte_edit = st.tuples(st.sampled_from(EDITS), place, place)
json_edit = st.tuples(st.sampled_from(JSON_EDITS), place, place)


def forgeries():
    """Draws (number of the file, whether its content is taken apart first, edits)."""
    parsed = st.tuples(
        place, st.just(True), st.lists(st.one_of(json_edit, byte_edit), min_size=1, max_size=3)
    )
    damaged = st.tuples(place, st.just(False), st.lists(byte_edit, min_size=1, max_size=3))
    return st.one_of(parsed, parsed, damaged)


def forge(name, content, is_parsed, edits):
    """The forged content of a file.

    Args:
        name: of the file.
        content: of the file, bytes.
        is_parsed: whether entries of an archive, the header of safetensors and values of JSON are
            forged, with everything around them right, instead of bytes anywhere.
        edits: triples of a kind, a place and a value, as drawn.
    """
    if is_parsed and zipfile.is_zipfile(io.BytesIO(content)):
        return _with_entry(content, edits)
    if is_parsed and name.endswith(".safetensors"):
        return _with_header(content, edits)
    return _edited(content, edits)


def _edited(content, edits):
    for kind, where, what in edits:
        if kind in JSON_EDITS:
            try:
                content = _json_edited(content, kind, where, what)
                continue
            except (ValueError, RecursionError):  # not JSON, or no more
                kind = EDITS[what % len(EDITS)]
        content = _bytes_edited(content, kind, where, what)
    return content


def _with_entry(content, edits):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    chosen, result = edits[0][1] % len(entries), io.BytesIO()
    with zipfile.ZipFile(result, "w") as archive:
        for number, (name, inner) in enumerate(entries):
            # Of arrays mostly the header, which has 128 bytes.
            if number == chosen and name.endswith(".npy"):
                inner = _edited(inner[:128], edits) + inner[128:]
            elif number == chosen:
                inner = _edited(inner, edits)
            archive.writestr(zipfile.ZipInfo(name), inner)
    return result.getvalue()


def _with_header(content, edits):
    size = int.from_bytes(content[:8], "little")
    header = _edited(content[8 : 8 + size], edits)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _bytes_edited(content, kind, where, what):
    at = where % (len(content) + 1)
    rest = content[at:]
    if kind == "flip" and rest:
        return content[:at] + bytes([rest[0] ^ 1 << what % 8]) + rest[1:]
    if kind == "set" and rest:
        return content[:at] + bytes([what % 256]) + rest[1:]
    if kind == "delete":
        return content[:at] + rest[1 + what % 40 :]
    if kind == "number":
        number = NUMBERS[what % len(NUMBERS)] % 2**64
        size = (1, 2, 4, 8)[what // len(NUMBERS) % 4]
        return content[:at] + number.to_bytes(8, "little")[:size] + rest[size:]
    if kind == "cut":
        return content[:at]
    if kind == "repeat":
        return content[:at] + rest[: what % 300] * 2 + rest[what % 300 :]
    return content[:at] + BYTES[what % len(BYTES)] + rest


def _json_edited(content, kind, where, what):
    root = [json.loads(content)]
    nodes = list(_nodes(root))
    parent, key = nodes[where % len(nodes)]
    value = VALUES[what % len(VALUES)]
    if kind == "replace":
        parent[key] = value
    elif kind == "remove" and parent is not root:
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[str(value)[:20]] = parent.pop(key)
    elif kind == "nest":
        parent[key] = [parent[key]] if what % 2 else {"a": parent[key]}
    else:
        parent[key] = [parent[key], parent[key]]
    return json.dumps(root[0]).encode()


def _nodes(parent):
    """(container, key) of every value, those of the longest lists left out."""
    keys = parent if isinstance(parent, dict) else range(len(parent))
    for key in [*keys][:20]:
        yield parent, key
        if isinstance(parent[key], (dict, list)):
            yield from _nodes(parent[key])
