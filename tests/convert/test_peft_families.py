"""LoRA of Llama and its relatives, T5 and BART in PEFT's files: drawn cases, both ways."""

import copy
import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.convert import (
    ConversionError,
    assign,
    bart,
    llama,
    read_peft,
    t5,
    write_peft,
)
from keras_transformer.convert.tables import VocabularyPermutation
from tests.reference import array, fill

pytestmark = [
    # Peft asks transformers in words that are about to go.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The output is not checked"),
]


def oracle(test):
    return pytest.mark.oracle(pytest.mark.usefixtures("checked_here")(test))


SIZE = 13
LLAMA = {"num_layers": 2, "hidden_dim": 12, "num_heads": 6, "key_dim": 4, "intermediate_dim": 10}
LLAMA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
T5_MODULES = ["SelfAttention.q", "q", "k", "v", "o", "wo"]
BART_MODULES = ["q_proj", "k_proj", "encoder_attn.v_proj", "v_proj", "out_proj", "fc1", "fc2"]
SHARED = {"num_key_value_heads": 2, "rotary": {}}


def of_llama(kind, **attention):
    theirs = {"vocab_size": SIZE, "hidden_size": 12, "num_hidden_layers": 2, "head_dim": 4,
              "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 10,
              "tie_word_embeddings": False, "pad_token_id": None,
              "rms_norm_eps": 1e-6}  # fmt: skip
    ours = kt.language_model(
        SIZE, blocks="llama", scale_embedding=False, tie_output=False, norm_epsilon=1e-6,
        attention_arguments=SHARED | attention, **LLAMA,
    )  # fmt: skip
    return (
        f"{kind}ForCausalLM",
        theirs,
        ours,
        llama.rows,
        range(SIZE),
    )


def of_t5(form, tied):
    theirs = {"vocab_size": SIZE, "d_model": 12, "d_kv": 5, "d_ff": 10, "num_layers": 2,
              "num_heads": 3, "num_decoder_layers": 1, "feed_forward_proj": form,
              "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
              "tie_word_embeddings": tied, "scale_decoder_outputs": tied, "pad_token_id": 0,
              "decoder_start_token_id": 0}  # fmt: skip
    order = VocabularyPermutation([0, 2, 0, 1, *range(3, SIZE)])
    ours = kt.translation(
        len(order), num_layers=2, num_decoder_layers=1, hidden_dim=12, num_heads=3, key_dim=5,
        intermediate_dim=10, use_bias=False, normalization="rms", scale_embedding=False,
        tie_output=tied, gated=form != "relu", activation=t5.ACTIVATIONS[t5.FORMS[form]],
        position_bias={"type": "t5", "num_buckets": 8, "max_distance": 9}, norm_epsilon=1e-6,
    )  # fmt: skip
    kind = "T5ForConditionalGeneration"
    return kind, theirs, ours, lambda model: t5.rows(model, order, tied), order.their_id_of


