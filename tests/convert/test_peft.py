"""LoRA in PEFT's files: theirs read by us, ours read by them."""

import copy
import functools
import json
import types

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import (
    ConversionError,
    arrays_of,
    assign,
    bert,
    load_gpt2,
    marian,
    read_peft,
    write_peft,
    writing,
)
from tests.reference import array, fill

RANDOM = np.random.default_rng(3)
BLOCKS = {"num_layers": 2, "hidden_dim": 6, "num_heads": 2, "dropout": 0.0}
TINY = {"vocabulary_size": 11, **BLOCKS}
IDS = RANDOM.integers(0, 11, (3, 5)).astype("int32")
# Peft asks transformers in words that are about to go.
of_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
pytestmark = pytest.mark.filterwarnings("ignore:The output is not checked")
TARGETS = ("query_key_value", "output", "widen", "narrow")


def tuned_by_hand(model, *args, **kwargs):
    tuned = kt.add_lora(model, *args, **kwargs)
    for weight in tuned.trainable_weights:
        weight.assign(0.4 * RANDOM.normal(size=weight.shape).astype("float32"))
    return tuned


@pytest.mark.usefixtures("unchecked")
def test_what_is_written_is_read(tmp_path):
    model = fill(kt.gpt2(max_sequence_length=9, **TINY))
    tuned = tuned_by_hand(model, 2, alpha=5, targets=TARGETS)
    write_peft(tuned, tmp_path / "lora", "gpt2")
    again = read_peft(model, tmp_path / "lora", "gpt2")
    np.testing.assert_array_equal(array(again(IDS)), array(tuned(IDS)))


def changed(folder, **settings):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_told(tmp_path):
    model = fill(kt.gpt2(max_sequence_length=9, **TINY))
    with pytest.raises(ConversionError, match="must have LoRA, from add_lora"):
        write_peft(model, tmp_path / "lora", "gpt2")
    with pytest.raises(
        ConversionError, match=r"family must be one of bart, bert, gpt2, llama, m2m100.*'gpt3'"
    ):
        write_peft(model, tmp_path / "lora", "gpt3")
    with pytest.raises(ConversionError, match=r"tune query_key_value\. Received: query"):
        write_peft(kt.add_lora(model, 2), tmp_path / "lora", "gpt2")
    with pytest.raises(ConversionError, match=r"must hold adapter_config.json and adapter_model"):
        read_peft(model, tmp_path, "gpt2")
    lora = write_peft(kt.add_lora(model, 2, targets=TARGETS), tmp_path / "lora", "gpt2")
    with pytest.raises(ValueError, match="already exists"):
        write_peft(kt.add_lora(model, 2, targets=TARGETS), lora, "gpt2")
    shallow = kt.gpt2(max_sequence_length=9, **{**TINY, "num_layers": 1})
    with pytest.raises(ConversionError, match=r"tunes a layer that this model does not have: h\.1"):
        read_peft(shallow, lora, "gpt2")
    wide = kt.gpt2(max_sequence_length=9, **{**TINY, "hidden_dim": 8})
    with pytest.raises(ConversionError, match=r"must have the shape \(2, 8\).*\(2, 6\)"):
        read_peft(wide, lora, "gpt2")
    changed(lora, use_dora=True)
    with pytest.raises(ConversionError, match=r"use_dora must be False or None.*Received: True"):
        read_peft(model, lora, "gpt2")
    changed(lora, peft_type="IA3")
    with pytest.raises(ConversionError, match=r"peft_type must be LORA\. Received: 'IA3'"):
        read_peft(model, lora, "gpt2")
    changed(lora, peft_type="LORA", use_dora=False)
    (lora / "adapter_model.safetensors").write_bytes(b"1")
    with pytest.raises(ConversionError, match="damaged"):
        read_peft(model, lora, "gpt2")


def test_a_model_with_lora_is_merged_before_it_is_written(monkeypatch, tmp_path):
    monkeypatch.setitem(writing.WRITERS, "letters", "no module")
    text_model = types.SimpleNamespace(model=kt.add_lora(kt.language_model(11, **BLOCKS), 2))
    with pytest.raises(ConversionError, match="Call merge_lora, or write_peft"):
        convert.write(text_model, "letters", tmp_path / "out")


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("peft")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=6, n_layer=2, n_head=2, n_positions=9, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def ours(theirs):
    arrays = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    return load_gpt2(kt.gpt2(max_sequence_length=9, **TINY), arrays)


def logits_of(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor(IDS, dtype=torch.int64)).logits.numpy()


