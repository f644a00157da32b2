"""Weights of other people: which files, dtypes, numbers, sizes and names are read at all."""

import json
import re
import struct
import time

import h5py
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_transformer import convert
from keras_transformer.convert import ConversionError, ModelFolder
from keras_transformer.convert import folder as folder_module
from keras_transformer.convert.tables import FLOATS, Weights
from tests.convert.folders import FAMILIES, config_of, save_config
from tests.reference import array

FILE = "model.safetensors"
# What no family can do at once, of each family that has config.json and safetensors.
SIZES = {
    "bert": ("num_hidden_layers", "max_position_embeddings", "vocab_size", "intermediate_size"),
    "distilbert": ("n_layers", "max_position_embeddings", "vocab_size", "hidden_dim"),
    "roberta": ("num_hidden_layers", "max_position_embeddings", "vocab_size", "intermediate_size"),
    "gpt2": ("n_layer", "n_positions", "vocab_size", "n_inner"),
    "marian": (("encoder_layers", "decoder_layers"), "vocab_size"),
    "marian of two vocabularies": ("decoder_vocab_size", "vocab_size"),
    "m2m100": (("encoder_layers", "decoder_layers"), "vocab_size"),
    "bart": (("encoder_layers", "decoder_layers"), "vocab_size", "max_position_embeddings"),
    "t5": ("num_layers", "vocab_size", "d_ff", "d_kv", "num_heads"),
}
PRESETS = ("num_layers", "max_sequence_length", "vocabulary_size", "intermediate_dim")


