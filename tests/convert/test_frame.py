"""What all converters share: tables, folders, runs, and their mistakes."""

import importlib.util
import json
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, ModelFolder, Row, arrays_of, assign, bert
from keras_transformer.convert.examples import answers, drawn_inputs
from keras_transformer.tokenizers import WordPieceTokenizer
from train import convert as command


def variables(*shapes):
    return [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]


def table(kernel, bias, extra):
    """Two of theirs are in one of ours, transposed, with permuted columns; one has a further axis,
    one may be missing.
    """
    order = np.array([2, 0, 1])
    yield Row(
        kernel,
        ("q", "k"),
        transpose=True,
        to_ours=lambda array: array[:, order],
        to_theirs=lambda array: array[:, np.argsort(order)],
    )
    yield Row(bias, ("b",), shape=(1, 5))
    scale = np.float32([1, 2])
    yield Row(
        extra,
        ("maybe",),
        missing=-1.0,
        to_ours=lambda array: array * scale,
        to_theirs=lambda array: array / scale,
    )


SHAPES = (4, 3), (5,), (2,)


def drawn(generator):
    q, k = generator.normal(size=(2, 3, 2)).astype("float32")
    return {"q": q, "k": k, "b": generator.normal(size=(1, 5)).astype("float32")}


def test_a_table_reads_and_writes_the_same_numbers():
    ours, arrays = variables(*SHAPES), drawn(np.random.default_rng(3))
    assign(table(*ours), arrays, "theirs")
    kernel = keras.ops.convert_to_numpy(ours[0])
    np.testing.assert_array_equal(kernel[:2], arrays["q"].T[:, [2, 0, 1]])
    np.testing.assert_array_equal(kernel[2:], arrays["k"].T[:, [2, 0, 1]])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(ours[1]), arrays["b"][0])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(ours[2]), [-1, -2])
    back = arrays_of(table(*ours))
    np.testing.assert_array_equal(back.pop("maybe"), [-1, -1])
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("b"), r"theirs must include b\. Received: 2 arrays"),
        (
            lambda arrays: arrays.update(k=np.zeros((2, 3))),
            r"k must have the shape \(3, 2\) in this model\. Received: \(2, 3\)",
        ),
        (lambda arrays: arrays.update(maybe=np.zeros(3)), r"maybe must have the shape \(2,\)"),
    ],
)
def test_arrays_that_do_not_fit_change_nothing(change, message):
    ours, arrays = variables(*SHAPES), drawn(np.random.default_rng(3))
    change(arrays)
    with pytest.raises(ConversionError, match=message):
        assign(table(*ours), arrays, "theirs")
    assert all(not keras.ops.convert_to_numpy(variable).any() for variable in ours)


def folder(path, config, **files):
    path.mkdir()
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def test_folders_that_cannot_be_read_say_what_is_missing(tmp_path):
    with pytest.raises(ConversionError, match=r"none is not a folder with config\.json"):
        convert.read(tmp_path / "none")
    with pytest.raises(ConversionError, match=r"must hold a JSON object"):
        convert.read(folder(tmp_path / "a", "[1"))
    with pytest.raises(
        ConversionError,
        match=r"b/config\.json must have a model_type of .*marian.*: model_type='xlnet'",
    ):
        convert.read(folder(tmp_path / "b", {"model_type": "xlnet"}))
    with pytest.raises(
        ConversionError, match=r"must hold model\.safetensors, other.* pytorch_model\.bin"
    ):
        ModelFolder(folder(tmp_path / "c", {})).arrays()
    damaged = folder(tmp_path / "d", {}, model__safetensors=b"\x08" * 40)
    with pytest.raises(ConversionError, match=r"model\.safetensors is damaged"):
        ModelFolder(damaged).arrays()
    with pytest.raises(ConversionError, match=r"tanh must be 1 or 2; nothing else.*Received: 3"):
        ModelFolder(folder(tmp_path / "e", {"tanh": 3})).settings.one_of("tanh", 1, 2)


