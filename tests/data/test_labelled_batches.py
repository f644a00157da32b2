import gzip

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import IdRows, LabelledStream, segments, tokenize
from keras_transformer.data.labelled_batches import LabelledBatches, cut_middle
from keras_transformer.data.labelled_text import hold_out, labelled
from keras_transformer.data.text_files import text_of
from keras_transformer.tokenizers import train_sentencepiece

TEXTS = [" ".join("ab"[int(bit)] for bit in f"{number:b}") for number in range(37)]
LABELS = [("odd",) if number % 2 else ("even",) for number in range(37)]


def labelled_batches(text, tokenizer, tokens_per_batch=8192, max_length=512, **settings):
    ids = tokenize(text.texts, tokenizer)
    labels = text.matrix(), text.names
    return LabelledBatches(ids, *labels, tokens_per_batch, max_length, **settings)


@pytest.fixture(scope="module")
def text():
    return labelled(TEXTS, LABELS)


@pytest.fixture(scope="module")
def tokenizer():
    return train_sentencepiece(TEXTS, 264)


def rows_of(dataset, tokenizer):
    """Pairs of text and place of its label, in the order of the batches."""
    rows = []
    for ids, labels in dataset:
        texts = tokenizer.detokenize(ids).numpy()
        rows += [(t.decode(), tuple(row)) for t, row in zip(texts, labels.numpy(), strict=True)]
    return rows


def test_an_epoch_is_every_text_once_with_its_label(text, tokenizer):
    batches = labelled_batches(text, tokenizer, tokens_per_batch=48, max_length=11, seed=5)
    expected = [(t, (0.0, 1.0) if n % 2 else (1.0, 0.0)) for n, t in enumerate(TEXTS)]
    assert sorted(rows_of(batches.epoch(), tokenizer)) == sorted(expected)
    epochs = rows_of(batches.dataset().take(2 * batches.steps_per_epoch), tokenizer)
    first, second = epochs[:37], epochs[37:]
    assert sorted(first) == sorted(second) == sorted(expected)
    assert first != second, "in another order"
    resumed = batches.dataset(batches.steps_per_epoch).take(batches.steps_per_epoch)
    assert rows_of(resumed, tokenizer) == second


def test_texts_are_cut_and_a_batch_keeps_to_its_budget(text, tokenizer):
    batches = labelled_batches(text, tokenizer, tokens_per_batch=32, max_length=3)
    assert batches.num_texts == 37 and batches.num_tokens == sum(
        min(3, len(row)) for row in tokenizer.tokenize(TEXTS).to_list()
    )
    for ids, _ in batches.epoch():
        assert ids.shape[1] <= 3 and ids.shape[0] * ids.shape[1] <= 32


@pytest.mark.parametrize("max_length", [1, 3, 4, 9])
def test_the_middle_of_long_rows_is_left_out(max_length):
    rows = [list(range(length)) for length in (0, 1, 3, 4, 5, 20)]
    before = max_length // 4
    expected = [
        row if len(row) <= max_length else row[:before] + row[before - max_length :] for row in rows
    ]
    cut = segments.cut_middle(tf.ragged.constant(rows, dtype=tf.int32), max_length)
    assert cut.to_list() == expected and cut.dtype == tf.int32
    ids = IdRows(np.concatenate(rows), [len(row) for row in rows])
    assert cut_middle(ids, max_length).to_list() == expected


def test_the_checksum_sees_other_texts_labels_and_names(text, tokenizer):
    batches = labelled_batches(text, tokenizer, 48, 11, seed=5)
    assert batches.names == ["even", "odd"]
    others = [
        labelled(TEXTS[::-1], LABELS),
        labelled(TEXTS, LABELS[1:] + LABELS[:1]),
        labelled(TEXTS, [(name[0] + "?",) for name in LABELS]),
    ]
    checksums = {labelled_batches(other, tokenizer, 48, 11).checksum() for other in others}
    assert len({batches.checksum(), *checksums}) == 4


