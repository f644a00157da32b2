"""Texts that cannot be read are named in one line, by every flag of every command."""

import gzip
import os
import re

import pytest

from train import classification, language_model, pretraining, translation

TRAINED = {  # text flags of the trainings, each with the flags that belong to it
    "--source": (translation, ["--target", "GOOD"]),
    "--target": (translation, ["--source", "GOOD"]),
    "--valid-source": (translation, ["--source=GOOD", "--target=GOOD", "--valid-target=GOOD"]),
    "--valid-target": (translation, ["--source=GOOD", "--target=GOOD", "--valid-source=GOOD"]),
    "--tsv": (translation, []),
    "--valid-tsv": (translation, ["--tsv=TSV"]),
    "--text": (language_model, []),
    "--valid-text": (language_model, ["--text=GOOD"]),
    "classification --tsv": (classification, []),
    "classification --valid-tsv": (classification, ["--tsv=TSV"]),
}


def write_texts(folder):
    (folder / "good").write_text("a b\nb a\n")
    (folder / "good.tsv").write_text("a b\tx\nb a\ty\n")
    (folder / "directory").mkdir()
    (folder / "latin").write_bytes(b"a b\tx\n\xe9\ty\n")
    packed = gzip.compress(b"a b\tx\nb a\ty\n" * 99)
    (folder / "truncated.gz").write_bytes(packed[:-9])
    (folder / "damaged.gz").write_bytes(packed[:-8] + b"\0\1\2\3" + packed[-4:])
    (folder / "plain.gz").write_text("a b\n")


MISTAKES = {
    "nowhere.txt": "nowhere.txt, which does not exist",
    "directory": "directory, which (is a directory|has no .txt files)",
    "latin": "latin, line 2",
    "truncated.gz": "must be a complete gzip file. Received: .*truncated.gz",
    "damaged.gz": "must be a complete gzip file. Received: .*damaged.gz",
    "plain.gz": "must be a complete gzip file. Received: .*plain.gz",
}


def message_of(module, flags, capsys):
    with pytest.raises(SystemExit) as caught:
        module.main(flags)
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1, message
    return message


@pytest.mark.parametrize(
    ("flag", "name"),
    # A language model may read bytes that are no UTF-8.
    [
        (flag, name)
        for flag in TRAINED
        for name in MISTAKES
        if (flag[-4:], name) != ("text", "latin")
    ],
)
def test_what_cannot_be_read_is_named(flag, name, tmp_path, capsys):
    write_texts(tmp_path)
    module, others = TRAINED[flag]
    places = {"GOOD": str(tmp_path / "good"), "TSV": str(tmp_path / "good.tsv")}
    for word, place in places.items():
        others = [other.replace(word, place) for other in others]
    flags = [*others, flag.split()[-1], str(tmp_path / name), "--run", str(tmp_path / "run")]
    message = message_of(module, flags, capsys)
    assert re.search(MISTAKES[name], message), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("module", "flag", "name", "expected"),
    [
        (
            classification,
            "--folder",
            "good",
            "a folder of labels. Received: .*good, which is a file",
        ),
        (classification, "--folder", "no", "a folder of labels.*no, which does not exist"),
        (pretraining, "--documents", "no", "no, which does not exist"),
        (pretraining, "--documents", "latin", "must be UTF-8. Received: .*latin"),
        (pretraining, "--documents", "plain.gz", "must be a complete gzip file"),
        (pretraining, "--documents", "directory", "which has no .txt files."),
    ],
)
def test_a_folder_that_is_none_is_named(module, flag, name, expected, tmp_path, capsys):
    write_texts(tmp_path)
    run = ["--run", str(tmp_path / "run")]
    message = message_of(module, [flag, str(tmp_path / name), *run], capsys)
    assert re.search(expected, message), message


@pytest.mark.parametrize("name", ["x/1.txt", "x/broken.txt", "x/folder.txt"])
@pytest.mark.parametrize(
    ("module", "flag"), [(classification, "--folder"), (pretraining, "--documents")]
)
def test_a_file_in_a_folder_that_cannot_be_read_is_named(module, flag, name, tmp_path, capsys):
    for place in ("x/0.txt", "y/0.txt"):
        (tmp_path / "texts" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / place).write_text("a. b.")
    wrong = tmp_path / "texts" / name
    if "broken" in name:
        wrong.symlink_to(tmp_path / "nowhere")
    elif "folder" in name:
        wrong.mkdir()
    else:
        wrong.write_bytes(b"\xe9")
    flags = [flag, str(tmp_path / "texts"), "--run", str(tmp_path / "run")]
    assert str(wrong) in message_of(module, flags, capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path, capsys):
    write_texts(tmp_path)
    (tmp_path / "good").chmod(0)
    flags = ["--text", str(tmp_path / "good"), "--run", str(tmp_path / "run")]
    assert "good: Permission denied." in message_of(language_model, flags, capsys)


def test_a_file_whose_reading_fails_is_named(tmp_path, capsys):
    flags = ["--text", "/proc/self/mem", "--run", str(tmp_path / "run")]
    message = message_of(language_model, flags, capsys)
    assert "a text file that can be read. Received: /proc/self/mem: Input/output error." in message


def test_a_pipe_is_a_text_too(tmp_path, capsys):
    reading, writing = os.pipe()
    os.write(writing, b"one line\n")
    os.close(writing)
    flags = ["--tsv", f"/dev/fd/{reading}", "--run", str(tmp_path / "run")]
    assert f"/dev/fd/{reading}, line 1 with 1" in message_of(translation, flags, capsys)
    os.close(reading)
