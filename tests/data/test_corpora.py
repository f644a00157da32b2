"""Reading parallel text, and refusing what is not."""

import gzip
import random

import pytest

from keras_transformer.data import (
    DocumentStream,
    LabelledStream,
    PairStream,
    ParallelText,
)
from train.translation import TranslationConfig, TranslationExperiment

SOURCES = ["a cat", "two cats", "", "no\N{LINE SEPARATOR}cut", "\N{CAT FACE}"]
TARGETS = ["eine Katze", "zwei Katzen", "Öl", "kein Schnitt", "\N{CAT FACE}"]


def read_files(sources, targets):
    return PairStream(sources, targets).read()


def read_tsv(path):
    return PairStream(tsv=path).read()


def read_dataset(name, split, source=None, target=None, data_dir=None):
    where = {"dataset": name, "split": split, "data_dir": data_dir}
    return PairStream(columns=(source, target), **where).read()


def write(path, lines, end="\n"):
    content = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_of_one_file_goes_with_the_same_line_of_the_other(tmp_path, suffix, end):
    source = write(tmp_path / f"en.{suffix}", SOURCES, end)
    target = write(tmp_path / f"de.{suffix}", TARGETS, end)
    assert read_files(source, str(target)) == ParallelText(SOURCES, TARGETS), "paths or strings"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.soak) for i in range(1, 33))]
)
def test_files_are_read_in_the_order_of_their_names(tmp_path, seed):
    draw = random.Random(seed)
    names = {"".join(draw.choices("aBz019-_ é", k=draw.randint(1, 4))) for _ in range(7)}
    names = draw.sample(sorted(names), len(names))
    for name in names:
        for folder in ("documents", "labels/x", "labels/y"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            write(tmp_path / folder / f"{name}.txt", [name], "")
    for name in names:
        write(tmp_path / f"{name}.en", [name])
        write(tmp_path / f"{name}.de", [name])
    expected = [name.removesuffix(".txt") for name in sorted(f"{name}.txt" for name in names)]
    assert DocumentStream(tmp_path / "documents").read() == expected
    labelled = LabelledStream(folder=tmp_path / "labels").read()
    assert labelled.texts == expected * 2
    assert labelled.labels == [("x",)] * len(names) + [("y",)] * len(names)
    files = PairStream(str(tmp_path / "*.en"), str(tmp_path / "*.de")).files
    for suffix in (".en", ".de"):
        found = [file.name for file in files if file.name.endswith(suffix)]
        assert found == sorted(name + suffix for name in names)


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_columns_of_a_tsv_are_source_and_target(tmp_path, suffix):
    path = tmp_path / f"pairs.{suffix}"
    write(path, [f"{s}\t{t}" for s, t in zip(SOURCES, TARGETS, strict=True)])
    assert read_tsv(path) == ParallelText(SOURCES, TARGETS), "tabs separate, quotes mean nothing"


def test_last_line_needs_no_end_and_a_byte_order_mark_is_no_text(tmp_path):
    source, target = tmp_path / "en", tmp_path / "de"
    source.write_bytes("\N{ZERO WIDTH NO-BREAK SPACE}a\nb".encode())
    target.write_bytes(b"c\nd\n")
    assert read_files(source, target) == (["a", "b"], ["c", "d"])


def test_long_files_are_read_whole(data):
    folder = data / "multi30k"
    text = read_files(folder / "val.en.gz", folder / "val.de.gz")
    assert len(text.sources) == len(text.targets) == 1014, "as many as Multi30k has"
    lines = gzip.decompress((folder / "val.en.gz").read_bytes()).decode().splitlines()
    assert text.sources[::100] == lines[::100], "English first"
    assert len(read_tsv(data / "tatoeba" / "eng-fra-5000.tsv").targets) == 5000


def test_missing_file_is_named(tmp_path):
    source = write(tmp_path / "en", SOURCES)
    for read in (lambda path: read_files(source, path), read_tsv):
        with pytest.raises(FileNotFoundError, match=r"Received: .*nowhere, which does not exist"):
            read(tmp_path / "nowhere")


def test_files_of_unequal_length_are_refused_with_both_lengths(tmp_path):
    source, target = write(tmp_path / "en", SOURCES), write(tmp_path / "de", TARGETS[:3])
    with pytest.raises(ValueError, match=r"same number of lines.*en with 5 lines.*de with 3"):
        read_files(source, target)


@pytest.mark.parametrize("content", ["", "\n\n\n"])
def test_file_without_text_is_refused(tmp_path, content):
    full, empty = write(tmp_path / "full", SOURCES[:3]), tmp_path / "empty"
    empty.write_text(content)
    with pytest.raises(ValueError, match=r"Received: .*empty, whose sources have no text"):
        read_files(empty, empty)
    for files in ((full, empty), (empty, full)):
        with pytest.raises(ValueError, match=r"empty.* have no text|same number of lines.*empty"):
            read_files(*files)


def test_tsv_without_text_is_refused(tmp_path):
    path = tmp_path / "empty"
    for content in ("", "\t\n\t\n", "a\t\nb\t\n"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"their translations.*empty, whose .* no text"):
            read_tsv(path)


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes(b"a\tb\nc\td\n" + "Äpfel\te\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"must be UTF-8.*latin, line 3"):
        read_tsv(path)
    with pytest.raises(ValueError, match=r"must be UTF-8.*latin, line 3"):
        read_files(path, path)


@pytest.mark.parametrize(("line", "columns"), [("alone", 1), ("a\tb\tc", 3), ("", 1)])
def test_tsv_line_without_exactly_two_columns_is_refused_with_its_number(tmp_path, line, columns):
    path = write(tmp_path / "pairs.tsv", ["a\tb", line])
    with pytest.raises(ValueError, match=rf"two columns.*pairs.tsv, line 2 with {columns}"):
        read_tsv(path)


def test_gzip_that_is_none_or_half_is_refused(tmp_path):
    path = tmp_path / "text.gz"
    for content in (b"plain text\n", gzip.compress(b"a\tb\n" * 1000)[:-13]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"complete gzip file.*text\.gz"):
            read_tsv(path)


@pytest.fixture(scope="module")
def tfds():
    return pytest.importorskip("tensorflow_datasets", reason="extra `datasets`")


@pytest.fixture
def folder(tmp_path):
    """What `TranslateFolder` reads: a file a language and split."""
    write(tmp_path / "pt.train.txt", ["um gato", "dois gatos", "três gatos"])
    write(tmp_path / "en.train.txt", ["one cat", "two cats", "three cats"])
    write(tmp_path / "pt.validation.txt", ["um cão", "dois cães"])
    write(tmp_path / "en.validation.txt", ["one dog", "two dogs"])
    return tmp_path


def test_builder_of_two_languages_is_read_in_their_order(tfds, folder):
    builder = tfds.folder_dataset.TranslateFolder(str(folder))
    text = read_dataset(builder, "train")
    assert text.sources == ["one cat", "two cats", "three cats"], "en comes before pt"
    assert text.targets == ["um gato", "dois gatos", "três gatos"]
    text = read_dataset(builder, "validation", source="pt", target="en")
    assert text == (["um cão", "dois cães"], ["one dog", "two dogs"]), "unless told otherwise"
    assert read_dataset(builder, "validation", source="pt") == text, "the other one is clear"
    assert read_dataset(builder, "validation", target="en") == text


def test_unknown_split_or_language_is_refused_with_what_there_is(tfds, folder):
    builder = tfds.folder_dataset.TranslateFolder(str(folder))
    with pytest.raises(ValueError, match=r"\['train', 'validation'\].*split='test'"):
        read_dataset(builder, "test")
    with pytest.raises(ValueError, match=r"two of \['en', 'pt'\].*'en' and 'de'"):
        read_dataset(builder, "train", target="de")
    with pytest.raises(ValueError, match=r"two of \['en', 'pt'\].*'en' and 'en'"):
        read_dataset(builder, "train", source="en", target="en")


def test_builder_of_three_languages_needs_source_and_target(tfds, folder):
    for split, lines in (("train", ["a", "b", "c"]), ("validation", ["d", "e"])):
        write(folder / f"fr.{split}.txt", lines)
    builder = tfds.folder_dataset.TranslateFolder(str(folder))
    with pytest.raises(ValueError, match=r"Choose source and target among \['en', 'fr', 'pt'\]"):
        read_dataset(builder, "train", source="fr")
    assert read_dataset(builder, "train", "fr", "pt").sources == ["a", "b", "c"]


@pytest.fixture(scope="module")
def registered(tfds):
    """A data set with a name, made from local text as those of the TFDS catalogue are."""

    class CatsTranslate(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [
            tfds.core.BuilderConfig(name=name, description="cats")
            for name in ("pt_to_en", "en_to_pt")
        ]

        def _info(self):
            pair = tuple(self.builder_config.name.split("_to_"))
            return self.dataset_info_from_configs(
                features=tfds.features.Translation(languages=("en", "pt")), supervised_keys=pair
            )

        def dataset_info_from_configs(self, **keys):
            return tfds.core.DatasetInfo(builder=self, **keys)

        def _split_generators(self, _):
            return {"train": self._generate_examples(7), "validation": self._generate_examples(3)}

        def _generate_examples(self, count):
            for number in range(count):
                yield number, {"en": f"cat {number}", "pt": f"gato {number}"}

    return CatsTranslate


@pytest.mark.parametrize(("config", "first"), [("pt_to_en", "gato"), ("en_to_pt", "cat")])
def test_name_is_resolved_prepared_and_read_from_source_to_target(
    registered, tmp_path, config, first
):
    text = read_dataset(f"cats_translate/{config}", "train", data_dir=tmp_path)
    assert sorted(text.sources) == [f"{first} {n}" for n in range(7)], "every example once"
    other = {"cat": "gato", "gato": "cat"}[first]
    numbers = [source.split()[1] for source in text.sources]
    assert text.targets == [f"{other} {n}" for n in numbers], "target beside its source"
    again = read_dataset(f"cats_translate/{config}", "train", data_dir=tmp_path)
    assert again == text, "the order is the same each time"
    part = read_dataset(f"cats_translate/{config}", "train[:2]", data_dir=tmp_path)
    assert part.sources == text.sources[:2], "TFDS cuts splits"


def test_a_training_chooses_its_direction(registered, tmp_path):
    flags = {"dataset": "cats_translate/pt_to_en", "data_dir": str(tmp_path)}
    for languages, first in (({}, "gato"), ({"source_language": "en"}, "cat")):
        experiment = TranslationExperiment(TranslationConfig(**flags, **languages))
        for text in (experiment.train_text, experiment.valid_text):
            assert text.sources[0].startswith(first)
    with pytest.raises(ValueError, match="--target-language need a --dataset"):
        TranslationExperiment(TranslationConfig(tsv="a.tsv", source_language="en"))


def test_unknown_name_is_refused_in_one_line(tfds, tmp_path):
    with pytest.raises(ValueError, match=r"ted_hrlr_translate/pt_to_en.*'no_such_set'") as error:
        read_dataset("no_such_set", "train", data_dir=tmp_path)
    assert "\n" not in str(error.value), "not the list of all data sets"
