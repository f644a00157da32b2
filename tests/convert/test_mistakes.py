"""Folders of each family with wrong settings or vocabularies: one line, or a model that works."""

import json
import pathlib

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import (
    ConversionError,
    bart,
    bert,
    gpt2,
    llama,
    m2m100,
    marian,
    t5,
)
from keras_transformer.convert.folder import Settings
from keras_transformer.convert.tokenizers import MBART50_LANGUAGES
from tests.convert.folders import EXTRA, FAMILIES, PIECES, config_of, save_config
from tests.reference import array

pytestmark = pytest.mark.slow
MISSING = object()
WRONG = [None, "8", -1, 2.5, [], True, MISSING]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("family") / request.param.replace(" ", "_")
    path.mkdir()
    FAMILIES[request.param](path)
    return path


class Recording(dict):
    """A dictionary that keeps which of its names, and of those inside of it, are asked for."""

    def __init__(self, values, place, seen):
        super().__init__(values)
        self.place, self.seen = place, seen

    def get(self, name, default=None):
        self.seen.add((*self.place, name))
        value = super().get(name, default)
        return Recording(value, (*self.place, name), self.seen) if type(value) is dict else value

    def __getitem__(self, name):
        self.get(name)
        return self.get(name) if name in self else super().__getitem__(name)


def places_read(path, monkeypatch):
    """(file, name, name inside of it, ...) of all settings that the reader looks at."""
    seen, init = set(), Settings.__init__

    def recording(self, values, file):
        init(self, values, file)
        if not isinstance(values, Recording):
            self.values = Recording(values, (pathlib.Path(file).relative_to(path),), seen)

    with monkeypatch.context() as patch:
        patch.setattr(Settings, "__init__", recording)
        convert.read(path)
    files = {file for file, *_ in seen if file.suffix == ".json" and (path / file).exists()}
    return sorted((file, *names) for file, *names in seen if file in files)


def with_setting(file, names, value):
    """Changes one setting of a file, and returns what it held before."""
    before = file.read_text("utf-8")
    content = inner = json.loads(before)
    for name in names[:-1]:
        inner = inner[name]
    if value is MISSING:
        inner.pop(names[-1], None)
    else:
        inner[names[-1]] = value
    file.write_text(json.dumps(content), "utf-8")
    return before


BUILDERS = (
    (marian, "translation"), (m2m100, "translation"), (bart, "translation"), (t5, "translation"),
    (gpt2, "gpt2"), (llama, "language_model"), (bert, "bert"),
)  # fmt: skip


def build_once(monkeypatch):
    """Has the readers build each model once, and then only fill it again: most of their time."""

    def remembered(build):
        built = {}

        def model_of(*arguments, **options):
            key = repr((arguments, sorted(options.items())))
            if key not in built:
                built[key] = build(*arguments, **options)
            return built[key]

        return model_of

    for module, name in BUILDERS:
        monkeypatch.setattr(module, name, remembered(getattr(module, name)))


def one_line(error, path):
    return "\n" not in str(error) and str(path) in str(error)


@pytest.mark.parametrize("count", [2, pytest.param(len(WRONG), marks=pytest.mark.soak)])
def test_a_setting_of_a_wrong_kind_is_one_line_or_has_a_default(family, count, monkeypatch):
    """Each setting with so many of the wrong values, which take turns."""
    if not (family / "config.json").exists():
        pytest.skip("OpenNMT-tf has no config.json")
    places = places_read(family, monkeypatch)
    build_once(monkeypatch)
    refused, accepted = 0, []
    for number, (file, *names) in enumerate(places):
        for value in (WRONG * 2)[number % len(WRONG) :][:count]:
            before = with_setting(family / file, names, value)
            try:
                convert.read(family)
                accepted.append((*names, value))
            except ConversionError as error:
                assert one_line(error, family), error
                refused += 1
            finally:
                (family / file).write_text(before, "utf-8")
    print(f"{len(places)} settings, {refused} refused, {len(accepted)} accepted")
    assert refused > count * len(places) / 2 and len(places) > 8
    convert.read(family)