def of_bart(kind, normalize_first):
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": 2, "attention_heads": 2, "ffn_dim": 10}.items()}  # fmt: skip
    theirs = {"vocab_size": SIZE, "d_model": 6, **sides, "max_position_embeddings": 9,
              "pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}  # fmt: skip
    order = VocabularyPermutation([1, 3, 2, 2, 0, *range(4, SIZE)])
    ours = kt.translation(
        len(order), num_layers=2, hidden_dim=6, num_heads=2, intermediate_dim=10,
        normalize_first=normalize_first, max_sequence_length=9, embedding_norm=True,
        scale_embedding=False, activation="gelu", output_bias=True, norm_epsilon=1e-5,
    )  # fmt: skip
    kind = f"{kind}ForConditionalGeneration"
    return kind, theirs, ours, lambda model: bart.rows(model, order), order.their_id_of


# Of each family: its name for `read_peft`, what makes it, and PEFT's names of its layers.
CASES = {
    "Llama": ("llama", of_llama, ("Llama",), LLAMA_MODULES),
    "Mistral": ("llama", of_llama, ("Mistral",), LLAMA_MODULES),
    "Qwen2": (
        "llama", lambda: of_llama("Qwen2", use_bias=True, use_output_bias=False), (), LLAMA_MODULES
    ),
    "Qwen3": ("llama", lambda: of_llama("Qwen3", query_key_norm=1e-6), (), LLAMA_MODULES),
    "T5": ("t5", of_t5, ("relu", True), [*T5_MODULES, "wi"]),
    "T5 v1.1": ("t5", of_t5, ("gated-gelu", False), [*T5_MODULES, "wi_0", "wi_1"]),
    "BART": ("bart", of_bart, ("Bart", False), BART_MODULES),
    "mBART": ("bart", of_bart, ("MBart", True), BART_MODULES),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """The family, the modules, their model and ours with the same weights, and their ids."""
    pytest.importorskip("peft")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    family, make, arguments, modules = CASES[request.param]
    kind, settings, ours, rows_of, ids = make(*arguments)
    model_class = getattr(transformers, kind)
    torch.manual_seed(3)
    theirs = model_class(model_class.config_class(**settings)).eval()
    if kind.startswith("T5") and not settings["tie_word_embeddings"]:
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.clone())
    draw(theirs.parameters())
    arrays = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    assign(rows_of(ours), arrays, family)
    return family, modules, theirs, ours, np.array(ids)


def draw(parameters):
    import torch

    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(0.4 * torch.randn_like(parameter))


def compared(theirs, ours, ids):
    """The logits of theirs, and those of ours in their order, for the same drawn tokens."""
    import torch

    drawn = np.random.default_rng(5).integers(4, len(ids), (2, 3, 7)).astype("int32")
    names = (
        ["input_ids", "decoder_input_ids"] if theirs.config.is_encoder_decoder else ["input_ids"]
    )
    with torch.no_grad():
        inputs = {name: torch.tensor(ids[row]) for name, row in zip(names, drawn, strict=False)}
        expected = theirs(**inputs).logits.numpy()[..., ids]
    inputs = {"source_ids": drawn[0], "target_ids": drawn[1]} if len(names) > 1 else drawn[0]
    found = array(ours(inputs))
    real = [i for i in range(len(ids)) if len(names) == 1 or i != 2]  # not the start, a copy
    return expected[..., real], found[..., real]


def exchanged(case, config, folder):
    """Reads PEFT's drawn tuning of a case and writes it back; all three have equal logits.

    Returns:
        Their tuned model, ours as it was read, and the logits of theirs.
    """
    import peft

    family, _, theirs, ours, ids = case
    tuned = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
    draw(p for p in tuned.parameters() if p.requires_grad)
    tuned.save_pretrained(folder / "theirs")
    read = read_peft(ours, folder / "theirs", family)
    expected, found = compared(tuned, read, ids)
    largest = f"{np.abs(expected - found).max():.1e} of {np.abs(expected).max():.1f}"
    print(f"{config.target_modules}: {largest}")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    write_peft(read, folder / "ours", family)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), folder / "ours").eval()
    np.testing.assert_allclose(compared(again, read, ids)[0], expected, atol=1e-5)
    return tuned, read, expected


@oracle
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.soak)])
def test_drawn_lora_has_the_logits_of_peft_both_ways(case, seed, tmp_path):
    import peft

    _, modules, theirs, ours, ids = case
    random = np.random.default_rng(seed)
    chosen = [str(name) for name in random.permutation(modules)[: random.integers(1, 7)]]
    config = peft.LoraConfig(
        r=int(random.integers(1, 5)), lora_alpha=int(random.integers(1, 9)), target_modules=chosen,
        use_rslora=bool(random.integers(2)),
    )  # fmt: skip
    tuned, read, expected = exchanged(case, config, tmp_path)
    before, _ = compared(theirs, ours, ids)
    assert np.abs(expected - before).max() > 0.05
    np.testing.assert_allclose(compared(tuned, kt.merge_lora(read), ids)[1], expected, atol=1e-5)


