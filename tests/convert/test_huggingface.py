"""Our models as folders of Hugging Face's library, beside themselves."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import marian
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.serving import Classifier, Generator, SamplingSettings
from keras_transformer.tokenizers import WordPieceTokenizer
from tests.convert.drawn import CORPUS, noisy, translator_of
from tests.reference import array
from train.demo.corpus import demo_corpus

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
T5 = {"position_bias": {"type": "t5"}, "normalization": "rms", "use_bias": False,
      "scale_embedding": False}  # fmt: skip
TEXTS = [text[:9].strip() for text in demo_corpus(16, seed=3).sources]


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize(
    ("num_beams", "options"),
    [
        (4, {"num_decoder_layers": 1}),
        (
            1,
            {
                "num_decoder_layers": 3,
                "normalize_first": False,
                "activation": "silu",
                "output_bias": True,
            },
        ),
        (4, {"normalize_first": False, "target_vocabulary_size": 400, "scale_embedding": False}),
    ],
    ids=["Pegasus", "Marian", "Marian of two vocabularies"],
)
def test_translations_and_ids_are_ours(num_beams, options, tokenizer, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    ours = translator_of(tokenizer, num_beams, ids=400, **options)
    path = convert.write(ours, "huggingface", tmp_path / "model")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path)
    cutter = transformers.AutoTokenizer.from_pretrained(path)
    given = cutter(TEXTS, padding=True, return_tensors="pt")
    ids = ours.tokenizer.tokenize(TEXTS).to_list()
    rows = [[i for i in row if i] for row in given["input_ids"].tolist()]
    assert rows == [[*row, 3] for row in ids]
    with torch.no_grad():
        found = theirs.generate(**given)
    expected = [text.replace(" \u2047 ", "") for text in ours(TEXTS)]
    assert cutter.batch_decode(found, skip_special_tokens=True) == expected
    again = convert.read(path) if theirs.config.model_type == "marian" else None
    if again is not None:
        logits = [
            array(model({"source_ids": np.array([[5, 9, 3]]), "target_ids": np.array([[2, 7]])}))
            for model in (ours.model, again.model)
        ]
        # Read again, their order of ids is ours: it begins with pad, unknown, start and end.
        assert np.abs(logits[0] - logits[1][..., : logits[0].shape[-1]])[..., 4:].max() < 1e-4


def test_gpt2_goes_on_as_ours(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    cutter = kt.tokenizers.train_byte_pairs(CORPUS.sources, 400)
    model = noisy(kt.gpt2(vocabulary_size=400, max_sequence_length=40, num_layers=2, hidden_dim=48,
                          num_heads=4))  # fmt: skip
    ours = Generator(model, cutter, SamplingSettings(context=40, max_tokens=9))
    path = convert.write(ours, "huggingface", tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path)
    theirs_too = transformers.AutoTokenizer.from_pretrained(path)
    assert theirs_too(TEXTS)["input_ids"] == cutter.tokenize(TEXTS).to_list()
    for text in TEXTS[:4]:
        ids = torch.tensor([theirs_too(text[:12])["input_ids"]])
        control = [[i] for i in range(4)]
        with torch.no_grad():
            found = theirs.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0,
                                    bad_words_ids=control)  # fmt: skip
        written = cutter.detokenize(found[:, ids.shape[1] :].numpy()).numpy()[0].decode()
        assert ours([text[:12]], temperature=1e-6) == [written]


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize(
    "head",
    [
        "backbone",
        "pretraining",
        "labels",
        "several labels",
        "number",
        "labels of tokens",
        "answers",
    ],
)
def test_bert_with_its_heads_is_theirs(head, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = WordPieceTokenizer([*special, *letters, *(f"##{letter}" for letter in letters)])
    activation = gelu_tanh if head == "labels" else "gelu"
    backbone = kt.bert(words.vocabulary_size, "tiny", 40, activation=activation)
    model = noisy({
        "backbone": lambda: backbone,
        "pretraining": lambda: kt.bert_pretraining(backbone),
        "labels": lambda: kt.bert_classifier(backbone, 3),
        "several labels": lambda: kt.bert_classifier(backbone, 3),
        "number": lambda: kt.bert_classifier(backbone, 1),
        "labels of tokens": lambda: kt.bert_token_labeller(backbone, 5),
        "answers": lambda: kt.bert_question_answering(backbone),
    }[head](), 0.05)  # fmt: skip
    ours = convert.Converted("pretraining", model, words)
    if head in ("labels", "several labels", "number"):
        labels = [] if head == "number" else ["bad", "fair", "good"]
        ours = Classifier(model, words, labels, 32, multi_label=head == "several labels")
    path = convert.write(ours, "huggingface", tmp_path / "model")
    auto, pairs = {
        "backbone": ("AutoModel", [("vectors", "last_hidden_state"), ("pooled", "pooler_output")]),
        "pretraining": ("AutoModelForPreTraining", [("masked_tokens", "prediction_logits"),
                                                    ("next_sentence", "seq_relationship_logits")]),
        "labels": ("AutoModelForSequenceClassification", [(None, "logits")]),
        "several labels": ("AutoModelForSequenceClassification", [(None, "logits")]),
        "number": ("AutoModelForSequenceClassification", [(None, "logits")]),
        "labels of tokens": ("AutoModelForTokenClassification", [(None, "logits")]),
        "answers": ("AutoModelForQuestionAnswering", [(0, "start_logits"), (1, "end_logits")]),
    }[head]  # fmt: skip
    theirs = getattr(transformers, auto).from_pretrained(path).eval()
    given = np.random.default_rng(3).integers(5, words.vocabulary_size, (3, 7)).astype("int32")
    segments = (np.arange(7) > 3)[None].repeat(3, axis=0).astype("int32")
    inputs = {"token_ids": given, "segment_ids": segments}
    if head == "pretraining":
        inputs["masked_positions"] = np.arange(7, dtype="int32")[None].repeat(3, axis=0)
    answers = model(inputs, training=False)
    with torch.no_grad():
        expected = theirs(torch.tensor(given).long(), token_type_ids=torch.tensor(segments).long())
    for name, other in pairs:
        one = answers[:, name] if head == "answers" else answers if name is None else answers[name]
        one = array(one)
        difference = np.abs(one - getattr(expected, other).numpy()).max()
        print(f"{auto} {other}: {difference:.1e} of {np.abs(one).max():.1f}")
        assert difference < 1e-5
    cutter = transformers.AutoTokenizer.from_pretrained(path)
    texts = [text for text in TEXTS if text.isascii()]
    ids = cutter(texts, add_special_tokens=False)["input_ids"]
    assert ids == words.tokenize(texts).to_list()
    again = convert.read(path)
    for one, other in zip(model.weights, again.model.weights, strict=True):
        if "seed" not in one.path:
            np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    types = {
        "labels": "single_label_classification",
        "several labels": "multi_label_classification",
        "number": "regression",
    }
    if head == "answers":
        [answer] = convert.load(path)(["who?"], ["abc, def"])
        assert answer.text and answer.text == "abc, def"[answer.start : answer.end]
    if head in types:
        assert theirs.config.problem_type == types[head]
        loaded = convert.load(path)
        assert type(loaded) is type(ours)
        np.testing.assert_array_equal(
            loaded.answer(texts, "serving_default")["truncated"], [False] * len(texts)
        )
        assert again.labels == getattr(ours, "labels", ())
        assert again.multi_label == (head == "several labels")
        assert again.config.get("task", "single_label") == types[head].removesuffix(
            "_classification"
        )


def test_models_that_they_lack_are_refused_and_nothing_is_left(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    for options, message in (
        ({"target_vocabulary_size": 405}, r"Pegasus \(pre-norm\) has one vocabulary: True"),
        ({"tie_output": False}, "has tie_output: True. Received: False"),
        ({"use_bias": False}, "use_bias=False"),
        ({"key_dim": 8}, "key_dim=8"),
        ({"activation": "tanh"}, "Received: tanh"),
        ({"positions": {"first_position": 2}}, "first_position: 0. Received: 2"),
        ({"norm_epsilon": 1e-3}, "norm_epsilon: 1e-05. Received: 0.001"),
        ({**T5, "scale_embedding": True}, "T5 of .* has scale_embedding: False"),
        ({**T5, "use_bias": None}, "has use_bias: False. Received: None"),
        ({**T5, "normalization": "layer"}, "has normalization: rms. Received: layer"),
        ({**T5, "target_vocabulary_size": 405}, "has one vocabulary: True"),
        ({**T5, "output_bias": True}, "has an output bias: False. Received: True"),
        ({**T5, "source_end": False}, "encoder that sees the end token: True"),
        (
            {**T5, "activation": "gelu"},
            "relu or, gated, gelu_tanh or silu. Received: gelu, gated=F",
        ),
        (T5, "is a Unigram model .* Received: SentencePieceTokenizer of another kind"),
    ):
        with pytest.raises(convert.ConversionError, match=message):
            convert.write(translator_of(tokenizer, **options), "huggingface", tmp_path / "model")
    monkeypatch.setattr(marian, "_hidden_axes", lambda name: [])
    with pytest.raises(convert.ConversionError, match=r"Nothing was written.*logits differs by"):
        convert.write(translator_of(tokenizer), "huggingface", tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_gpt2_does_not_drop_a_start_or_further_ends(tmp_path):
    tokenizer = kt.tokenizers.train_byte_pairs(CORPUS.sources, 300)
    model = kt.gpt2(vocabulary_size=300, max_sequence_length=9, num_layers=1, hidden_dim=4,
                    num_heads=2)  # fmt: skip
    ends = kt.decoding.Sampling(end_ids=[8, 9])
    for changes, received in (({"start_id": 7}, "7"), ({"sampling": ends}, r"\[8, 9\]")):
        generator = Generator(model, tokenizer, SamplingSettings(9, 5, **changes))
        with pytest.raises(
            convert.ConversionError, match=rf"of the settings: .* Received: {received}\."
        ):
            convert.write(generator, "huggingface", tmp_path / "written")