def test_a_width_without_a_cosine_for_each_sine_is_refused(tmp_path):
    sides = {f"{side}_{name}": 1 for side in ("encoder", "decoder")
             for name in ("layers", "attention_heads", "ffn_dim")}  # fmt: skip
    path = folder(tmp_path / "a", {"is_encoder_decoder": True, "d_model": 13, **sides})
    with pytest.raises(ConversionError, match=r"d_model must be even.* Received: 13"):
        convert.marian.dimensions_of(ModelFolder(path), False, "relu")


@pytest.mark.parametrize("largest", [3.0, 60.0])
def test_what_another_library_answers_may_be_off_by_rounding_alone(largest):
    from keras_transformer.convert import checks  # a script: nothing else imports it

    expected = np.array([[1.0, -largest]])
    tolerance = 1e-4 * max(1.0, largest / 30)
    arrays = {"output.logits": expected}
    checks.compare_answers({"logits": expected + 0.9 * tolerance}, arrays)
    for answer in (expected + 1.1 * tolerance, expected * np.nan, expected[:, :1]):
        with pytest.raises(SystemExit, match="logits differs by"):
            checks.compare_answers({"logits": answer}, arrays)


def test_weights_in_several_files_are_read_whole(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    path = folder(tmp_path / "a", {})
    arrays = drawn(np.random.default_rng(5))
    index = {"weight_map": {name: f"model-{name}.safetensors" for name in arrays}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, array in arrays.items():
        numpy.save_file({name: array}, path / f"model-{name}.safetensors")
    read = ModelFolder(path).arrays()
    assert {name: array.tolist() for name, array in read.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    (path / "model-b.safetensors").unlink()
    with pytest.raises(ConversionError, match=r"model-b\.safetensors is damaged or missing"):
        ModelFolder(path).arrays()
    index = {"weight_map": {"a": 9000 * "a"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionError, match=r"has no file 'a{79}: File name too long$"):
        ModelFolder(path).arrays()


@pytest.mark.oracle
def test_weights_of_torch_are_those_of_safetensors(tmp_path, monkeypatch):
    """In one file or several; a damaged one, a missing one and a missing torch are one line."""
    torch = pytest.importorskip("torch")
    import safetensors.numpy

    from tests.convert.folders import FAMILIES

    path = tmp_path / "marian"
    path.mkdir()
    FAMILIES["marian"](path)
    expected = safetensors.numpy.load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    tensors = {name: torch.tensor(array) for name, array in expected.items()}
    torch.save(tensors, path / "pytorch_model.bin")
    whole = convert.read(path).model.get_weights()
    found = ModelFolder(path).arrays()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)

    content = (path / "pytorch_model.bin").read_bytes()
    for damaged in (content[: len(content) // 2], b"no weights"):
        (path / "pytorch_model.bin").write_bytes(damaged)
        with pytest.raises(ConversionError, match=r"pytorch_model\.bin is damaged") as error:
            convert.read(path)
        assert "\n" not in str(error.value)
    (path / "pytorch_model.bin").unlink()

    names = sorted(tensors)
    parts = {"a.bin": names[::2], "b.bin": names[1::2]}
    for file, inside in parts.items():
        torch.save({name: tensors[name].bfloat16().float() for name in inside}, path / file)
    index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for one, other in zip(whole, convert.read(path).model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)
    (path / "b.bin").unlink()
    with pytest.raises(ConversionError, match=r"b\.bin is damaged or missing"):
        convert.read(path)
    (path / "pytorch_model.bin.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ConversionError, match=r"index\.json: weight_map must be a JSON object"):
        convert.read(path)

    (path / "pytorch_model.bin.index.json").unlink()
    (path / "pytorch_model.bin").write_bytes(content)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConversionError, match=r"Reading .*model\.bin needs torch\. Install"):
        convert.read(path)


def test_ids_drawn_for_a_check_are_rows_of_the_table_that_reads_them():
    """Of a large table of ours beside a small one of Keras; BERT's segments have two rows."""
    words = keras.Input((None,), dtype="int32", name="words")
    tags = keras.Input((None,), dtype="int32", name="tags")
    vectors = kt.layers.TokenEmbedding(50, 4)(words) + keras.layers.Embedding(5, 4)(tags)
    ids = drawn_inputs(keras.Model([words, tags], vectors))
    assert 40 < ids["words"].max() < 50 and ids["tags"].max() == 4
    assert answers(keras.Model([words, tags], vectors), ids)["logits"].shape == (3, 7, 4)
    ids = drawn_inputs(kt.bert(50, "tiny", num_layers=1, hidden_dim=4, num_heads=2))
    assert ids["token_ids"].max() > 40 and set(ids["segment_ids"].flat) == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "r"], "give either --from and --run, or --run, --to and --output"),
        (["--from", "a", "--run", "r", "--to", "onnx"], "give either --from and --run"),
        (["--from", "no such folder", "--run", "r"], "error: no such folder is not a folder"),
        (["--run", "r", "--to", "abacus", "--output", "b"], "invalid choice: 'abacus'"),
        (["--run", "no run", "--to", "onnx", "--output", "b"], "error: no run holds no run"),
        (
            ["--run", "r", "--to", "onnx", "--output", "."],
            "error: . already exists. Choose another",
        ),
        (["--from", "a", "--run", "."], "error: . already exists. Choose another --run"),
    ],
)
def test_mistakes_of_the_command_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_command_knows_all_formats():
    assert set(command.FORMATS) == set(convert.writing.WRITERS)


def test_an_unknown_format_and_a_folder_in_use_are_refused(tmp_path):
    with pytest.raises(ConversionError, match=r"format must be one of .*Received: 'abacus'"):
        convert.write(None, "abacus", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_no_library_can_check_is_written_with_a_warning(tmp_path, monkeypatch):
    texts = ["A dog runs.", "It is ten past six."]
    tokenizer = kt.tokenizers.train_byte_pairs(texts, 270)
    model = kt.gpt2(vocabulary_size=270, num_layers=1, hidden_dim=4, num_heads=2)
    find = importlib.util.find_spec
    known = {"transformers": object(), "torch": None}  # their PyTorch half is missing
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: known.get(name, find(name)))
    with pytest.warns(UserWarning, match=r"is not checked: torch is not installed\.$"):
        generator = kt.serving.Generator(model, tokenizer)
        path = convert.write(generator, "huggingface", tmp_path / "model")
    assert (path / "model.safetensors").exists()


def test_a_bert_is_written_with_a_subclass_of_its_tokenizer_but_not_for_one_label(tmp_path):
    class OwnTokenizer(WordPieceTokenizer):
        pass

    words = OwnTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    model = kt.bert_classifier(kt.bert(6, "tiny", 9, num_layers=1, hidden_dim=4, num_heads=2), 1)
    config, _ = bert.hugging_face_folder(kt.serving.Classifier(model, words, [], 9), tmp_path)
    assert config["problem_type"] == "regression"
    with pytest.raises(ConversionError, match=r"at least two labels.* labels=\('spam',\)"):
        bert.hugging_face_folder(kt.serving.Classifier(model, words, ["spam"], 9), tmp_path)
    symbols = kt.tokenizers.SymbolTokenizer("abc")
    with pytest.raises(ConversionError, match=r"tokenizer: WordPieceTokenizer\. Received: Sy"):
        bert.hugging_face_folder(convert.Converted("pretraining", model, symbols), tmp_path)


SMALL = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
SYMBOLS = kt.tokenizers.SymbolTokenizer("abc")


@pytest.mark.parametrize("kind", ["llama", "marian", "pegasus"])
def test_tokenizers_that_hugging_face_lacks_are_refused(kind, tmp_path):
    size = SYMBOLS.vocabulary_size
    if kind == "llama":
        settings = kt.serving.SamplingSettings(context=9, max_tokens=2, empty_prompt="a")
        model = kt.language_model(size, blocks="llama", **SMALL)
        written = kt.serving.Generator(model, SYMBOLS, settings)
    else:
        model = kt.translation(size, size="tiny", normalize_first=kind == "pegasus", **SMALL)
        written = kt.serving.Translator(model, SYMBOLS)
    with pytest.raises(ConversionError, match=r"SentencePiece models.* a SymbolTokenizer"):
        convert.write(written, "huggingface", tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_of_a_long_line_the_middle_is_left_out():
    said = str(ConversionError(f"the folder: {9000 * 'a'}. Received: it."))
    assert said.startswith("the folder: aaa") and said.endswith("aaa. Received: it.")
    assert len(said) < 2000
