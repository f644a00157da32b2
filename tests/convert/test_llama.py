"""Folders of Llama, Mistral and Qwen beside Hugging Face's own models and tokenizers."""

import json
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, llama
from keras_transformer.convert.tokenizer_json import SPLITS
from keras_transformer.serving import Generator, SamplingSettings
from tests.convert.folders import FAMILIES as FOLDERS
from tests.convert.foreign_tokenizers import LLAMA, train_spm
from tests.reference import array
from train import convert as command
from train.demo.corpus import demo_corpus

pytestmark = pytest.mark.oracle
CONTEXT, NEW, MADE_UP = 64, 20, 5
SPECIAL = {
    "llama3": ("<|begin|>", "<|end|>", "<|eot|>"),
    "qwen2": ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
# Of each family: how texts are split, the class of the model, and its further settings.
FAMILIES = {
    "Llama 2": ("sentencepiece", "Llama", {}),
    "Llama 3": ("llama3", "Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "Mistral": ("renamed", "Mistral", {"sliding_window": 6}),
    "Qwen2": ("qwen2", "Qwen2", {"rope_parameters": LINEAR}),
    "Qwen3": ("qwen2", "Qwen3", {"tie_word_embeddings": True}),
}
QWEN = ("Qwen2", "Qwen3")
SIGNS = ("a", "the", "It", "'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\x85",
         "1", "12345", "٣", "!", "?!", "_", "é", "e\u0301", "日本", "🦜", " \n ", "\x00",
         "<|begin|>", "<|im_start|>", "<tool_call>", "<tool")  # fmt: skip


def byte_level(path, words):
    """A tokenizer as those of Llama 3 or Qwen2, saved to a folder."""
    import transformers
    from tokenizers import (  # fmt: skip
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    if words == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLITS[words]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(demo_corpus(300).sources, trainer)
    if words == "llama3":  # some words are pieces that no merge makes
        content = json.loads(tokenizer.to_str())
        content["model"]["ignore_merges"] = True
        merges = content["model"]["merges"]
        content["model"]["merges"] = [m for i, m in enumerate(merges) if i < 60 or i % 7]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    names = SPECIAL[words]
    tokenizer.add_special_tokens([*names])
    for name in ("<tool", "<tool_call>"):
        plain = transformers.AddedToken(name, special=False, normalized=False)
        tokenizer.add_tokens([plain])
    first = {}
    if words == "llama3":
        first = {"bos_token": names[0]}
        start = (names[0], tokenizer.token_to_id(names[0]))
        template = f"{names[0]} $A", f"{names[0]} $A {names[0]} $B", [start]
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(*template)
        ])  # fmt: skip
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=names[1], **first
    )
    saved.save_pretrained(path)
    return saved


def sentencepiece(path):
    """A tokenizer as Llama 2's, whose Python class needs its SentencePiece model alone."""
    import transformers

    train_spm(path / "tokenizer.model", demo_corpus(300).sources, 400, **LLAMA)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>",
                "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return transformers.LlamaTokenizer.from_pretrained(path)


def renamed(path):
    """The same with control pieces in another order and of other names."""
    import transformers

    options = LLAMA | {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>",
                       "bos_piece": "<bos>"}  # fmt: skip
    train_spm(path / "tokenizer.model", demo_corpus(300).sources, 400, **options)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<bos>",
                "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return transformers.LlamaTokenizer.from_pretrained(path)