@of_peft
@pytest.mark.oracle
@pytest.mark.parametrize("modules", [["c_attn"], ["c_attn", "mlp.c_fc", "c_proj"]])
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_s_lora_is_read(theirs, ours, tmp_path, modules, rslora):
    import peft
    import torch

    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=modules, fan_in_fan_out=True, use_rslora=rslora
    )
    tuned = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    tuned.save_pretrained(tmp_path)
    read = read_peft(ours, tmp_path, "gpt2")
    expected = logits_of(tuned)
    assert np.abs(expected - logits_of(theirs)).max() > 0.1
    np.testing.assert_allclose(array(read(IDS)), expected, atol=2e-5)
    np.testing.assert_allclose(array(kt.merge_lora(read)(IDS)), expected, atol=2e-5)


@of_peft
@pytest.mark.oracle
def test_peft_reads_ours(theirs, ours, tmp_path):
    import peft

    tuned = tuned_by_hand(ours, 2, alpha=5, targets=TARGETS)
    write_peft(tuned, tmp_path / "lora", "gpt2")
    read = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path / "lora").eval()
    expected = array(tuned(IDS))
    assert np.abs(expected - array(ours(IDS))).max() > 0.1
    np.testing.assert_allclose(logits_of(read), expected, atol=2e-5)


@pytest.mark.oracle
def test_a_folder_that_peft_reads_otherwise_gets_no_name(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    tuned = tuned_by_hand(fill(kt.gpt2(max_sequence_length=9, **TINY)), 2, targets=TARGETS)
    monkeypatch.setattr(convert.peft, "DOWN", ".lora_C.weight")
    with pytest.raises(
        ConversionError, match=r"check by peft failed: transformer.h.0.attn\.c_attn differs"
    ):
        write_peft(tuned, tmp_path / "lora", "gpt2")
    assert not (tmp_path / "lora").exists()


@pytest.fixture(scope="module")
def their_marian():
    pytest.importorskip("peft")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(3)
    depth = dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    widths = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 7)
    config = transformers.MarianConfig(
        vocab_size=11, d_model=6, pad_token_id=10, decoder_start_token_id=10, forced_eos_token_id=0,
        **depth, **heads, **widths,
    )  # fmt: skip
    return transformers.MarianMTModel(config).eval()


@of_peft
@pytest.mark.oracle
@pytest.mark.usefixtures("checked_here")
def test_peft_and_ours_merge_into_the_same_marian(their_marian, tmp_path):
    """Layers that theirs cut and ours keep side by side; both ways."""
    import peft
    import torch

    model = kt.translation(
        11, num_layers=2, hidden_dim=6, intermediate_dim=7, num_heads=2, normalize_first=False
    )
    arrays = {name: tensor.numpy() for name, tensor in their_marian.state_dict().items()}
    assign(marian.block_rows(model), arrays, "Marian")
    modules = ["q_proj", "v_proj", "k_proj", "out_proj", "fc2"]
    tuned = peft.get_peft_model(
        copy.deepcopy(their_marian), peft.LoraConfig(r=3, lora_alpha=5, target_modules=modules)
    )
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    tuned.save_pretrained(tmp_path / "theirs")
    read = read_peft(model, tmp_path / "theirs", "marian")
    assert len(read.trainable_weights) == 2 * 2 * (5 + 9), "two matrices a layer, two layers a side"
    write_peft(read, tmp_path / "ours", "marian")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(their_marian), tmp_path / "ours")
    merged = arrays_of(marian.block_rows(kt.merge_lora(read)))
    for model_of_peft in (tuned, again):
        state = model_of_peft.merge_and_unload().state_dict()
        for name, array_of_ours in merged.items():
            np.testing.assert_allclose(array_of_ours, state[name].numpy(), atol=1e-6, err_msg=name)
    name = "model.decoder.layers.1.encoder_attn.v_proj.weight"
    assert np.abs(merged[name] - arrays[name]).max() > 0.1


