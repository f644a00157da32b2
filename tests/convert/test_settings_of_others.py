"""Each setting of Hugging Face's models, changed in turn: both agree, or ours says so."""

import json
import random

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, Converted, huggingface
from keras_transformer.tokenizers import WordPieceTokenizer
from tests.convert.folders import BLOCK, FAMILIES, PIECES, config_of, save_config
from tests.convert.test_mistakes import build_once
from tests.reference import array

pytestmark = pytest.mark.oracle
DRAWS = 1  # of values for each setting
MISSING = object()
# Settings that older versions wrote, of some family each, and one that nobody has.
OLDER = {
    "add_final_layer_norm": False, "extra_pos_embeddings": 3, "n_ctx": 5, "new_rotary_base": 1e4,
    "normalize_before": False, "num_labels": 3, "pruned_heads": {}, "quantization_config": None,
    "static_position_embeddings": True, "tie_encoder_decoder": False, "torch_dtype": "float32",
    "position_embedding_type": "absolute", "hidden_size_multiplier": 2,
}  # fmt: skip
# They change the order of our ids, or that of theirs, which the tests of each family compare.
ORDER = {"pad_token_id", "eos_token_id", "decoder_start_token_id", "model_type", "architectures"}
STRINGS = {"feed_forward_proj": ["gated-gelu", "gated-silu", "gelu", "silu", "gated-relu"]}
ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish", "tanh", "mish"]


def a_pretraining(path):
    backbone = kt.bert(len(PIECES), "tiny", 40, **BLOCK, intermediate_dim=14, norm_epsilon=1e-3)
    model, cutter = kt.bert_pretraining(backbone), WordPieceTokenizer(PIECES)
    huggingface.write(Converted("pretraining", model, cutter), path)


SMALL = {name: make for name, make in FAMILIES.items() if "preset" not in name}
SMALL = {**SMALL, "pretraining of bert": a_pretraining}
del SMALL["opennmt"]
# The tokens that have the same ids in ours, which has a start of its own and no <s>.
COLUMNS = dict.fromkeys(("bart", "m2m100", "mbart", "t5"), slice(4, 200))


def noisy(path):
    """Weights of which every one matters."""
    from safetensors.numpy import load_file, save_file

    draw, arrays = np.random.default_rng(3), load_file(path / "model.safetensors")
    for values in arrays.values():
        values += 0.4 * draw.normal(size=values.shape).astype("float32")
    save_file(arrays, path / "model.safetensors", {"format": "pt"})


def their_logits(path, name):
    """Those of Hugging Face's library; None if it does not read the folder."""
    import torch
    import transformers

    kinds = {"m2m100": "M2M100ForConditionalGeneration", "t5": "T5ForConditionalGeneration"}
    kind = kinds.get(name)
    try:
        kind = kind or (config_of(path).get("architectures") or [None])[0]
        model, report = getattr(transformers, kind).from_pretrained(
            path, output_loading_info=True, dtype=torch.float32
        )
        if report["missing_keys"] or report["mismatched_keys"]:
            return None
        given = inputs(name)
        if "segment_ids" in given and "distil" not in name and name != "roberta":
            given["token_type_ids"] = given["segment_ids"].astype("int64")
        given = {
            {"source_ids": "input_ids", "token_ids": "input_ids",
             "target_ids": "decoder_input_ids"}.get(key, key): torch.tensor(value)
            for key, value in given.items()
            if key not in ("segment_ids", "masked_positions")
        }  # fmt: skip
        with torch.no_grad():
            found = model.eval()(**given, return_dict=True)
    except Exception:  # it has many kinds
        return None
    found = found.prediction_logits if "prediction_logits" in found else found.logits
    return found.numpy()[..., COLUMNS.get(name, slice(None))]