MAKERS = {"sentencepiece": sentencepiece, "renamed": renamed}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("llama")
    split, kind, settings = FAMILIES[request.param]
    has_bytes = split in MAKERS
    tokenizer = MAKERS[split](path) if has_bytes else byte_level(path, split)
    ends = [tokenizer.eos_token_id]
    if not has_bytes:
        ends.append(tokenizer.convert_tokens_to_ids(SPECIAL[split][2]))
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer) + MADE_UP, hidden_size=24, num_attention_heads=6,
        num_key_value_heads=2, head_dim=4, intermediate_size=30, num_hidden_layers=2,
        max_position_embeddings=CONTEXT, eos_token_id=ends if len(ends) > 1 else ends[0],
        bos_token_id=tokenizer.bos_token_id, pad_token_id=None, **settings,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(float("norm" in name) + 0.35 * torch.randn_like(parameter))
        if has_bytes:  # bytes that make no character are joined otherwise by theirs
            model.lm_head.weight[3 + (split == "renamed") : 260] = 0
            model.lm_head.weight[-MADE_UP:] *= 2  # rows without a piece are drawn
        else:
            model.lm_head.weight[ends[1]] *= 3  # the second end is
    model.save_pretrained(path)
    return path, model, tokenizer


@pytest.fixture(scope="module")
def generator(folder):
    return convert.load(folder[0])


def their_logits(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def test_texts_have_the_ids_of_their_tokenizer(folder, generator):
    random = np.random.default_rng(2)
    drawn = ["".join(random.choice(SIGNS, random.integers(0, 12))) for _ in range(1500)]
    texts = demo_corpus(300, seed=5).sources
    if "SentencePiece" not in type(generator.tokenizer).__name__:
        texts = [*texts, *drawn]  # pieces of a SentencePiece model are compared in test_tokenizers
    start = generator.settings.start_id
    expected = folder[2](texts)["input_ids"]
    assert start is None or {row[0] for row in expected} == {start - 4}
    expected = [row[start is not None :] for row in expected]
    assert [[i - 4 for i in row] for row in generator.tokenizer.tokenize(texts).to_list()] == (
        expected
    )
    joined = folder[2].batch_decode(expected[-300:], skip_special_tokens=True)
    import tensorflow as tf

    ours = generator.tokenizer.detokenize(tf.ragged.constant(expected[-300:], tf.int32) + 4)
    assert [text.decode() for text in ours.numpy()] == joined


def test_logits_and_scores_are_those_of_hugging_face(folder, generator):
    import torch

    _, theirs, tokenizer = folder
    ids = np.random.default_rng(3).integers(0, len(tokenizer), (3, 17))
    logits, expected = array(generator.model.logits(ids.astype("int32"))), their_logits(theirs, ids)
    difference, largest = np.abs(logits - expected).max(), np.abs(expected).max()
    print(f"largest difference {difference:.1e} of {largest:.1f}")
    assert difference < 1e-5 * largest
    text = demo_corpus(3, seed=8).sources[0]
    given = tokenizer(text)["input_ids"]
    nats = torch.log_softmax(torch.tensor(their_logits(theirs, [given])[0]), -1)
    expected = sum(float(nats[i, after]) for i, after in enumerate(given[1:]))
    np.testing.assert_allclose(generator.score([text]), [expected], rtol=1e-5)
    if tokenizer.is_fast and "tool" in str(tokenizer.get_added_vocab()):  # an end within a text
        given = tokenizer(f"It is{tokenizer.eos_token}\nten")["input_ids"]
        nats = torch.log_softmax(torch.tensor(their_logits(theirs, [given])[0]), -1)
        expected = sum(float(nats[i, after]) for i, after in enumerate(given[1:]))
        score = generator.score([f"It is{tokenizer.eos_token}\nten"])
        np.testing.assert_allclose(score, [expected], rtol=1e-5)


# CTranslate2 goes on as those of Qwen do, below.
@pytest.mark.parametrize(
    "folder",
    ["Llama 2", "Llama 3", "Mistral", *(pytest.param(n, marks=pytest.mark.soak) for n in QWEN)],
    indirect=True,
)
def test_texts_go_on_and_end_as_theirs(folder, generator):
    import torch

    _, theirs, tokenizer = folder
    prompts = [text[:14] for text in demo_corpus(12, seed=7).sources]
    prompts += [""] * (generator.settings.start_id is not None)
    expected, lengths = [], set()
    for prompt in prompts:
        given = tokenizer(prompt)["input_ids"]
        with torch.no_grad():
            found = theirs.generate(
                torch.tensor([given]), max_new_tokens=NEW, do_sample=False, pad_token_id=0
            )[0, len(given) :]
        lengths.add(len(found))
        expected.append(tokenizer.decode(found, skip_special_tokens=True))
    continued = generator(prompts, max_tokens=NEW, temperature=1e-6)
    # Theirs drops a space before the first word of a SentencePiece model, or keeps it.
    assert [t.lstrip() for t in continued] == [t.lstrip() for t in expected]
    ends = generator.settings.sampling.end_ids
    if generator.settings.start_id is not None and ends:  # of Llama 3
        assert len(lengths) > 1, "some texts end early"
    for prompt, text in zip(prompts[:4], expected, strict=False):
        streamed = generator.stream(prompt, NEW, temperature=1e-6)
        assert "".join(streamed).lstrip() == text.lstrip()


@pytest.mark.parametrize("folder", ["Qwen2"], indirect=True)
def test_the_penalty_counts_ends_of_a_chat(folder):
    import torch

    path, theirs, tokenizer = folder
    loaded = convert.load(path)
    rules = kt.decoding.TokenRules(repetition_penalty=3.0)
    ends = loaded.settings.sampling.end_ids
    settings = SamplingSettings(
        CONTEXT, NEW, kt.decoding.Sampling(top_k=1, token_rules=rules, end_ids=ends)
    )
    generator = Generator(loaded.model, loaded.tokenizer, settings)
    prompts = [f"{text[:9]}{tokenizer.eos_token}\nno" for text in demo_corpus(6, seed=7).sources]
    for prompt in prompts:
        given = tokenizer(prompt)["input_ids"]
        with torch.no_grad():
            found = theirs.generate(
                torch.tensor([given]), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
                repetition_penalty=3.0,
            )[0, len(given) :]  # fmt: skip
        expected = tokenizer.decode(found, skip_special_tokens=True)
        assert generator([prompt]) == [expected]
        assert "".join(generator.stream(prompt, NEW)) == expected


@pytest.mark.parametrize("folder", ["Llama 2"], indirect=True)
@pytest.mark.usefixtures("unchecked")
def test_an_added_end_without_a_piece_ends_texts(folder, tmp_path):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 400}))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["additional_special_tokens"] = ["<|im_end|>"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps(content | {"eos_token_id": 400}))
    generator = convert.load(tmp_path)
    assert generator.tokenizer.end_of_text_id == 400
    convert.write(generator, "huggingface", tmp_path / "written")
    assert json.loads((tmp_path / "written/config.json").read_text())["eos_token_id"] == 400