@of_peft
@pytest.mark.oracle
@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize("heads", [True, False])
def test_peft_s_bert_and_its_head_go_in_and_out(tmp_path, heads):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=6, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=7, max_position_embeddings=9, num_labels=3,
    )  # fmt: skip
    kind = transformers.BertForSequenceClassification if heads else transformers.BertModel
    theirs = kind(config).eval()
    blocks = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    model = kt.bert(11, size="tiny", max_sequence_length=9, **blocks)
    model = kt.bert_classifier(model, 3) if heads else model
    arrays = {name.removeprefix("bert."): a.numpy() for name, a in theirs.state_dict().items()}
    assign(bert.rows(model), arrays, "BERT")
    tuned = peft.get_peft_model(
        copy.deepcopy(theirs),
        peft.LoraConfig(
            r=3,
            lora_alpha=5,
            target_modules=["query", "value", "intermediate.dense", "output.dense"],
            modules_to_save=["classifier"] if heads else None,
        ),
    ).eval()
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    tuned.save_pretrained(tmp_path / "theirs")
    read = read_peft(model, tmp_path / "theirs", "bert")
    trained = read.trainable_weights
    assert len(trained) == 2 * 2 * 5 + 2 * heads
    write_peft(read, tmp_path / "ours", "bert")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path / "ours").eval()

    def of_theirs(peft_model):
        with torch.no_grad():
            outputs = peft_model(torch.tensor(IDS + (IDS == 0), dtype=torch.int64))
        return (outputs.logits if heads else outputs.last_hidden_state).numpy()

    def of_ours(ours):
        outputs = ours({"token_ids": IDS + (IDS == 0), "segment_ids": IDS * 0})
        return array(outputs if heads else outputs["vectors"])

    expected = of_theirs(tuned)
    assert np.abs(expected - of_theirs(theirs)).max() > 0.1
    np.testing.assert_allclose(of_ours(read), expected, atol=1e-5)
    np.testing.assert_allclose(of_theirs(again), expected, atol=1e-5)


INITIAL = [True, False, None, "gaussian", "orthogonal", "eva", "pissa", "pissa_niter_4", "olora",
           "OLoRA", "corda", "loftq", "lora_ga", "mica", "other", 3]  # fmt: skip
MODULES = [None, [], ["c_attn"], ["attn.c_attn"], ["c_attn", "c_fc"], "all-linear", ".*c_attn", 3,
           ".*(c_attn|c_fc)", "c_attn"]  # fmt: skip
VALUES = {
    "init_lora_weights": INITIAL,
    "target_modules": MODULES,
    "exclude_modules": MODULES,
    "modules_to_save": [None, [], ["ln_f"], ["wte"], ["h.0.ln_1"]],
    "layers_to_transform": [None, [], 0, [0], [0, 1], [3], "0"],
    "layers_pattern": [None, [], "h", ["h"], "other"],
    "rank_pattern": [{}, None, {"c_fc": 5}],
    "alpha_pattern": [{}, None, {"c_fc": 9}],
    "bias": ["none", "all", "lora_only"],
    "task_type": [None, "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS"],
    "lora_alpha": [5, 7.5, 0, -2, "5", None],
    "r": [2, 3, 0, 10**9, None],
    "made_up": [1, None],
}


@of_peft
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_changed_setting_of_peft_changes_both_or_is_named(
    theirs, ours, tmp_path, monkeypatch, caplog
):
    import peft
    import torch

    # Most of the time is that of building a model, whose LoRA each folder fills.
    built = functools.cache(lambda *settings: kt.add_lora(ours, *settings))
    monkeypatch.setattr(convert.peft, "add_lora", lambda _, *settings: built(*settings))

    config = peft.LoraConfig(
        r=2, lora_alpha=5, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True,
        modules_to_save=["ln_f"],
    )  # fmt: skip
    tuned = peft.get_peft_model(copy.deepcopy(theirs), config)
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    tuned.save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    plain = {"made_up": None, **json.loads(file.read_text())}
    keys = sorted({*plain, *VALUES} - {"peft_type"})
    counts = {"refused": 0, "named": 0, "equal": 0, "refused by them": 0}
    for key in keys:
        others = [3, True, "other", {"c_fc": 1}, ["c_fc"]]
        for value in VALUES.get(key, [not plain[key]] if plain[key] in (True, False) else others):
            file.write_text(json.dumps({**plain, key: value}))
            caplog.clear()
            try:
                found = array(read_peft(ours, tmp_path, "gpt2")(IDS))
            except ConversionError as error:
                assert "\n" not in str(error) and (key in str(error) or key in VALUES)
                counts["refused"] += 1
                continue
            if f"{key}=" in caplog.text:
                counts["named"] += 1
                continue
            try:
                model = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path)
                expected = logits_of(model.eval())
            except Exception:  # of many kinds
                counts["refused by them"] += 1
                print(f"they refuse {key}={value!r}")
                continue
            np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=f"{key}={value!r}")
            counts["equal"] += 1
    print(f"{len(keys)} settings: {counts}")
    assert min(counts["refused"], counts["equal"]) > 20
