"""From a trained model to translated text: the served translator, called in this process."""

import rich.console
import rich.progress
import sacrebleu
import tensorflow as tf

from keras_transformer.models import encoder_decoder
from keras_transformer.serving import SearchSettings, TranslatorModule

TEXTS_AT_A_TIME = 64


def search_settings(config, num_beams=None, length_penalty=None):
    """How to search; None takes what the config of the run says."""
    num_beams = config.num_beams if num_beams is None else num_beams
    return SearchSettings(
        num_beams=num_beams,
        num_best=num_beams,
        length_penalty=config.length_penalty if length_penalty is None else length_penalty,
        max_source_length=config.max_length,
        max_target_length=config.max_length,
    )


def translator_of(model, tokenizer, settings):
    return TranslatorModule(encoder_decoder.functions(model), tokenizer, settings=settings)


def translate(translator, texts):
    """The translations of texts of any length, a list in their order."""
    return translate_and_tell(translator, texts)[0]


def translate_and_tell(translator, texts):
    """Translates texts of any length, a few of similar length at a time.

    Args:
        translator: a `Translator`.
        texts: a list of strings; an empty one gives an empty translation.

    Returns:
        A list with the translation of each text, in their order, and a list of whether each text
        was too long, so that its end was not read.
    """
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    starts = range(0, len(order), TEXTS_AT_A_TIME)
    console = rich.console.Console(stderr=True)
    translations, is_cut = [""] * len(texts), [False] * len(texts)
    for start in rich.progress.track(
        starts, "Translating", console=console, transient=True, disable=not console.is_terminal
    ):
        rows = order[start : start + TEXTS_AT_A_TIME]
        answer = translator.endpoints["serving_default"](
            text=tf.constant([texts[row] for row in rows])
        )
        found = zip(rows, answer["translation"].numpy(), answer["truncated"].numpy(), strict=True)
        for row, text, was_cut in found:
            translations[row], is_cut[row] = text.decode(), bool(was_cut)
    return translations, is_cut


def bleu(translations, references, lowercase=False):
    """sacreBLEU's score of translations against one reference each."""
    return sacrebleu.BLEU(lowercase=lowercase).corpus_score(translations, [references])


def report(translations, references):
    """Two lines of BLEU, cased and lower-cased, each with sacreBLEU's signature."""
    lines = []
    for label, lowercase in (("BLEU", False), ("BLEU, lower-cased", True)):
        metric = sacrebleu.BLEU(lowercase=lowercase)
        score = metric.corpus_score(translations, [references]).score
        lines.append(f"{label}: {score:.2f}   {metric.get_signature()}")
    return "\n".join(lines)