def changed(folder, path, **settings):
    """A copy of a folder whose tokenizer has other settings."""
    shutil.copytree(folder, path, dirs_exist_ok=True)
    before = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(before | settings))
    return path


@pytest.mark.parametrize("folder", ["Llama 2"], indirect=True)
def test_a_space_before_texts_is_that_of_the_model(folder, tmp_path, caplog):
    with pytest.raises(ConversionError, match="add_prefix_space must be None or True"):
        convert.load(changed(folder[0], tmp_path, add_prefix_space=False))
    convert.load(changed(folder[0], tmp_path, add_prefix_space=True))
    assert "no effect here" not in caplog.text


@pytest.mark.parametrize("folder", ["Llama 2"], indirect=True)
def test_padding_may_be_the_start(folder, generator, tmp_path):
    again, texts = convert.load(changed(folder[0], tmp_path, pad_token="<s>")), ["It is", ""]
    assert again.settings == generator.settings and again.settings.start_id is not None
    for one, other in zip(again.model.weights, generator.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other))
    ids, expected = (each.tokenizer.tokenize(texts).to_list() for each in (again, generator))
    assert ids == expected


def test_added_tokens_that_are_no_piece_of_a_text_are_named(tmp_path, caplog):
    FOLDERS["llama"](tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    name, index = max(content["model"]["vocab"].items(), key=lambda pair: pair[1])
    content["added_tokens"] = [{"content": name, "id": index, "special": True}]
    file.write_text(json.dumps(content))
    convert.load(tmp_path)
    assert f"the added tokens {name} are plain text in prompts" in caplog.text


def test_a_model_of_pieces_that_changes_characters_is_not_written(tmp_path):
    tokenizer = kt.tokenizers.train_sentencepiece(demo_corpus(100).sources, 400)
    model = kt.language_model(
        400, blocks="llama", num_layers=1, scale_embedding=False, tie_output=False
    )
    generator = Generator(model, tokenizer, SamplingSettings(CONTEXT, NEW, empty_prompt="a"))
    with pytest.raises(ConversionError, match="change no character, remove no space"):
        convert.write(generator, "huggingface", tmp_path / "written")
    assert not (tmp_path / "written").exists()


OTHERS = [pytest.param(n, marks=pytest.mark.soak) for n in ("Mistral", "Qwen2")]


@pytest.mark.parametrize("folder", ["Llama 3", *OTHERS], indirect=True)
@pytest.mark.usefixtures("unchecked_exports")
def test_a_run_writes_on_and_is_exported_and_written_back(folder, generator, tmp_path):
    import tensorflow as tf
    import transformers

    run, prompts = tmp_path / "run", ["It is", ""]
    command.main(["--from", str(folder[0]), "--run", str(run)])
    again = Generator.load(run)
    assert again.settings == generator.settings
    expected = [text for prompt in prompts for text in generator([prompt])]
    path = again.export(tmp_path / "served", "llama")
    signature = tf.saved_model.load(path).signatures["serving_default"]
    texts = [text.decode() for text in signature(tf.constant(prompts))["continuation"].numpy()]
    assert texts == expected, "each with seed 0"
    convert.write(again, "huggingface", tmp_path / "written")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "written")
    assert type(model) is type(folder[1])
    ids = np.random.default_rng(3).integers(0, 300, (2, 9))
    np.testing.assert_allclose(their_logits(model, ids), their_logits(folder[1], ids), atol=1e-6)
    back = convert.load(tmp_path / "written")
    assert back.settings == generator.settings
    for one, other in zip(back.model.weights, generator.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "written")
    texts = demo_corpus(20, seed=5).sources
    assert tokenizer(texts)["input_ids"] == folder[2](texts)["input_ids"]
    assert back.tokenizer.tokenize(texts).to_list() == generator.tokenizer.tokenize(texts).to_list()


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
@pytest.mark.usefixtures("unchecked")
def test_ctranslate2_goes_on_as_ours_or_refuses(folder, generator, tmp_path, request):
    import ctranslate2
    import tensorflow as tf

    reasons = {"Llama 3": "scales rotary positions of Llama 3", "Mistral": "sliding window"}
    name = request.node.callspec.params["folder"]
    if name in reasons:
        with pytest.raises(convert.ConversionError, match=reasons[name]):
            convert.write(generator, "ctranslate2", tmp_path / "written")
        return
    path = convert.write(generator, "ctranslate2", tmp_path / "written")
    engine = ctranslate2.Generator(str(path), device="cpu")
    tokenizer, start = generator.tokenizer, generator.settings.start_id
    texts = [text[:14] for text in demo_corpus(8, seed=3).sources]
    first = [] if start is None else tokenizer.pieces([start])
    rows = [first + tokenizer.pieces(row) for row in tokenizer.tokenize(texts).to_list()]
    found = engine.generate_batch(
        rows, max_length=NEW, sampling_topk=1, include_prompt_in_result=False,
        end_token=tokenizer.pieces(
            [tokenizer.end_of_text_id + 4, *generator.settings.sampling.end_ids]
        ),
    )  # fmt: skip
    ids = tf.ragged.constant([result.sequences_ids[0] for result in found], tf.int32) + 4
    theirs = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    ours = generator(texts, max_tokens=NEW, temperature=1e-6)
    assert [text.lstrip() for text in theirs] == [text.lstrip() for text in ours]