@pytest.fixture(scope="module", params=SIZES)
def family(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    FAMILIES[request.param](path)
    return request.param, path


@pytest.fixture
def gpt2(tmp_path):
    FAMILIES["gpt2"](tmp_path)
    return tmp_path


def change(path, edit):
    arrays = load_file(path / FILE)
    edit(arrays)
    save_file(arrays, path / FILE, {"format": "pt"})


def refused(path, message):
    with pytest.raises(ConversionError, match=message) as error:
        convert.read(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_sizes_that_no_array_has_are_refused_before_a_model_is_built(family, monkeypatch):
    """Layers, positions, pieces and widths by the million or billion."""
    name, path = family
    plain = config_of(path)

    def build(*args, **kwargs):
        raise AssertionError("a model was built")

    monkeypatch.setattr("keras.Model.__init__", build)
    start = time.process_time()
    for keys in SIZES[name]:
        for size in (10**5, 2 * 10**9, 10**30):
            keys = (keys,) if isinstance(keys, str) else keys
            save_config(path, plain | dict.fromkeys(keys, size))
            refused(path, "must have the shape|must include ")
    save_config(path, plain)
    assert time.process_time() - start < 10


def test_a_preset_that_treats_accents_otherwise_than_ours_is_named(tmp_path, caplog):
    FAMILIES["preset of bert"](tmp_path)
    convert.read(tmp_path)
    assert "accents" not in caplog.text
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    tokenizer["config"]["strip_accents"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    convert.read(tmp_path)
    assert "has strip_accents=False, ours strips accents" in caplog.text


@pytest.mark.parametrize("name", ["preset of bert", "preset of gpt2"])
def test_sizes_of_presets_are_refused_before_a_model_is_built(name, tmp_path):
    FAMILIES[name](tmp_path)
    plain = config_of(tmp_path)
    for key in PRESETS:
        save_config(tmp_path, {**plain, "config": plain["config"] | {key: 2 * 10**9}})
        refused(tmp_path, "must have the shape|must include ")
    if name == "preset of bert":
        save_config(tmp_path, plain)
        task = json.loads((tmp_path / "task.json").read_text())
        task["config"]["num_classes"] = 2 * 10**9
        (tmp_path / "task.json").write_text(json.dumps(task))
        refused(tmp_path, r"dense/vars/0 must have the shape \(12, 2000000000\)")


@pytest.mark.parametrize(
    ("dtype", "theirs"), [("int8", "I8"), ("uint8", "U8"), ("int64", "I64"), ("bool", "BOOL")]
)
def test_weights_in_another_dtype_are_refused_by_name(gpt2, dtype, theirs):
    change(gpt2, lambda arrays: arrays.update(
        {"transformer.h.0.mlp.c_fc.weight": np.ones((12, 48), dtype)}
    ))  # fmt: skip
    refused(gpt2, rf"h\.0\.mlp\.c_fc\.weight must be in float32 .*quantised.*: {theirs}\.$")


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_weights_in_eight_bits_of_floating_point_are_refused_by_name(gpt2, kind):
    """NumPy has no such dtype: the header is changed by hand."""
    name = "transformer.h.0.attn.c_attn.weight"  # whose shape is not compared before
    content = (gpt2 / FILE).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header[name] |= {"dtype": kind}
    header[name]["shape"][1] *= 4
    new = json.dumps(header).encode()
    (gpt2 / FILE).write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])
    refused(gpt2, rf"c_attn\.weight must be in float32.*Received: {kind}")


def test_a_folder_that_says_it_is_quantised_is_refused(gpt2):
    save_config(gpt2, config_of(gpt2) | {"quantization_config": {"quant_method": "bitsandbytes"}})
    refused(gpt2, "quantization_config must be None.*bitsandbytes")


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_in_any_dtype_of_floating_point_are_read(gpt2, dtype):
    before = convert.read(gpt2).model.weights[0].numpy()
    kept = getattr(ml_dtypes, dtype, dtype)
    change(gpt2, lambda arrays: arrays.update({k: a.astype(kept) for k, a in arrays.items()}))
    after = convert.read(gpt2).model.weights[0].numpy()
    np.testing.assert_array_equal(after, before.astype(kept).astype("float32"))


def test_numbers_that_are_not_finite_in_float32_are_refused_by_name(family):
    """In each family two of the four, so that each is in several."""
    name, path = family
    before, names = (path / FILE).read_bytes(), sorted(load_file(path / FILE))
    first, second = (np.random.default_rng(i).choice(names, 2, replace=False) for i in range(2))
    cases = [(first[0], np.nan), (second[0], 1e300)]
    if [*SIZES].index(name) % 2:
        cases = [(second[0], np.inf), (second[1], -np.inf)]
    for name, bad in cases:

        def spoil(arrays, name=name, bad=bad):
            arrays[name] = arrays[name].astype("float64")
            arrays[name].flat[-1] = bad

        change(path, spoil)
        bare = re.escape(name.split(".", 1)[1]) if "." in name else name
        refused(path, rf"{bare} must have finite numbers.*Received: 1 of \d+")
        (path / FILE).write_bytes(before)


def test_arrays_without_a_place_are_named_and_masks_are_not(gpt2, caplog):
    more = {"score.weight": np.ones((2, 12), "float32")}
    masks = {"transformer.h.0.attn.bias": np.ones((1, 1, 3, 3), "uint8"),
             "transformer.h.0.attn.masked_bias": np.float32([-1e4])}  # fmt: skip
    change(gpt2, lambda arrays: arrays.update(masks))
    convert.read(gpt2)
    assert caplog.text == ""
    change(gpt2, lambda arrays: arrays.update(more))
    convert.read(gpt2)
    assert re.search(
        r"no place for these arrays, which were not read: score\.weight\.", caplog.text
    )


TWINS = {
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "marian": ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    "marian of two vocabularies": ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    "m2m100": ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    "bart": ("lm_head.weight", "model.shared.weight"),
    "t5": ("encoder.embed_tokens.weight", "shared.weight"),
}


def test_an_array_that_is_there_twice_must_be_the_same(family):
    name, path = family
    if name not in TWINS:
        pytest.skip("no head for tokens")
    before, (twin, first) = (path / FILE).read_bytes(), TWINS[name]
    change(path, lambda arrays: arrays.update({twin: arrays[first].copy()}))
    model = convert.read(path).model
    change(path, lambda arrays: arrays.update({twin: arrays[first] + np.float32(1e-6)}))
    refused(path, rf"{twin} must be equal to {first.removeprefix('transformer.')}")
    if "marian" in name or name in ("m2m100", "t5"):  # one name is as good as the other
        change(path, lambda arrays: arrays.update({twin: arrays.pop(first)}))
        for one, other in zip(convert.read(path).model.weights, model.weights, strict=True):
            assert np.abs(array(one) - array(other)).max() < 1e-5
    (path / FILE).write_bytes(before)


def test_a_name_with_and_without_its_prefix_is_refused(gpt2):
    change(gpt2, lambda a: a.update({"wte.weight": a["transformer.wte.weight"]}))
    refused(gpt2, r"Each array must occur once\. Received: wte\.weight twice")


OUTSIDE = ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", ".", "..", "",
           "sub/part.safetensors", "part\0.safetensors", 3, None, ["part.safetensors"]]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_names_files_in_its_folder_only(tmp_path, name):
    path = tmp_path / "folder"
    path.mkdir()
    FAMILIES["gpt2"](path)
    (path / FILE).rename(tmp_path / "outside.safetensors")
    (path / "sub").mkdir()
    index = {"weight_map": {"wte.weight": name}}
    (path / f"{FILE}.index.json").write_text(json.dumps(index))
    refused(
        path, "must name files in its folder|has no file|must be a file in|is damaged or missing"
    )