@pytest.mark.parametrize("value", [0, "4", None, -2, 2.5])
@pytest.mark.parametrize("name", ["beam_width", "length_penalty", "maximum_decoding_length"])
def test_search_settings_of_opennmt_of_a_wrong_kind_are_one_line(name, value, tmp_path):
    FAMILIES["opennmt"](tmp_path)
    with (tmp_path / "data.yml").open("a") as file:
        file.write(f"\nparams:\n  {name}: {json.dumps(value)}\n")
    if value is None or (name == "length_penalty" and value in (0, 2.5)):
        convert.read(tmp_path / "avg")
        return
    with pytest.raises(ConversionError, match=rf"data\.yml: {name} must be a .*Received: "):
        convert.read(tmp_path / "avg")


VOCABULARIES = ("vocab.json", "target_vocab.json", "assets/tokenizer/vocabulary.json",
                "vocab.txt", "assets/tokenizer/vocabulary.txt", "target.vocab")  # fmt: skip


def with_pieces(file, change):
    """Adds pieces to a vocabulary, or takes away those of the last ids; returns what it held."""
    before = file.read_text("utf-8")
    content = json.loads(before) if file.suffix == ".json" else {}
    if content:
        ids = content["model"]["vocab"] if "model" in content else content
        pieces = sorted(ids, key=ids.get)
    else:
        pieces = before.splitlines()
    pieces = [*pieces, *(f"new{i}" for i in range(change))] if change > 0 else pieces[:change]
    listed = {piece: index for index, piece in enumerate(pieces)}
    if "model" in content:
        content["model"]["vocab"], listed = listed, content
    text = json.dumps(listed) if content else "".join(f"{p}\n" for p in pieces)
    file.write_text(text, "utf-8")
    return before


# One of each kind, of translation, of text that goes on, and of labels: the others' models are only
# called, since most of a question's time is that of its graph.
ASKED = ("marian_of_two_vocabularies", "gpt2", "roberta")


def logits_of(found, texts):
    """Those of a model that was read, for the tokens of texts."""
    ids = found.tokenizer.tokenize(texts) - getattr(found.tokenizer, "first_id", 0)
    ids = ids.to_tensor().numpy()
    if found.command == "translation":
        targets = (found.target_tokenizer or found.tokenizer).tokenize(texts).to_tensor().numpy()
        return array(found.model({"source_ids": ids, "target_ids": targets}))
    if found.command == "language_model":
        return array(found.model(ids))
    return array(found.model({"token_ids": ids, "segment_ids": ids * 0}))


def test_a_vocabulary_that_does_not_fit_the_table_is_one_line(family):
    """More pieces than rows are refused; fewer are those of a padded table."""
    folder = family / "avg" if (family / "avg").exists() else family
    files = [family / name for name in VOCABULARIES if (family / name).exists()]
    is_mbart = (family / "sentencepiece.bpe.model").exists() and not files
    files = files or [*family.glob("tokenizer.json")]
    if is_mbart or (family / "spiece.model").exists():  # which add pieces by a setting
        file, message = family / "tokenizer_config.json", r"the vocabulary must have at most \d+"
        before = file.read_text("utf-8")
        more = {"extra_ids": EXTRA + 1}
        if is_mbart:
            names = [*MBART50_LANGUAGES, *(f"x{letter}_XX" for letter in "abcdefg")]
            more = {"additional_special_tokens": names}
            message = "must be languages of mBART if there is no added_tokens_decoder"
        file.write_text(json.dumps(json.loads(before) | more), "utf-8")
        with pytest.raises(ConversionError, match=message) as error:
            convert.read(folder)
        assert one_line(error.value, family)
        file.write_text(before, "utf-8")
        return
    assert files
    for file in files:
        before = with_pieces(file, EXTRA + 1)
        with pytest.raises(ConversionError, match=r"\d+ .*(pieces|words).* Received: \d+") as error:
            convert.read(folder)
        assert one_line(error.value, family)
        file.write_text(before, "utf-8")
    if folder != family:
        return  # OpenNMT-tf has a word for each row
    for file in files:
        before = with_pieces(file, -2)
        found = convert.read(folder)
        texts = ["it is ten", "A dog 12,50"]
        for tokenizer in (found.tokenizer, found.target_tokenizer or found.tokenizer):
            table = found.model.weights[0].shape[0] + getattr(tokenizer, "first_id", 0)
            ids = tokenizer.tokenize(texts).flat_values.numpy()
            assert 0 < ids.max() < table and tokenizer.vocabulary_size <= table
        file.write_text(before, "utf-8")
        assert np.isfinite(logits_of(found, texts)).all()
    if family.name in ASKED:
        assert len(convert.load(folder)(texts)) == 2