@pytest.mark.parametrize("folder", ["Llama 3"], indirect=True)
def test_lora_lowers_the_loss(folder):
    model = kt.add_lora(convert.read(folder[0]).model, rank=4)
    model.compile(kt.Adam(3e-3), kt.TokenCrossentropy(0.0))
    ids = np.random.default_rng(3).integers(0, 300, (8, 17)).astype("int32")
    losses = model.fit(ids[:, :-1], ids[:, 1:], epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("folder", ["Qwen2"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads must be a divisor of num_attention"),
        ({"num_key_value_heads": 3}, r"k_proj.weight must have the shape \(12, 24\)"),
        ({"head_dim": 3}, "head_dim must be even, for rotary positions"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type must be 'def"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
         "rope_type must be 'default' or 'linear' or 'llama3'; nothing .* Received: 'yarn'"),
        ({"rope_parameters": LLAMA3 | {"factor": None}}, "factor must be a number"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}},
         "high_frequency of scaling must be above"),
        ({"rope_parameters": LLAMA3, "original_max_position_embeddings": 32},
         "original_max_position_embeddings must be None or 16"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0"),
        ({"model_type": "phi3"}, "model_type of .*llama, .*qwen3.* Received: model_type='phi3'"),
        ({"model_type": "gemma"}, "model_type of .* Received: model_type='gemma'"),
        ({"rope_parameters": {"rope_theta": 0.0}}, "max_wavelength must be a finite number"),
        ({"use_sliding_window": True}, "use_sliding_window must be False"),
        ({"eos_token_id": 4000}, "eos_token_id must be ids below"),
        ({"hidden_act": "tanh"}, "hidden_act must be 'silu'"),
        ({"vocab_size": 100}, r"embed_tokens.weight must have the shape \(100, 24\)"),
        ({"architectures": ["Qwen2Model"]}, "architectures must be a list of one of"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(folder, tmp_path, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


@pytest.mark.parametrize("folder", ["Llama 2"], indirect=True)
def test_added_tokens_beside_a_sentencepiece_model_are_named(folder, tmp_path, caplog):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    end = {"content": "</s>", "special": False, "rstrip": True}  # as in the released folder
    settings["added_tokens_decoder"] = {"2": end, "401": {"content": "<|user|>", "special": True}}
    settings["additional_special_tokens"] = ["<|user|>"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    convert.read(tmp_path)
    assert "the added tokens <|user|> are plain text in prompts" in caplog.text


def test_a_partial_rotation_is_not_written():
    model = kt.language_model(
        40, blocks="llama", num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=4,
        attention_arguments={"rotary": {"rotary_dim": 2}},
    )  # fmt: skip
    message = r"has rotary_dim, the width of a head: 4\. Received: 2"
    with pytest.raises(convert.ConversionError, match=message):
        llama.family_of(model, "Hugging Face's library")


@pytest.mark.usefixtures("unchecked")
def test_a_model_of_ours_with_scaled_vectors_is_written(tmp_path):
    """`--blocks llama` as the command makes it, which no family is as it is."""
    import transformers

    tokenizer = kt.tokenizers.train_byte_pairs(demo_corpus(300).sources, 300)
    model = kt.language_model(300, num_layers=1, hidden_dim=16, num_heads=2, blocks="llama")
    generator = Generator(model, tokenizer, SamplingSettings(32, 9))
    convert.write(generator, "huggingface", tmp_path / "written")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "written")
    ids = np.random.default_rng(3).integers(0, 300, (2, 9))
    np.testing.assert_allclose(
        array(model.logits(ids.astype("int32"))), their_logits(theirs, ids), atol=1e-5
    )