def test_texts_may_have_several_labels_or_none(tokenizer, tmp_path):
    file = tmp_path / "texts.tsv.gz"
    file.write_bytes(gzip.compress(b"a b\tx,z\nb\t\na\ty\n"))
    text = LabelledStream(file).read()
    assert text.names == ["x", "y", "z"]
    batches = labelled_batches(text, tokenizer)
    [(_, labels)] = batches.epoch()
    assert sorted(labels.numpy().tolist()) == [[0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert batches.multi_label


def test_a_text_without_tokens_still_has_a_column(tokenizer):
    text = labelled(["", " "], [("x",), ("y",)])
    [(ids, _)] = labelled_batches(text, tokenizer).epoch()
    assert ids.numpy().tolist() == [[0], [0]]


def test_texts_without_tokens_take_room_in_a_batch(tokenizer):
    text = labelled(["", "to be"] * 9, [("x",), ("y",)] * 9)
    batches = labelled_batches(text, tokenizer, tokens_per_batch=48)
    assert sorted(len(labels) for _, labels in batches.epoch()) == [3] * 6, "16 tokens a text"


def test_labels_of_a_file_are_names_without_spaces_each_once(tmp_path):
    (tmp_path / "a.tsv").write_text("yes\tgood , loud,good\nno\t bad\n?\t , \n")
    labels = LabelledStream(tmp_path / "a.tsv").read().labels
    assert labels == [("good", "loud"), ("bad",), ()]


def test_folders_are_labels(tmp_path):
    for label, name, text in (
        ("pos", "1_9", "Gut.\n"),
        ("neg", "2_1", "Schlecht."),
        ("unsup", "3", "?"),
    ):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{name}.txt").write_text(text, "utf-8")
    assert LabelledStream(folder=tmp_path).read() == (
        ["Schlecht.", "Gut.\n"],
        [("neg",), ("pos",)],
        ["neg", "pos"],
    )
    (tmp_path / "pos" / "4.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"must be UTF-8. Received: .*4.txt"):
        LabelledStream(folder=tmp_path).read()


def test_a_folder_of_folders_of_labels_has_no_labels(tmp_path):
    for name in ("train/pos/1", "test/neg/2", "train/urls", "test/urls"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.txt").write_text("Gut.")
    with pytest.raises(ValueError, match=r"at least two different labels. Received: 0 texts"):
        LabelledStream(folder=tmp_path).read()


def test_a_data_set_of_tfds_is_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Moods(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"text": tfds.features.Text()}
            features["label"] = tfds.features.ClassLabel(names=["bad", "good"])
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(), "hidden": self._generate_hidden()}

        def _generate_examples(self):
            yield 0, {"text": "schön", "label": "good"}
            yield 1, {"text": "öde", "label": "bad"}

        def _generate_hidden(self):
            yield 0, {"text": "so so", "label": -1}

    moods = Moods(data_dir=tmp_path)
    moods.download_and_prepare()
    text = LabelledStream(dataset=moods).read()
    assert sorted(zip(text.texts, text.labels, strict=True)) == [
        ("schön", ("good",)),
        ("öde", ("bad",)),
    ]
    with pytest.raises(ValueError, match="Received: split='test'"):
        LabelledStream(dataset=moods, split="test")
    with pytest.raises(ValueError, match="Received: split='hidden', whose text 1 has none"):
        LabelledStream(dataset=moods, split="hidden", names=text.names).read()


def test_a_data_set_of_pairs_of_texts_is_refused(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Pairs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {name: tfds.features.Text() for name in ("first", "second")}
            features["label"] = tfds.features.ClassLabel(names=["bad", "good"])
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield 0, {"first": "schön", "second": "öde", "label": "good"}

    pairs = Pairs(data_dir=tmp_path)
    pairs.download_and_prepare()
    with pytest.raises(ValueError, match=r"one text and .* Received: texts \['first', 'second'\]"):
        LabelledStream(dataset=pairs).read()


def test_a_held_out_part_is_drawn_with_the_seed(text):
    rest, held = hold_out(text, 10, seed=3)
    assert len(held.texts) == 10 and sorted(rest.texts + held.texts) == sorted(TEXTS)
    assert (
        dict(zip(TEXTS, LABELS, strict=True)).items()
        >= dict(zip(held.texts, held.labels, strict=True)).items()
    )
    assert hold_out(text, 10, seed=3) == (rest, held) != hold_out(text, 10, seed=4)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: labelled([], []), "Received: 0 texts"),
        (lambda: labelled(["a"], [("x",)]), r"Received: 1 texts, labels \['x'\]"),
        (lambda: labelled(["a"], [("z",)], ["x", "y"]), r"Received: \['z'\]"),
        (lambda: labelled(["a", "b"], ["pos", "neg"]), "must be a tuple.* Received: 'pos'"),
        (lambda: labelled(["a", "b", "c"], [("x",), ("y",)]), "Received: 3 texts, labels of 2"),
        (lambda: hold_out(labelled(TEXTS, LABELS), 37, 1), "hold_out=37 of 37 examples"),
    ],
)
def test_texts_that_cannot_be_learned_from_are_refused(call, expected):
    with pytest.raises(ValueError, match=expected):
        call()


def test_words_are_lower_case_without_punctuation():
    words = train_sentencepiece(["The cat, the DOG -- the cat's!"], 20, "words")
    assert words.pieces(range(4, words.vocabulary_size))[0] == "▁the"
    ids = words.tokenize(["THE dog...the bird"]).to_list()[0]
    assert words.detokenize([ids]).numpy()[0].decode().split() == ["the", "dog", "the", "⁇"]
    assert np.array(ids)[-1] == 1, "an unknown word"
    assert words.tokenize([b"\xff the"]).to_list() == [[ids[0]]]


def test_labels_without_names_are_numbers(tokenizer, tmp_path):
    (tmp_path / "ratings.tsv").write_text("a b\t 2.5\nb\t-1e3\na a\t0.1\nb b\t7\n")
    text = LabelledStream(tmp_path / "ratings.tsv", names=[]).read()
    assert text == (["a b", "b", "a a", "b b"], [(2.5,), (-1000.0,), (0.1,), (7.0,)], [])
    rest, held = hold_out(text, 1, seed=3)
    assert (
        len(rest.texts) == 3 and held.labels[0] == dict(zip(*text[:2], strict=True))[held.texts[0]]
    )
    batches = labelled_batches(text, tokenizer)
    [(_, numbers)] = batches.epoch()
    assert numbers.dtype == tf.float32 and not batches.multi_label and batches.names == []
    assert sorted(numbers.numpy()[:, 0]) == sorted(np.float32([2.5, -1000, 0.1, 7]))
    np.testing.assert_array_equal(batches.mean_label, np.float32([(2.5 - 1000 + 0.1 + 7) / 4]))


@pytest.mark.parametrize(
    "label", ["good", "", "nan", "inf", "1e39", "1,5", "1_000", "2.5,3", "0x10"]
)
def test_a_label_that_is_no_finite_number_is_named_with_its_line(label, tmp_path):
    (tmp_path / "ratings.tsv").write_text(f"a\t1\nb\t{label}\n")
    expected = rf"one finite number, e.g. 2\.5\. Received: '{label}', line 2 of .*ratings\.tsv\."
    with pytest.raises(ValueError, match=expected):
        LabelledStream(tmp_path / "ratings.tsv", names=[]).read()
    with pytest.raises(ValueError, match=rf"Received: '{label}', text 2\."):
        labelled(["a", "b"], [(1,), (label,)], names=[])


def test_numbers_that_do_not_fit_their_texts_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"Received: \(1, 2\), text 1\."):
        labelled(["a"], [(1, 2)], names=[])
    with pytest.raises(ValueError, match="Regression needs texts with numbers"):
        labelled([], [], names=[])
    for numbers in ([[1.0], [np.nan]], [1.0, 2.0], [[3.0]]):
        with pytest.raises(ValueError, match="without names, columns of finite numbers"):
            LabelledBatches([[4], [5]], numbers, [])


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "text.txt").write_bytes("\ufeffgut\r\n".encode())
    assert text_of(tmp_path / "text.txt") == "gut\n"
