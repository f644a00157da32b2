"""Commands in a pipe: answers in pieces and in order, Ctrl-C, a reader that leaves, cut texts."""

import functools
import io
import os
import signal
import subprocess
import sys
import time

import pytest

from train import classification, language_model, translation
from train.lines import arriving_lines, report_cut_texts

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture(scope="module")
def run(run_of):
    return run_of("translation")


def start(module, *arguments, **options):
    command = [sys.executable, "-m", f"train.{module}", *map(str, arguments)]
    # A shell starts what runs in its background with SIGINT ignored, and so would we pass it on.
    hears_ctrl_c = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command, env=ENVIRONMENT, preexec_fn=hears_ctrl_c, **PIPES, **options)


def said(err):
    """What a command has written to standard error, without TensorFlow's start-up notes."""
    notes = ("WARNING: All log messages before absl", "I0000 ", "W0000 ", "E0000 ")
    return [line for line in err.decode().splitlines() if not line.startswith(notes)]


def test_lines_are_given_as_soon_as_they_are_there():
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as pipe:
        lists = arriving_lines(stream)
        pipe.write(b"a\n\nb\r\nhal")
        assert next(lists) == [b"a", b"", b"b"]
        pipe.write(b"f\n" + b"c\n" * 300)
        assert next(lists) == [b"half", *[b"c"] * 127]
        assert next(lists) == [b"c"] * 173
        pipe.write(b"no end\r")
        pipe.close()
        assert list(lists) == [[b"no end"]]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_byte_order_mark_is_left_out_before_the_first_line_only(end):
    mark = b"\xef\xbb\xbf"
    alone, two = (
        io.BufferedReader(io.BytesIO(mark + content + end)) for content in (b"a", b"a\n" + mark)
    )
    assert list(arriving_lines(alone)) == [[b"a"]]
    assert [line for lines in arriving_lines(two) for line in lines] == [b"a", mark]


@pytest.mark.slow
def test_translations_come_in_pieces_until_ctrl_c(run):
    process = start("translation", "translate", "--run", run)
    for lines in (b"abc\n", b"fed cba\nab\n"):
        process.stdin.write(lines)
        process.stdin.flush()
        for _ in range(lines.count(b"\n")):
            assert process.stdout.readline().endswith(b"\n")
    time.sleep(0.3)  # between the answer and the wait for another line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, said(err)) == (130, b"", ["Stopped after 3 lines."])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("translation", ["translate"]),
        pytest.param("language_model", ["sample", "--length=100000"], marks=pytest.mark.soak),
    ],
)
def test_a_reader_that_leaves_ends_it_quietly(module, arguments, run_of):
    process = start(module, *arguments, "--run", run_of(module))
    process.stdin.write(b"abc\n" * 200)
    process.stdin.close()
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=300) == 141
    with process.stderr as errors:
        assert said(errors.read()) == []


class Interrupted(io.StringIO):
    """Standard output in whose fifth character Ctrl-C comes."""

    def write(self, text):
        before = len(self.getvalue())
        super().write(text)
        if before < 5 <= len(self.getvalue()):
            raise KeyboardInterrupt
        return len(text)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_ctrl_c_ends_the_line_of_a_sample(run_of, monkeypatch, capsys):
    flags = ["--run", str(run_of("language_model")), "--length=100000", "--prompt=the"]
    out = Interrupted()
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "stdout", out)
        language_model.main(["sample", *flags])
    assert (stopped.value.code, capsys.readouterr().err) == (130, "")
    assert out.getvalue().startswith("the") and out.getvalue().endswith("\n")


@pytest.mark.slow
def test_ctrl_c_in_an_evaluation_says_that_nothing_was_measured(run, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_transformer.data.PairStream", interrupt)
    with pytest.raises(SystemExit) as stopped:
        translation.main(["evaluate", f"--run={run}", "--source=a", "--target=b"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "Stopped. Nothing was measured.\n"


@pytest.mark.slow
def test_ctrl_c_in_an_export_leaves_nothing(run, tmp_path):
    flags = ["--run", run, "--directory", tmp_path / "models", "--name=letters"]
    process = start("translation", "export", *flags, start_new_session=True)
    while not list(tmp_path.glob("models/.letters-*.export/letters/1/*")):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=300)
    assert (process.returncode, said(err)) == (130, ["Stopped. Nothing was published."])
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_translate_and_evaluate_say_which_lines_were_cut(run, tmp_path, monkeypatch, capfd):
    lines = ["abc", "fed " * 99, "a", *["cab " * 50] * 7]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    expected = (
        "8 of 10 texts are longer than 24 tokens and were truncated at the end: "
        "lines 2, 4, 5, 6, 7 and 3 more.\n"
    )
    with open(tmp_path / "text") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        translation.main(["translate", "--run", str(run)])
    assert capfd.readouterr().err.endswith(expected)
    flags = ["--source", str(tmp_path / "text"), "--target", str(tmp_path / "text")]
    translation.main(["evaluate", "--run", str(run), *flags])
    assert capfd.readouterr().err.endswith(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_classify_and_evaluate_say_which_texts_lost_their_middle(
    run_of, tmp_path, monkeypatch, capfd
):
    long = "day " * 9
    (tmp_path / "texts.tsv").write_text(f"a day\tgood\n{long}\tgood\na\tbad\n" * 5)
    for place, text in (("good/1", "day"), ("bad/2", long), ("bad/3", "a")):
        (tmp_path / "texts" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / f"{place}.txt").write_text(text)
    run = ["--run", str(run_of("classification"))]
    (tmp_path / "lines").write_text(f"a\n{long}\n")
    with open(tmp_path / "lines") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        classification.main(["classify", *run])
    how = "texts are longer than 8 tokens and were read without their middle:"
    assert capfd.readouterr().err.endswith(f"1 of 2 {how} lines 2.\n")
    classification.main(["evaluate", "--tsv", str(tmp_path / "texts.tsv"), *run])
    assert capfd.readouterr().err.endswith(f"5 of 15 {how} lines 2, 5, 8, 11, 14.\n")
    classification.main(["evaluate", "--folder", str(tmp_path / "texts"), *run])
    assert capfd.readouterr().err.endswith(f"1 of 3 {how} files {tmp_path}/texts/bad/2.txt.\n")


def test_nothing_is_said_of_texts_that_were_read_whole(capsys):
    report_cut_texts([], 5, 8)
    assert capsys.readouterr().err == ""
