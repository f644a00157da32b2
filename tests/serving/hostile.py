"""Hostile requests, drawn from a seed, and the process that must survive them."""

import collections
import json
import random
import subprocess

import numpy as np

from keras_transformer.serving.publishing import c_api

FLOAT, INT32, STRING = 1, 3, 7  # dtypes in signatures, as in c_api.py

TEXTS = [
    b"", b" ", b"a dog", b"It is ten past six.", b"<s>", b"</s>", b"<pad>", b"<unk>", b"[PAD]",
    b"<s>a</s><pad>", b"<0x41>", b"\x00", b"a\x00b", b"\xff\xfe\x80", b"\xe2\x82", "ü🦜日".encode(),
    b"\xf0\x9f\xa6", b"\xed\xa0\x80", b"\n\t\r", b"<|endoftext|>", b"a" * 300, b"dog " * 200,
    "\u200b\u202e\ufeff\u0301".encode(), b"\\u0000\"}]", "▁".encode() * 9,
]  # fmt: skip
INTEGERS = [0, 1, 2, 3, 4, 5, 7, 9, 306, 307, 2**30, 2**31 - 1, -1, -7, -(2**31), -(2**31) + 1]
REALS = [0.0, -0.0, 1.0, 0.7, 1e-45, 1e-5, 1e38, -1.0, -1e38, np.nan, np.inf, -np.inf]
NOT_OF_THE_DTYPE = {
    STRING: [
        5,
        None,
        True,
        0.5,
        {},
        {"b64": 3},
        {"b64": "?"},
        {"b64": "YQ=", "x": 1},
        "\ud800",
        "\udcff",
    ],
    INT32: [2**31, -(2**31) - 1, 2**63, 10**400, 0.5, 1e300, None, "7", {}, float("nan"), True],
    FLOAT: [1e39, -1e300, 10**400, None, "0.7", {}, {"b64": "YQ=="}, False],
}
NOT_REQUESTS = [
    b"", b"{", b"null", b"[]", b"7", b'"text"', b"[" * 5000, b'{"inputs": []}', b'{"inputs": 7}',
    b'{"inputs": {"\\ud800": []}}', b'{"signature_name": "\\udcff"}', b'{"signature_name": []}',
    b'{"signature_name": null}', b'{"inputs": null}', b"\xff\xfe", b"9" * 5000, b'{"inputs": {}}',
]  # fmt: skip

# Outputs whose columns mean something up to a length only, which another output tells.
LENGTH_OF = {"token_ids": "length"}