def inputs(name):
    ids = np.random.default_rng(5).integers(7, 39, (2, 7)).astype("int32")
    if "marian" in name or name in COLUMNS:
        return {"source_ids": ids, "target_ids": ids[:, ::-1].copy()}
    if name in ("gpt2", "llama"):
        return {"token_ids": ids}
    given = {"token_ids": ids, "segment_ids": (ids > 20).astype("int32")}
    if "pretraining" in name:
        given["masked_positions"] = np.arange(7, dtype="int32")[None].repeat(2, axis=0)
    return given


def our_logits(model, name):
    given = inputs(name)
    found = model(given["token_ids"] if len(given) == 1 else given, training=False)
    found = array(found["masked_tokens"] if "pretraining" in name else found)
    return found[..., COLUMNS.get(name, slice(None))]


def candidates(name, value):
    """Other values of a setting, of its kind, none, and no setting at all."""
    others = {
        bool: lambda: [not value],
        int: lambda: [value + 1, 2 * value + 2, 0, 10**5],
        float: lambda: [0.3, 0.02, 10 * value],
        str: lambda: STRINGS.get(name, ACTIVATIONS if "act" in name else ["other"]),
        dict: lambda: [{"0": "x", "1": "y", "2": "z"}, {"0": [1]}],
        list: lambda: [["Other"]],
        type(None): lambda: [3, True, "other", {"bits": 8}],
    }[type(value)]()
    return [other for other in (*others, None, MISSING) if other is MISSING or other != value]


# Read and written by the code of the family before them.
RELATIVES = ("marian of two vocabularies", "mbart", "roberta", "pretraining of bert")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] if name in RELATIVES else []) for name in SMALL],
)
def test_a_changed_setting_changes_both_or_is_named(name, tmp_path, monkeypatch, caplog):
    transformers = pytest.importorskip("transformers")
    build_once(monkeypatch)
    SMALL[name](tmp_path)
    noisy(tmp_path)
    if "marian" in name or name == "m2m100":  # theirs computes its sines anew, which takes long
        save_config(tmp_path, {**config_of(tmp_path), "max_position_embeddings": 40})
    plain = config_of(tmp_path)
    usual = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    settings = {**OLDER, **usual, **plain}
    before = their_logits(tmp_path, name)
    np.testing.assert_allclose(our_logits(convert.read(tmp_path).model, name), before, atol=1e-4)
    assert "not supported" not in caplog.text
    draw = random.Random(7)
    counts = {"refused": 0, "named": 0, "honoured": 0, "equal": 0, "refused by them": 0}
    for key in sorted(settings.keys() - ORDER):
        if key not in settings:
            continue
        values = candidates(key, settings[key])
        # Every activation: at least one other is honoured.
        count = len(values) if settings[key] in ACTIVATIONS else min(DRAWS, len(values))
        for value in draw.sample(values, count):
            changed = dict(plain)
            if value is MISSING:
                changed.pop(key, None)
            else:
                changed[key] = value
            save_config(tmp_path, changed)
            caplog.clear()
            try:
                ours = convert.read(tmp_path).model
            except ConversionError as error:
                assert "\n" not in str(error) and str(tmp_path) in str(error)
                counts["refused"] += 1
                continue
            if key in caplog.text and "not supported" in caplog.text:
                counts["named"] += 1
                continue
            theirs = their_logits(tmp_path, name)
            if theirs is None:
                counts["refused by them"] += 1
                print(f"{name}: they refuse {key}={value!r:.40}")
                continue
            found = our_logits(ours, name)
            assert found.shape == theirs.shape, f"{key}={value}"
            difference = np.abs(found - theirs).max()
            assert difference < 1e-4, f"{key}={value!r}: {difference:.1e} of {np.abs(theirs).max()}"
            moved = np.abs(theirs - before).max() > 1e-4
            counts["honoured" if moved else "equal"] += 1
    print(f"{name}: {json.dumps(counts)}, {sum(counts.values())} drawn")
    assert counts["refused"] and counts["honoured"]
