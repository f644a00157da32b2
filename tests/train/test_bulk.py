"""Files answered line by line, in one process and in several, of which one is killed."""

import gzip
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

from keras_transformer.serving import Generator, Translator
from train import bulk, classification, language_model, translation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(run_of):
    return run_of("translation")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files with long lines, empty ones, bytes that are not UTF-8, and no line feed at the end."""
    folder = tmp_path_factory.mktemp("in")
    lines = [f"A dog runs {number} times." for number in range(40)]
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    with gzip.open(folder / "b.txt.gz", "wb") as file:
        file.write(b"A cat.\r\n\n\xff\xfe dog\nthe end" + b" and the end" * 300)
    (folder / "c.txt").write_bytes(b"")
    return folder


def lines_in(path):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def answers(run, files, tmp_path_factory):
    output = tmp_path_factory.mktemp("out")
    translation.main(["translate", f"--run={run}", f"--input={files}/*.txt*", f"--output={output}"])
    return output


def test_each_line_has_its_answer(run, files, answers):
    translator = Translator.load(run)
    texts = {name: lines_in(files / name) for name in ("a.txt", "c.txt")} | {
        "b.txt.gz": ["A cat.", "", "\ufffd\ufffd dog", "the end" + " and the end" * 300]
    }
    assert sorted(texts) == sorted(path.name for path in answers.iterdir())
    for name, lines in texts.items():
        expected = translator.answer(lines)["translation"] if lines else []
        assert lines_in(answers / name) == [line.decode().replace("\n", " ") for line in expected]


def test_lines_that_were_cut_or_unreadable_are_named(run, files, tmp_path, capsys):
    arguments = ["translate", f"--run={run}", f"--input={files}/b.txt.gz", f"--output={tmp_path}"]
    translation.main(arguments)
    printed = capsys.readouterr()
    assert "1 of 4 texts are longer than" in printed.err and "b.txt.gz:4" in printed.err
    assert "1 of 4 lines are not UTF-8" in printed.err and "lines b.txt.gz:3." in printed.err
    assert f"{tmp_path} holds the answers to 4 lines of 1 files." in printed.out


@pytest.fixture
def only_workers_load(monkeypatch):
    """This process must not load the model; blocks are short."""
    monkeypatch.setattr(bulk, "BLOCK", 5)
    monkeypatch.setattr(translation, "_load_translator", None)


@pytest.mark.usefixtures("only_workers_load")
def test_a_killed_process_changes_no_byte(run, files, answers, tmp_path, caplog, monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **flags):
            super().__init__(*arguments, **flags)
            started.append(self)

    def kill():
        while not started:
            time.sleep(0.05)
        time.sleep(1)
        started[0].send_signal(signal.SIGKILL)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    killer = threading.Thread(target=kill)
    killer.start()
    flags = [f"--input={files}/*.txt*", f"--output={tmp_path}/out", "--processes=2"]
    translation.main(["translate", f"--run={run}", *flags])
    killer.join()
    assert len(started) == 3
    assert "A worker died; its block will be processed again." in caplog.messages
    assert content_of(tmp_path / "out") == content_of(answers)


@pytest.mark.oracle
@pytest.mark.usefixtures("only_workers_load")
def test_a_killed_actor_of_ray_changes_no_byte(
    run, files, answers, tmp_path, capsys, caplog, monkeypatch
):
    pytest.importorskip("ray")
    import psutil  # Ray has it

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    killed, original = [], bulk.Shown.__call__

    def kill(shown, *progress):
        for process in psutil.Process().children(recursive=True) if not killed else ():
            if "ray::Holder" in "".join(process.cmdline()[:1]):
                process.kill()
                killed.append(process)
        original(shown, *progress)

    monkeypatch.setattr(bulk.Shown, "__call__", kill)
    flags = [f"--input={files}/*.txt*", f"--output={tmp_path}/out", "--runner=ray"]
    translation.main(["translate", f"--run={run}", *flags])
    told = capsys.readouterr()
    assert len(killed) == 1
    assert "A worker died; its block will be processed again." in caplog.messages
    assert "1 of 44 texts are longer than" in told.err and "44 lines of 3 files" in told.out
    assert content_of(tmp_path / "out") == content_of(answers)


@pytest.mark.oracle
def test_a_cluster_that_cannot_be_reached_is_told_at_once(
    run, files, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        address = f"localhost:{unused.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        flags = [f"--input={files}/*.txt*", f"--output={tmp_path}/out", "--runner=ray"]
        with pytest.raises(SystemExit):
            translation.main(["translate", f"--run={run}", *flags])
    error = capsys.readouterr().err
    assert f"Received: {address}: Connection refused." in error and error.count("\n") == 1


def test_files_that_are_there_are_left_out(run, files, answers, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out"
    monkeypatch.setattr(bulk, "BLOCK", 5)
    arguments = ["translate", f"--run={run}", f"--input={files}/*.txt*", f"--output={output}"]
    original = bulk.Shown.__call__

    def stop(shown, name, position, rows):
        if rows > 41:
            raise KeyboardInterrupt
        original(shown, name, position, rows)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(bulk.Shown, "__call__", stop)
        translation.main(arguments)
    assert "Stopped. 1 of 3 files are whole." in capsys.readouterr().err
    assert [path.name for path in output.iterdir()] == ["a.txt"]
    (output / "a.txt").write_text("mine")
    translation.main(arguments)
    assert "1 of 3 files are answered already" in capsys.readouterr().err
    assert (output / "a.txt").read_text() == "mine"
    assert {**content_of(output), "a.txt": b""} == {**content_of(answers), "a.txt": b""}


def test_a_classifier_answers_files_too(run_of, tmp_path):
    (tmp_path / "in.txt").write_text("a good day\na bad day\n")
    flags = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out"]
    classification.main(["classify", f"--run={run_of('classification')}", *flags])
    labels = [line.split("\t") for line in lines_in(tmp_path / "out" / "in.txt")]
    assert len(labels) == 2 and {label for label, _ in labels} <= {"good", "bad"}
    assert all(np.isfinite(float(share)) for _, share in labels)


def test_a_language_model_scores_lines(run_of, tmp_path):
    run, texts = run_of("language_model"), ["the cat", "mat"]
    content = "".join(f"{text}\n" for text in texts)
    (tmp_path / "in.txt").write_text(content, encoding="utf-8-sig")  # with a byte order mark
    flags = [f"--run={run}", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out"]
    language_model.main(["score", *flags])
    rows = [line.split("\t") for line in lines_in(tmp_path / "out" / "in.txt")]
    assert [int(count) for _, count in rows] == [6, 2]
    expected = Generator.load(run).score(texts)
    np.testing.assert_allclose([float(nats) for nats, _ in rows], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=a"], "Give both --input and --output"),
        (["--processes=2"], "--processes needs --input"),
        (["--runner=ray"], "--runner ray needs --input"),
        (["--input=*.none", "--output=out"], "Received: *.none, which does not exist"),
        (["--input=.", "--output=out"], "which is a folder"),
        (["--input={files}/*", "--output={files}"], "must be another folder than that of --input"),
        (["--input={files}/*", "--output={files}/a.txt"], "is not a folder"),
    ],
)
def test_mistakes_are_told_before_any_work(run, files, flags, message, capsys):
    flags = [flag.replace("{files}", str(files)) for flag in flags]
    with pytest.raises(SystemExit):
        translation.main(["translate", f"--run={run}", *flags])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
