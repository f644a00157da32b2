"""BERT folders beside Hugging Face's own models and tokenizer, with random weights."""

import json

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.serving import Answerer, Classifier
from tests.reference import array
from train import convert as command
from train.demo.corpus import demo_corpus

pytestmark = pytest.mark.oracle
HEADS = ["Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
         "ForTokenClassification", "ForQuestionAnswering"]  # fmt: skip
WORDS = ["naïve Café", "日本 is 12,50 €!", "un-be-lievable", "🦜 [MASK] x = f(y)", ""]


def pieces():
    words = {word for text in demo_corpus(500).sources for word in text.lower().split()}
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
    return ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters,
            *(f"##{letter}" for letter in letters), *sorted(words - set(letters))]  # fmt: skip


def saved(path, head, hidden_act="gelu", **settings):
    """A folder of `save_pretrained`, with its model."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    labels = {"id2label": {0: "bad", 1: "fair", 2: "good"}}
    labels["label2id"] = {label: index for index, label in labels["id2label"].items()}
    if head == "ForQuestionAnswering":  # whose start and end are two labels
        labels = {}
    config = transformers.BertConfig(
        vocab_size=len(pieces()), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=40, hidden_act=hidden_act,
        **labels, **settings,
    )  # fmt: skip
    model = getattr(transformers, f"Bert{head}")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = float("LayerNorm.weight" in name)
            parameter.copy_(middle + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces()), "utf-8")
    return model


def inputs(seed=1):
    generator = np.random.default_rng(seed)
    ids = generator.integers(6, len(pieces()), (3, 9))
    ids[1, 6:] = 0
    segments = (np.arange(9) > 4)[None].repeat(3, axis=0).astype("int32")
    return ids.astype("int32"), segments


@pytest.mark.parametrize(("hidden_act", "epsilon"), [("gelu", 1e-12), ("gelu_new", 1e-2)])
@pytest.mark.parametrize("head", HEADS)
def test_outputs_are_those_of_hugging_face(head, hidden_act, epsilon, tmp_path):
    model = saved(tmp_path, head, hidden_act, layer_norm_eps=epsilon)
    import torch

    ours = convert.read(tmp_path).model
    ids, segments = inputs()
    real = ids > 0
    given = {"token_ids": ids, "segment_ids": segments}
    if "masked_positions" in ours.input:
        given["masked_positions"] = np.arange(9)[None].repeat(3, axis=0)
    outputs = ours(given)
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor(ids).long(), token_type_ids=torch.tensor(segments).long(),
            attention_mask=torch.tensor(real).long(),
        )  # fmt: skip
    pairs = {
        "Model": lambda: [(outputs["vectors"], expected.last_hidden_state),
                          (outputs["pooled"], expected.pooler_output)],
        "ForMaskedLM": lambda: [(outputs["masked_tokens"], expected.logits)],
        "ForPreTraining": lambda: [(outputs["masked_tokens"], expected.prediction_logits),
                                   (outputs["next_sentence"], expected.seq_relationship_logits)],
        "ForSequenceClassification": lambda: [(outputs, expected.logits)],
        "ForTokenClassification": lambda: [(outputs, expected.logits)],
        "ForQuestionAnswering": lambda: [(outputs[:, 0], expected.start_logits),
                                         (outputs[:, 1], expected.end_logits)],
    }[head]()  # fmt: skip
    for one, other in pairs:
        one, other = array(one), other.numpy()
        rows = real if one.shape[:2] == real.shape else slice(None)
        difference = np.abs(one[rows] - other[rows]).max()
        print(f"{head} {hidden_act}: {difference:.1e} of {np.abs(other).max():.1f}")
        largest = max(1.0, np.abs(other).max())
        np.testing.assert_allclose(one[rows], other[rows], rtol=0, atol=1e-5 * largest)
    assert set(ours.attention_scores(ids, segments)) == {"encoder"}


def test_answers_are_those_of_hugging_face(tmp_path):
    """Beside the best span of whole words that their tokenizer and model give, part by part."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = saved(tmp_path, "ForQuestionAnswering")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    answerer = convert.load(tmp_path)
    assert isinstance(answerer, Answerer)
    sources = demo_corpus(60).sources
    questions = [" ".join(text.split()[:2]) for text in sources[:6]]
    contexts = [" ".join(sources[8 * row :][: row + 1]) for row in range(6)]
    num_parts = []
    for question, context, answer in zip(
        questions, contexts, answerer(questions, contexts), strict=True
    ):
        asked = len(tokenizer(question, add_special_tokens=False)["input_ids"])
        assert asked <= 10, "a question is read whole"
        whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
        words = {}  # where each starts and ends in the passage
        for word, (start, end) in zip(whole.word_ids(), whole["offset_mapping"], strict=True):
            words[word] = words.get(word, (start, end))[0], end
        parts = tokenizer(  # of 40 positions, every 13 tokens
            question, context, truncation="only_second", max_length=40, stride=40 - 3 - asked - 13,
            return_overflowing_tokens=True,
        )  # fmt: skip
        num_parts.append(len(parts["input_ids"]))
        spans, none = [], []
        for part, ids in enumerate(parts["input_ids"]):
            segments = torch.tensor([parts["token_type_ids"][part]])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), token_type_ids=segments)
            first, last = (
                side[0].double().softmax(0).numpy()
                for side in (logits.start_logits, logits.end_logits)
            )
            none.append(first[0] * last[0])
            word_of, sides = parts.word_ids(part), parts.sequence_ids(part)
            columns = [column for column, side in enumerate(sides) if side == 1]
            spans += [
                (first[one] * last[other], words[word_of[one]][0], words[word_of[other]][1])
                for one in columns
                for other in columns
                if one <= other < one + answerer.max_answer_length
            ]
        score, start, end = max(spans)
        assert (answer.start, answer.end, answer.text) == (start, end, context[start:end])
        assert (answer.score, answer.no_answer) == pytest.approx((score, min(none)), rel=1e-4)
    assert max(num_parts) > 2