class HostileRequests:
    """Draws requests to the signatures of a model; the same seed draws the same ones.

    Args:
        signatures: as `c_api.py --signatures` prints them.
        seed: any integer.
        most_rows: of the largest requests.
    """

    def __init__(self, signatures, seed, most_rows=1000):
        self.signatures, self.random, self.most_rows = signatures, random.Random(seed), most_rows

    def draw(self):
        """A request, a dict or a line that is none, and whether it is sound.

        A sound request has every input, of its dtype, with equal numbers of rows; its values
        are as bad as they can be. It must be answered, the others refused.
        """
        choice = self.random.random()
        if choice < 0.01:
            return self.random.choice(NOT_REQUESTS), False
        if choice < 0.02:
            return self._bytes(60).replace(b"\n", b"") + b"}", False
        name, rows = self.random.choice(sorted(self.signatures)), self._rows()
        request = self._sound(name, rows)
        if choice < 0.10:
            specs = self.signatures[name]["inputs"]
            return request, not self._spoil(request["inputs"], specs, rows)
        return request, True

    def largest(self):
        """A request of the most rows to every signature: what the memory must hold anyway."""
        return [self._sound(name, self.most_rows) for name in sorted(self.signatures)]

    def _sound(self, name, rows):
        specs = self.signatures[name]["inputs"]
        inputs = {key: self._values(spec, rows) for key, spec in sorted(specs.items())}
        return {"signature_name": name, "inputs": inputs, "shapes": True}

    def _rows(self):
        small = self.random.choice([0, 1, 1, 2, 2, 3, 3, 5, 7])
        choice = self.random.random()
        return small if choice < 0.97 else self.random.randint(8, 50) if choice < 0.993 else (
            self.random.randint(self.most_rows // 2, self.most_rows)
        )  # fmt: skip

    def _values(self, spec, rows):
        columns = self.random.choice([0, 1, 2, 3, 5, 8, 13])
        shape = [rows, *(columns if size < 0 else size for size in spec["shape"][1:])]
        draw = {STRING: self._text, INT32: self._integer, FLOAT: self._real}[spec["dtype"]]
        return self._nested(shape, draw)

    def _nested(self, shape, draw):
        return [self._nested(shape[1:], draw) if shape[1:] else draw() for _ in range(shape[0])]

    def _text(self):
        choice = self.random.random()
        text = self.random.choice(TEXTS)
        if choice < 0.3:
            text = self._bytes(30)
        elif choice < 0.6:
            text += self.random.choice(TEXTS)
            text = text[: self.random.randint(0, len(text))]  # also in the middle of a character
        try:
            return text.decode() if choice < 0.8 else c_api.to_json(text)
        except UnicodeDecodeError:
            return c_api.to_json(text)

    def _integer(self):
        return self.random.choice(INTEGERS) if self.random.random() < 0.5 else self._small_integer()

    def _small_integer(self):
        return self.random.randint(-2, 320)

    def _real(self):
        return self.random.gauss(0, 2) if self.random.random() < 0.9 else self.random.choice(REALS)

    def _bytes(self, most):
        return self.random.randbytes(self.random.randint(0, most))

    def _spoil(self, inputs, specs, rows):
        """Makes a request unsound; False if nothing could be spoiled in it."""
        key = self.random.choice(sorted(inputs))
        way, values = self.random.randrange(5), inputs[key]
        if way == 0:
            del inputs[key]
        elif way == 1:
            inputs["further"] = []
        elif way == 2 and rows and len(specs[key]["shape"]) == 1:
            values[self.random.randrange(rows)] = self.random.choice(
                NOT_OF_THE_DTYPE[specs[key]["dtype"]]
            )
        elif way == 3 and len(inputs) > 1:
            inputs[key] = values + values[-1:] if values else self._values(specs[key], 1)
        elif way == 4 and rows:
            inputs[key] = [values, *values] if self.random.random() < 0.5 else values[0]
        else:
            return False
        return True


class Server:
    """A bare process that answers from a SavedModel, asked one request at a time."""

    def __init__(self, path, onednn=True):
        command, environment = c_api.bare_command(path)
        environment["TF_ENABLE_ONEDNN_OPTS"] = str(int(onednn))
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, request):
        line = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process died, exit code {self.process.wait()}, of: {line[:2000]!r}"
        return json.loads(answer)

    def memory(self):
        """Resident memory in MiB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(file.read().split("VmRSS:")[1].split()[0]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def attack(path, row_shapes, count, seed, most_rows=1000, onednn=True, report=None, every=1000):
    """Sends hostile requests and checks every answer.

    Args:
        path: folder of the SavedModel.
        row_shapes: as of a `ServedModel`.
        count: of requests, those that ask a row again not counted.
        seed: of the requests.
        most_rows: as of `HostileRequests`.
        onednn: whether TensorFlow computes with oneDNN.
        report: called with (requests so far, MiB, counts) after each `every` of them.
        every: number of requests.

    Returns:
        The pair of counts of what happened, and the resident MiB after each `every` requests.
    """
    requests, counts, memory = (
        HostileRequests(signatures_of(path), seed, most_rows),
        collections.Counter(),
        [],
    )
    with Server(path, onednn) as server:
        for request in requests.largest():
            assert "outputs" in server.ask(request)
        for number in range(1, count + 1):
            request, is_sound = requests.draw()
            answer = server.ask(request)
            where = f"request {number} of seed {seed}: {json.dumps(request, default=repr)[:3000]}"
            if is_sound:
                counts["answers"] += 1
                assert "outputs" in answer, f"{answer}, {where}"
                rows = len(next(iter(request["inputs"].values())))
                _check_shapes(answer, row_shapes[request["signature_name"]], rows, where)
                counts["rows"] += rows
                if rows > 1:
                    counts["rows asked alone"] += 1
                    row = requests.random.randrange(rows)
                    counts["rounded"] += _check_row_alone(server, request, answer, row, where)
            else:
                counts["errors"] += 1
                assert answer.keys() == {"error"} and answer["error"], f"{answer}, {where}"
            if number % every == 0:
                memory.append(server.memory())
                if report:
                    report(number, memory[-1], counts)
    return counts, memory


def _check_shapes(answer, row_shapes, rows, where):
    assert answer["shapes"].keys() == row_shapes.keys(), where
    for key, shape in answer["shapes"].items():
        assert len(shape) == len(row_shapes[key]) + 1 and shape[0] == rows, (key, shape, where)
        for size, expected in zip(shape[1:], row_shapes[key], strict=True):
            assert expected in (None, size), (key, shape, where)


def _check_row_alone(server, request, answer, row, where):
    """Compares a row's answer with its answer alone; returns whether rounding told them apart.

    Kernels add in another order for another number of rows. Where two tokens are all but
    equally good that decides which one is chosen. So a row that differs is asked once more,
    beside copies of itself: the same number of rows, and no neighbour but itself.
    """
    found = {key: values[row] for key, values in answer["outputs"].items()}
    rows = answer["shapes"][next(iter(found))][0]
    for count in (1, rows):
        inputs = {key: [values[row]] * count for key, values in request["inputs"].items()}
        alone = server.ask({**request, "inputs": inputs})
        assert "outputs" in alone, f"{alone}, row {row} of {where}"
        expected = {key: values[0] for key, values in alone["outputs"].items()}
        different = [key for key in found if not _is_same(key, expected, found)]
        if not different:
            return count > 1
    raise AssertionError(
        f"{different}: {expected} beside copies, {found} in the batch, row {row} of {where}"
    )


def _is_same(key, expected, found):
    value, other = expected[key], found[key]
    length = expected.get(LENGTH_OF.get(key))
    if isinstance(value, list) and length is not None:
        value, other = value[:length], other[:length]
    return is_equal(value, other)


def is_equal(value, other):
    if isinstance(value, list) and any(isinstance(part, (list, float)) for part in value):
        value, other = np.array(value, float), np.array(other, float)
    if isinstance(value, (float, np.ndarray)):
        # Infinities and NaN where the others are; a number is compared with the row's largest.
        with np.errstate(invalid="ignore"):
            scale = np.max(np.abs(value), initial=1.0, where=np.isfinite(value))
            return np.allclose(value, other, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)
    return value == other


def signatures_of(path):
    """The signatures of a SavedModel, as the bare process reads them."""
    command, environment = c_api.bare_command(path, "--signatures")
    printed = subprocess.run(command, env=environment, capture_output=True, check=True)
    return json.loads(printed.stdout)