@pytest.mark.parametrize("file", [FILE, "config.json", "merges.txt", "vocab.json"])
def test_links_that_lead_out_of_a_folder_are_refused(tmp_path, file):
    path, outside = tmp_path / "folder", tmp_path / "outside"
    path.mkdir()
    FAMILIES["gpt2"](path)
    (path / file).rename(outside)
    (path / file).symlink_to(outside)
    refused(path, f"{re.escape(file)} must be a file in this folder; a path or link that leads out")
    (path / file).unlink()
    outside.rename(path / "inside")
    (path / file).symlink_to("inside")
    convert.read(path)
    (tmp_path / "linked").symlink_to(path)
    convert.read(tmp_path / "linked")


def test_the_links_of_hugging_face_s_cache_are_followed(tmp_path):
    path, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b/blobs"
    path.mkdir(parents=True)
    blobs.mkdir()
    FAMILIES["gpt2"](path)
    for number, file in enumerate(sorted(path.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    convert.read(path)
    (blobs / "0").rename(tmp_path / "elsewhere")
    (blobs / "0").symlink_to(tmp_path / "elsewhere")
    refused(path, "must be a file in this folder")


def test_one_whole_file_comes_first_and_others_are_named(gpt2, caplog):
    before = array(convert.read(gpt2).model.weights[0])
    arrays = load_file(gpt2 / FILE)
    save_file({name: values + 1 for name, values in arrays.items()}, gpt2 / "z.safetensors")
    np.testing.assert_array_equal(array(convert.read(gpt2).model.weights[0]), before)
    assert "only model.safetensors is read. Not read: z.safetensors." in caplog.text
    (gpt2 / FILE).rename(gpt2 / "a.safetensors")
    refused(gpt2, r"Each array must occur once\. Received: transformer\.h\.0\.\S+ twice")


DEEP = "[" * 10**5
JSON_FILES = ["config.json", "generation_config.json", "tokenizer_config.json", "vocab.json",
              "special_tokens_map.json", "added_tokens.json", f"{FILE}.index.json"]  # fmt: skip


@pytest.mark.parametrize("file", JSON_FILES)
@pytest.mark.parametrize(
    ("content", "received"),
    [(DEEP, "nested too deeply"), ('{"a":' * 10**5, "nested too deeply"), ("[[1, 2]]", r"\[\["),
     ("9" * 5000, "digits"), ("\udcff", "decode"), ("x" * 60, "Expecting")],
)  # fmt: skip
def test_a_damaged_json_file_is_one_line(tmp_path, file, content, received):
    FAMILIES["marian"](tmp_path)
    if "index" in file:
        (tmp_path / FILE).unlink()
    (tmp_path / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(tmp_path, rf"{re.escape(file)} must hold a JSON object\. Received: .*{received}")


def test_a_json_file_has_a_largest_size(gpt2, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_JSON_BYTES", 100)
    refused(gpt2, r"config\.json must hold a JSON object\. Received: more than 100 bytes")


@pytest.mark.parametrize("kind", ["external", "virtual", "unwritten", "compressed"])
def test_arrays_of_keras_hub_that_lie_elsewhere_are_refused(tmp_path, kind):
    FAMILIES["preset of gpt2"](tmp_path)
    place = "layers/reversible_embedding/vars/0"
    with h5py.File(tmp_path / "model.weights.h5", "a") as weights:
        values = np.array(weights[place])
        del weights[place]
        if kind == "external":
            raw = tmp_path.parent / f"{tmp_path.name}.raw"
            values.tofile(raw)
            weights.create_dataset(place, values.shape, "float32",
                                   external=[(str(raw), 0, values.nbytes)])  # fmt: skip
        elif kind == "virtual":
            weights.create_virtual_dataset(place, h5py.VirtualLayout(values.shape, "float32"))
        elif kind == "unwritten":
            weights.create_dataset(place, values.shape, "float32", chunks=True)
        else:
            weights.create_dataset(place, data=values * 0, compression="gzip")
    refused(tmp_path, r"must hold its arrays whole and uncompressed.*reversible_embedding/vars/0")


def test_a_checkpoint_of_opennmt_in_another_folder_is_not_read(tmp_path):
    FAMILIES["opennmt"](tmp_path)
    other = tmp_path / "other"
    (tmp_path / "avg").rename(other)
    (tmp_path / "avg").mkdir()
    for file in other.iterdir():
        if not file.name.startswith("ckpt") and file.name != "checkpoint":
            file.rename(tmp_path / "avg" / file.name)
    [index] = other.glob("ckpt-*.index")
    named = f'model_checkpoint_path: "{index.with_suffix("")}"\n'
    (tmp_path / "avg" / "checkpoint").write_text(named)
    with pytest.raises(ConversionError, match="must hold checkpoints of OpenNMT-tf 2"):
        convert.read(tmp_path / "avg")


def test_the_shapes_of_arrays_are_known_before_they_are_read(gpt2):
    arrays = ModelFolder(gpt2).arrays()
    assert arrays.shape("transformer.wte.weight") == (290, 12)
    assert isinstance(arrays, Weights) and "x" not in arrays and len(arrays) == len([*arrays])