@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json", "cased"])
def test_texts_have_the_ids_of_their_tokenizer(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    saved(tmp_path, "Model")
    cased = kind == "cased"
    tokenizer = transformers.BertTokenizer(
        str(tmp_path / "vocab.txt"), do_lower_case=not cased
    ) if transformers.__version__ < "5" else transformers.BertTokenizer(
        {piece: i for i, piece in enumerate(pieces())}, do_lower_case=not cased
    )  # fmt: skip
    tokenizer.save_pretrained(tmp_path)
    if kind != "vocab.txt" and (tmp_path / "tokenizer.json").exists():
        (tmp_path / "vocab.txt").unlink()
    texts = [*demo_corpus(2000, seed=3).sources, *(word for word in WORDS if "[" not in word)]
    ours = convert.read(tmp_path).tokenizer.tokenize(texts).to_list()
    expected = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert ours == expected


def test_a_run_of_a_classifier_answers_as_its_folder(tmp_path):
    saved(tmp_path / "theirs", "ForSequenceClassification")
    command.main(["--from", str(tmp_path / "theirs"), "--run", str(tmp_path / "run")])
    classifier = Classifier.load(tmp_path / "run")
    texts = demo_corpus(4).sources
    assert classifier(texts) == convert.load(tmp_path / "theirs")(texts)
    assert classifier.labels == ("bad", "fair", "good")


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        (
            "Model",
            {"architectures": ["BertForMultipleChoice"]},
            "one of Bert.*Received: .*M",
        ),
        ("Model", {"position_embedding_type": "relative_key"}, "position_embedding_type must be"),
        ("Model", {"hidden_act": "silu"}, "hidden_act must be .*Received: 'silu'"),
        ("ForMaskedLM", {"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        ("Model", {"num_hidden_layers": 3}, r"must include encoder\.layer\.2\."),
        ("ForSequenceClassification", {"problem_type": "ranking"}, "problem_type must be"),
        ("ForSequenceClassification", {"problem_type": "regression"}, r"shape \(1, 32\)"),
        ("ForTokenClassification", {"problem_type": "regression"}, "problem_type must be"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(head, change, message, tmp_path):
    saved(tmp_path, head)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)