def word_piece_file(pieces):
    return {
        "model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(pieces)}},
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def byte_pair_file(path, more):
    merges = (path / "merges.txt").read_text("utf-8").splitlines()[1:]
    vocabulary = json.loads((path / "vocab.json").read_text("utf-8"))
    return {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [
            {"content": f"new{i}", "id": len(vocabulary) + i, "special": True} for i in range(more)
        ],
    }


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "roberta"])
def test_a_tokenizer_json_that_does_not_fit_the_table_is_one_line(name, tmp_path):
    FAMILIES[name](tmp_path)
    is_bert = (tmp_path / "vocab.txt").exists()

    def written(more):
        new = [f"new{i}" for i in range(more)]
        content = word_piece_file([*PIECES, *new]) if is_bert else byte_pairs[more]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")

    byte_pairs = {} if is_bert else {n: byte_pair_file(tmp_path, n) for n in (0, EXTRA + 1)}
    for file in ("vocab.txt", "vocab.json", "merges.txt"):
        (tmp_path / file).unlink(missing_ok=True)
    written(0)
    convert.read(tmp_path)
    written(EXTRA + 1)
    with pytest.raises(ConversionError, match=r"at most \d+ pieces.*Received: \d+ pieces") as error:
        convert.read(tmp_path)
    assert one_line(error.value, tmp_path)


def test_a_table_with_more_rows_than_pieces_gives_the_logits_of_all_rows(tmp_path):
    FAMILIES["gpt2"](tmp_path)
    before = convert.read(tmp_path)
    with_pieces(tmp_path / "vocab.json", -3)
    merges = (tmp_path / "merges.txt").read_text("utf-8").splitlines()
    (tmp_path / "merges.txt").write_text("\n".join(merges[:-3]), "utf-8")
    after = convert.read(tmp_path)
    ids = np.array([[5, 280, 7]], "int32")
    np.testing.assert_array_equal(array(before.model(ids)), array(after.model(ids)))
    assert after.tokenizer.vocabulary_size == before.tokenizer.vocabulary_size


@pytest.mark.parametrize(
    "labels", [{"0": "one"}, {"0": "a", "2": "b"}, {"0": 3, "1": 4}, ["a", "b"], {"a": "b"}]
)
def test_names_of_labels_that_are_none_are_one_line(labels, tmp_path):
    FAMILIES["bert"](tmp_path)
    save_config(tmp_path, config_of(tmp_path) | {"id2label": labels})
    with pytest.raises(ConversionError, match="id2label must be names of at least two") as error:
        convert.read(tmp_path)
    assert one_line(error.value, tmp_path)


@pytest.mark.parametrize("architectures", ["BertModel", ["BertForMultipleChoice"], [3], 7])
def test_other_architectures_are_one_line(architectures, tmp_path):
    FAMILIES["bert"](tmp_path)
    save_config(tmp_path, config_of(tmp_path) | {"architectures": architectures})
    with pytest.raises(
        ConversionError, match=f"one of {', '.join(bert.BERT.heads)}. Received"
    ) as error:
        convert.read(tmp_path)
    assert one_line(error.value, tmp_path)