@oracle
@pytest.mark.parametrize("case", ["Qwen2"], indirect=True)
def test_tables_that_are_tuned_too_go_in_and_out(case, tmp_path):
    import peft

    saved = ["embed_tokens", "lm_head", "norm"]
    config = peft.LoraConfig(r=2, target_modules=["v_proj"], modules_to_save=saved)
    tuned, read, _ = exchanged(case, config, tmp_path)
    theirs_trained = sum(parameter.requires_grad for parameter in tuned.parameters())
    assert len(read.trainable_weights) == theirs_trained


@oracle
@pytest.mark.parametrize("case", ["Qwen2"], indirect=True)
def test_a_projection_that_is_tuned_whole_beside_lora_is_refused(case, tmp_path):
    import peft

    family, _, theirs, ours, _ = case
    config = peft.LoraConfig(r=2, target_modules=["v_proj"], modules_to_save=["q_proj"])
    peft.get_peft_model(copy.deepcopy(theirs), config).save_pretrained(tmp_path)
    with pytest.raises(ConversionError, match=r"tunes .*q_proj\.\w+ as a whole, in a layer"):
        read_peft(ours, tmp_path, family)


@pytest.mark.usefixtures("unchecked")
def test_what_a_family_cannot_hold_is_one_line(tmp_path):
    tied = fill(kt.language_model(SIZE, blocks="llama", scale_embedding=False, **LLAMA))
    lora = write_peft(kt.add_lora(tied, 2), tmp_path / "lora", "llama")
    with pytest.raises(ConversionError, match=r"tunes model.embed_tokens.weight apart from lm_h"):
        write_peft(kt.add_lora(tied, 2, train=["embedding"]), tmp_path / "no", "llama")
    scaled = kt.language_model(SIZE, blocks="llama", tie_output=False, **LLAMA)
    with pytest.raises(ConversionError, match="llama has no place for embedding/embeddings"):
        write_peft(kt.add_lora(scaled, 2, train=["embedding"]), tmp_path / "no", "llama")
    for target, parts in {
        "query_key_value": "query or key or value", "gate_widen": "gate or widen"
    }.items():  # fmt: skip
        with pytest.raises(ConversionError, match=f"tune {parts}. Received: {target}"):
            write_peft(kt.add_lora(tied, 2, targets=[target]), tmp_path / "no", "llama")
    with pytest.raises(
        ConversionError, match=r"family 't5' is a TranslationModel\. Received: <Lang"
    ):
        read_peft(tied, lora, "t5")
    plain = kt.translation(SIZE, num_layers=1, hidden_dim=6, num_heads=2)
    with pytest.raises(ConversionError, match=r"PEFT's T5 has T5's position_bias: True"):
        read_peft(plain, lora, "t5")
    with pytest.raises(ConversionError, match="of this model"):
        read_peft(plain, lora, "bart")
    gpt2 = kt.gpt2(vocabulary_size=SIZE, num_layers=1, hidden_dim=6, num_heads=2)
    with pytest.raises(ConversionError, match=r"PEFT, of models with RMS .* normalization: rms"):
        read_peft(gpt2, lora, "llama")
    with pytest.raises(ConversionError, match=r"PEFT takes no .* RMS"):
        read_peft(tied, lora, "gpt2")


@pytest.mark.usefixtures("unchecked")
def test_a_tied_table_that_peft_tunes_alone_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    tied = kt.language_model(SIZE, blocks="llama", scale_embedding=False, **LLAMA)
    lora = write_peft(kt.add_lora(tied, 2), tmp_path / "lora", "llama")
    arrays = load_file(lora / "adapter_model.safetensors")
    config = json.loads((lora / "adapter_config.json").read_text())
    for module in ("model.embed_tokens", "lm_head"):
        table = {f"base_model.model.{module}.weight": np.zeros((SIZE, 12), "float32")}
        save_file(arrays | table, lora / "adapter_model.safetensors")
        (lora / "adapter_config.json").write_text(
            json.dumps(config | {"modules_to_save": [module]})
        )
        with pytest.raises(
            ConversionError, match=r"apart from lm_head\.weight, and this model has"
        ):
            read_peft(tied, lora, "llama")
