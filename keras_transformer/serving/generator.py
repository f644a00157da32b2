"""Continues texts with a trained language model, from Python."""

import tensorflow as tf

from keras_transformer.decoding.sampling import drawing
from keras_transformer.decoding.search import check_at_least
from keras_transformer.decoding.streaming import stream
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models import decoder_only, xl_model
from keras_transformer.models.functions import GeneratorFunctions
from keras_transformer.serving.generator_module import CONTROL_IDS, GeneratorModule
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SamplingSettings
from keras_transformer.serving.text_model import TextModel, check_texts, warn_of_cut

LONGEST_CHARACTER = 4  # bytes of UTF-8


class Generator(TextModel):
    """Continues texts, and says how likely texts are.

    Args:
        model: of `kt.language_model`, `kt.gpt2` or `kt.transformer_xl`, as built or reloaded; or
            `GeneratorFunctions`.
        tokenizer: cuts prompts, joins continuations.
        settings: `SamplingSettings()` if None.

    Raises:
        ValueError: if the model is of another kind.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.language_model(tokenizer.vocabulary_size, num_layers=1)
        >>> (text,) = Generator(model, tokenizer)(["ab"], max_tokens=5)
        >>> len(text)
        5
    """

    def __init__(self, model, tokenizer, settings=None):
        if isinstance(model, GeneratorFunctions):
            functions = model
        elif xl_model.is_transformer_xl(model):
            functions = xl_model.functions(model)
        else:
            functions = decoder_only.functions(model)
        super().__init__(model, tokenizer, GeneratorModule(functions, tokenizer, settings))

    @classmethod
    def load(cls, run, dtype=None):
        """Loads the model of a finished run of `python -m train.language_model`.

        Args:
            run: path of its folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.

        Returns:
            A `Generator` whose context is what the model was trained to look back at.

        Raises:
            ValueError: if the folder holds no finished run of this kind, or a file is damaged.
        """
        folder = RunFolder(run)
        context = folder.settings().get("context")
        model = folder.model(dtype)
        if xl_model.is_transformer_xl(model):
            context += model.get_layer("recurrence").memory_length
        else:
            decoder_only.functions(model)  # says so if it is a run of another kind
        settings = SamplingSettings(context=context, max_tokens=context // 2)
        return cls(model, folder.tokenizer(), settings)

    def __call__(self, prompts, max_tokens=None, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues each prompt.

        Args:
            prompts: a list of strings. One that leaves no room for the continuation loses its
                beginning, with a warning.
            max_tokens: length of the continuations, below `settings.context`; None for
                `settings.max_tokens`.
            temperature: above 0; below 1 sharpens the probabilities; None for
                `settings.temperature`.
            top_k: how many of the most likely tokens may be drawn, at least 1; None for all.
            top_p: probability in (0, 1] that the tokens that may be drawn hold; None for 1.
            seed: prompt i is continued with seed + i; the same seed draws the same text.

        Returns:
            A list with the continuation of each prompt, without the prompt.

        Raises:
            ValueError: if an argument is outside its limits.
        """
        settings, rows = self.module.settings, len(prompts)
        max_tokens = settings.max_tokens if max_tokens is None else max_tokens
        temperature = settings.temperature if temperature is None else temperature
        drawing((seed, 0), temperature, top_k, top_p)  # checks them
        if not 1 <= max_tokens < settings.context:
            raise ValueError(
                f"max_tokens must be at least 1 and below the context of {settings.context} "
                f"tokens, which holds the prompt too; `stream` writes texts of any length. "
                f"Received: max_tokens={max_tokens}."
            )
        answer = self.answer(
            prompts,
            "generate",
            max_tokens=[max_tokens] * rows,
            temperature=[temperature] * rows,
            top_k=[top_k or 0] * rows,
            top_p=[1.0 if top_p is None else top_p] * rows,
            seed=range(seed, seed + rows),
        )
        warn_of_cut(answer["truncated"], settings.context - max_tokens, "lost their beginning")
        return [text.decode() for text in answer["continuation"]]

    def stream(self, prompt, max_tokens, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues one prompt, and yields each piece of text as soon as it is drawn.

        The text may be of any length: when the context is full, its newest half is the new prompt.

        Args:
            prompt: a string; an empty one counts as `settings.empty_prompt`.
            max_tokens: how many to write, at least 0.
            temperature: and all further arguments as for a call.

        Returns:
            An iterator of strings, which joined are the continuation.

        Raises:
            ValueError: if an argument is outside its limits.
        """
        check_texts([prompt], "prompt")
        settings, functions = self.module.settings, self.module.functions
        temperature = settings.temperature if temperature is None else temperature
        drawing((seed, 0), temperature, top_k, top_p)  # checks them now, not at the first token
        check_at_least("max_tokens", max_tokens, 0)
        ids = stream(
            functions.step,
            lambda: functions.start_cache(1, 1),
            self.tokenizer.tokenize([prompt or settings.empty_prompt]).to_list()[0],
            num_tokens=max_tokens,
            context=settings.context,
            seed=tf.constant([[seed, 0]]),  # of a row, as the served model draws
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden_ids=CONTROL_IDS,
        )
        return self._texts_of(ids)

    def score(self, texts):
        """The log-probability of each text, given its first token.

        Args:
            texts: a list of strings, each at most one token longer than `settings.context`.

        Returns:
            Log-probabilities in nats, float32 (texts,).

        Raises:
            ValueError: if a text is longer; `kt.data.sliding_windows` measures long texts.
        """
        answer = self.answer(texts, "score")
        if answer["truncated"].any():
            raise ValueError(
                f"Texts must fit into the context of {self.module.settings.context} tokens. "
                f"Received: text {answer['truncated'].argmax()} is longer."
            )
        return -answer["nats"]

    def attention(self, text):
        """Where each token of a text looks.

        Args:
            text: a string, not empty.

        Returns:
            `figures.Attention` of the kind "decoder".
        """
        ids = self.tokenizer.tokenize([text])
        scores = self.module.functions.attention_scores(ids.to_tensor())
        tokens = {"decoder": names_of(self.tokenizer, ids.to_list()[0])}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _texts_of(self, ids):
        """The text of each token that arrives, held back while bytes of a character are missing."""

        def text_of(ids):
            return self.tokenizer.detokenize([ids]).numpy()[0].decode()

        pending = []
        for token_id in ids:
            pending.append(token_id)
            text = text_of(pending)
            if not text.endswith("\ufffd"):
                yield text
                pending = []
            elif len(pending) == LONGEST_CHARACTER:  # the first of them begins no character
                yield text_of(pending[:1])
                pending = pending[1:]
        if pending:
            yield text_of(pending)
