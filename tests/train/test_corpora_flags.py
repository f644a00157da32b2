"""Which texts a training reads: every text given by a flag is read, or the flag is named."""

import itertools
import logging
import random
import re
from unittest import mock

import pyarrow
import pytest
from pyarrow import parquet

from keras_transformer.data import ParallelText, streams, tables, text_files
from train import convert, loop, translation
from train.classification import ClassificationConfig, ClassificationExperiment
from train.language_model import LanguageModelConfig, LanguageModelExperiment
from train.launch import __main__ as launch
from train.pretraining import PretrainingConfig, PretrainingExperiment
from train.settings import flag_of
from train.translation import TranslationConfig, TranslationExperiment

CASES = 200  # drawn combinations of each command, most of which are refused


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Texts, one for each flag, and the list of those that are read."""
    lines = [f"{'abcdefg'[i % 7]} b{i}\t{'xy'[i % 2]}" for i in range(20)]
    for name in ("tsv", "valid_tsv"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    table = pyarrow.table({
        name: [line.split("\t")[side] for line in lines]
        for side, names in enumerate((("source", "text"), ("target", "label")))
        for name in names
    })  # fmt: skip
    for name in ("table", "valid_table"):
        parquet.write_table(table, tmp_path / name)
    for name in ("source", "target", "valid_source", "valid_target", "text", "valid_text"):
        (tmp_path / name).write_text("a b c\n\nb a\n\n" * 10)
    for name, label in itertools.product(("folder", "valid_folder"), "xy"):
        (tmp_path / name / label).mkdir(parents=True)
        (tmp_path / name / label / "1.txt").write_text(f"{label} a. b.")
    read = set()

    def noted(function):
        def note(path):
            read.add(str(path))
            return function(path)

        return note

    for module in (text_files, streams):
        monkeypatch.setattr(module, "opened", noted(text_files.opened))
    monkeypatch.setattr(streams, "table_files", noted(tables.table_files))
    return tmp_path, read


TEXTS = {
    TranslationExperiment: (
        *("source", "target", "valid_source", "valid_target", "tsv", "valid_tsv"),
        *("table", "valid_table"),
    ),
    ClassificationExperiment: (
        "folder",
        "valid_folder",
        "tsv",
        "valid_tsv",
        "table",
        "valid_table",
    ),
    LanguageModelExperiment: ("text", "valid_text"),
}
CONFIGS = {
    TranslationExperiment: TranslationConfig,
    ClassificationExperiment: ClassificationConfig,
    LanguageModelExperiment: LanguageModelConfig,
    PretrainingExperiment: PretrainingConfig,
}
OTHERS = {
    "hold_out": {ClassificationExperiment: 1, LanguageModelExperiment: 0.1},
    "patience": dict.fromkeys(CONFIGS, 2),
    "bleu_every": {TranslationExperiment: 1},
    "data_dir": {
        TranslationExperiment: "nowhere",
        ClassificationExperiment: "nowhere",
        LanguageModelExperiment: "nowhere",
    },
}


def measured(experiment):
    return experiment.valid_text is not None and len(experiment.valid_text) > 0


@pytest.mark.parametrize("experiment", TEXTS)
def test_every_text_is_read_or_its_flag_is_named(experiment, files):
    folder, read = files
    draw = random.Random(experiment.__name__)
    accepted = 0
    for _ in range(CASES):
        names = [name for name in TEXTS[experiment] if draw.random() < 0.3]
        others = {
            name: values[experiment]
            for name, values in OTHERS.items()
            if experiment in values and draw.random() < 0.3
        }
        texts = {name: str(folder / name) for name in names}
        read.clear()
        flags = [flag_of(name) for name in (*names, *others)]
        try:
            given = CONFIGS[experiment](**texts, **others)
            ready = experiment(given)
        except ValueError as error:
            assert "\n" not in str(error) and not read, "refused before anything is read"
            assert re.search(r"Give (both|one).*--", str(error))
            continue
        accepted += 1
        assert ready.train_text
        is_measured = measured(ready)
        for name in names:
            assert any(path.startswith(str(folder / name)) for path in read), (flags, read)
        assert (
            is_measured
            == given.has_validation()
            == any(name.startswith("valid") or name == "hold_out" for name in (*names, *others))
        )
        unused = given.without_effect()
        assert ("patience" in unused) == ("patience" in others and not is_measured)
        assert ("bleu_every" in unused) == ("bleu_every" in others and not is_measured)
        assert ("data_dir" in unused) == ("data_dir" in others)
    assert accepted >= 5


@pytest.mark.parametrize("train", ["pair", "tsv", "table"])
@pytest.mark.parametrize("valid", ["pair", "tsv", "table"])
def test_training_and_validation_text_may_be_of_different_kinds(train, valid, files):
    folder, _ = files
    names = {"pair": ("source", "target"), "tsv": ("tsv",), "table": ("table",)}
    given = [*names[train], *(f"valid_{name}" for name in names[valid])]
    ready = TranslationExperiment(TranslationConfig(**{name: str(folder / name) for name in given}))
    first = {"pair": "a b c", "tsv": "a b0", "table": "a b0"}
    assert ready.train_text.sources[0] == first[train]
    assert ready.valid_text.sources[0] == first[valid]


@pytest.mark.parametrize("packed", [False, True])
def test_a_language_model_reads_a_column_of_a_table(packed, tmp_path):
    parquet.write_table(pyarrow.table({"t": ["a b", "c"]}), tmp_path / "a.parquet")
    table = str(tmp_path / "a.parquet")
    config = LanguageModelConfig(text=table, valid_text=table, text_column="t", packed=packed)
    text = [b"a b\n", b"c\n"]
    ready = LanguageModelExperiment(config)
    assert (ready.train_text, ready.valid_text) == (text, text)


def test_a_data_set_may_have_a_validation_text_of_its_own(files, monkeypatch):
    folder, _ = files
    splits = []

    def builder_of(name, split, data_dir):
        splits.append(split)
        info = mock.Mock(full_name=name, splits={split: mock.Mock(num_bytes=1)})
        return mock.Mock(info=info)

    monkeypatch.setattr(streams, "builder_of", builder_of)
    monkeypatch.setattr(streams, "languages_of", lambda *_: ("en", "de"))
    monkeypatch.setattr(streams, "pairs_of_dataset", lambda *_: iter([("a", "b")]))
    ready = TranslationExperiment(
        TranslationConfig(dataset="some", valid_tsv=str(folder / "valid_tsv"))
    )
    assert ready.valid_text.sources[0] == "a b0" and not splits
    for each in (ready, TranslationExperiment(TranslationConfig(dataset="some"))):
        assert each.train_text and each.valid_text
    assert splits == ["train", "train", "validation"]


NO_EFFECT = [
    (TranslationConfig(tsv="a", row_multiple=3), ["row_multiple"]),
    (TranslationConfig(tsv="a", row_multiple=3, shapes=2), []),
    (TranslationConfig(tsv="a", row_multiple=3, packed=True), []),
    (TranslationConfig(tsv="a", source_column="en"), ["source_column"]),
    (TranslationConfig(tsv="a", valid_table="b", source_column="en"), []),
    (ClassificationConfig(tsv="a", label_column="en"), ["label_column"]),
    (LanguageModelConfig(text="a.txt", text_column="en"), ["text_column"]),
    (LanguageModelConfig(text="a.parquet", text_column="en"), []),
    (LanguageModelConfig(text="a.txt", vocabulary_size=300), ["vocabulary_size"]),
    (LanguageModelConfig(text="a.txt", tokens="pieces", vocabulary_size=300), []),
    (LanguageModelConfig(text="a.txt", model="transformer_xl", stride=3), ["stride"]),
    (LanguageModelConfig(text="a.txt", hold_out=0.1, packed=True, stride=3), ["stride"]),
    (LanguageModelConfig(text="a.txt", hold_out=0.1, stride=3), []),
    (LanguageModelConfig(text="a.txt", packed=True, evaluate_every=3), ["evaluate_every"]),
    (LanguageModelConfig(text="a.txt", model="transformer_xl", evaluate_every=3),
     ["evaluate_every"]),
    (LanguageModelConfig(text="a.txt", shapes=3, row_multiple=2), ["shapes", "row_multiple"]),
    (PretrainingConfig(documents="a", shapes=3, row_multiple=2), []),
    (PretrainingConfig(documents="a", hold_out=3, patience=2), []),
]  # fmt: skip


@pytest.mark.parametrize(("given", "names"), NO_EFFECT)
def test_a_setting_without_effect_is_named_in_a_warning(given, names, caplog):
    caplog.set_level(logging.WARNING)
    assert sorted(given.without_effect()) == sorted(names)
    loop.warn_of_no_effect(given, given)
    assert len(caplog.messages) == len(names)
    for name in names:
        assert any(
            m.startswith(f"{flag_of(name)} has no effect: it needs ") for m in caplog.messages
        )


@pytest.mark.parametrize(
    ("cls", "name", "texts"),
    [
        (
            TranslationConfig,
            "multi30k",
            {"source": "a", "target": "b", "valid_source": "c", "valid_target": "d"},
        ),
        (TranslationConfig, "tatoeba", {"tsv": "a"}),
        (ClassificationConfig, "imdb", {"folder": "a"}),
        (ClassificationConfig, "sst2", {"tsv": "a", "valid_tsv": "b"}),
        (PretrainingConfig, "bert_imdb", {"documents": "a"}),
        *(
            (LanguageModelConfig, f"shakespeare{kind}", {"text": "a.txt"})
            for kind in ("", "_cpu", "_gpt2")
        ),
    ],
)
def test_every_setting_of_an_experiment_has_an_effect(cls, name, texts):
    assert cls.load(name).replace(**texts).without_effect() == {}


@pytest.mark.parametrize(
    ("run", "flags", "expected"),
    [
        (translation.main, "--virtual-devices=2 --strategy=one", "--virtual-devices needs another"),
        (convert.main, "--from=a --dtype=int8", "--dtype needs --to"),
        (
            launch.main,
            "--workers=2 --launcher=ray --start-timeout=3 -- true",
            "--start-timeout",
        ),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(run, flags, expected, tmp_path, capsys):
    where = [] if run is launch.main else ["--run", str(tmp_path / "run")]
    command = flags.split()
    place = 1 if command[0] == "translate" else 0
    with pytest.raises(SystemExit) as caught:
        run([*command[:place], *where, *command[place:]])
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1 and expected in message, message


def test_a_share_that_holds_out_nothing_is_refused(files):
    folder, _ = files
    with pytest.raises(ValueError, match=r"must hold out at least one .*0.0001 of a text of 120"):
        LanguageModelExperiment(
            LanguageModelConfig(text=str(folder / "text"), hold_out=0.0001)
        ).read_texts()


def batches_of(experiment, path, tokenizer):
    experiment.prepare(path, tokenizer)
    return experiment.make_batches(tokenizer)


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path, caplog):
    draw = random.Random(5)
    empty = ("", " ", "\t", "\u200b", "\u00a0 ")
    words = [("a b", "b a"), ("b", "a b"), ("a a a", "b")]
    whole = [words[draw.randrange(3)] for _ in range(23)]
    pairs = [*whole, *((text, "a") for text in empty), *(("a", text) for text in empty), ("", "")]
    draw.shuffle(pairs)
    expected = [pair for pair in pairs if pair in words]
    settings = TranslationConfig(vocabulary_size=264, tokens_per_batch=64, max_length=16)
    texts = [ParallelText(*map(list, zip(*rows, strict=True))) for rows in (pairs, expected)]
    ours, theirs = (TranslationExperiment(settings, (text, text)) for text in texts)
    tokenizer = theirs.make_tokenizer()
    batches, plain = (
        batches_of(each, tmp_path / name, tokenizer) for name, each in (("a", ours), ("b", theirs))
    )
    assert batches.num_pairs == 23 and batches.checksum() == plain.checksum()
    assert caplog.messages == ["Dropped 11 of 34 training examples: pairs with an empty side."]
    rows = sum(len(labels) for _, labels in ours.validation(tokenizer))
    assert rows == 34, "the validation text is measured as it is"


def test_empty_texts_are_dropped_but_evaluated(tmp_path, caplog):
    rows = ["a b\tx", "\ty", "b\ty", "  \tx", "\t", "b a\tx"]
    (tmp_path / "texts").write_text("".join(f"{row}\n" for row in rows))
    given = {"tsv": str(tmp_path / "texts"), "valid_tsv": str(tmp_path / "texts")}
    ready = ClassificationExperiment(ClassificationConfig(**given))
    assert ready.train_text.texts == ["a b", "b", "b a"]
    assert ready.train_text.labels == [("x",), ("y",), ("x",)]
    assert len(ready.valid_text.texts) == 6
    assert caplog.messages == ["Dropped 3 of 6 training examples: empty texts."]


def test_empty_documents_are_dropped_and_counted(tmp_path, caplog):
    settings = LanguageModelConfig(packed=True, context=8, batch_size=2)
    text = [b"\n\n", b"  \n\n", b"ab a\n\n", b"b a b\n"]
    ready = LanguageModelExperiment(settings, (text, text))
    batches = batches_of(ready, tmp_path / "data", ready.make_tokenizer())
    assert batches.num_documents == 2
    assert caplog.messages == ["Dropped 2 of 4 training examples: empty documents."]


def test_documents_without_text_are_dropped_and_counted(tmp_path, caplog):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(("a. b.", "", "b. a.", " \n")):
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    ready = PretrainingExperiment(
        PretrainingConfig(documents=str(tmp_path / "texts"), vocabulary_size=8)
    )
    batches = batches_of(ready, tmp_path / "data", ready.make_tokenizer())
    assert batches.num_dropped == 2
    assert any(re.search(r"2 of 4 documents", message) for message in caplog.messages)
