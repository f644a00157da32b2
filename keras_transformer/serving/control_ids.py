"""A language model of text alone, seen through ids that begin with the control ids."""

from keras import ops

from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID

CONTROL_IDS = (PAD_ID, UNKNOWN_ID, START_ID, END_ID)


class AfterControlIds:
    """A language model without control ids, such as GPT-2, whose ids come after the four.

    Serve it with a tokenizer whose `first_id` is 4. Control ids get logits of -1e9.

    Args:
        model: a language model whose ids all stand for text.
        end_id: the id with which the model ends a text, such as that of "<|endoftext|>"; it
            becomes the end among the control ids. None if it has none.

    Attributes:
        may_end: whether the model ends texts with the end id, 3; otherwise texts have the
            requested length.
    """

    def __init__(self, model, end_id=None):
        self._model, self._end_id = model, end_id
        self.weights, self.start_cache = model.weights, model.start_cache
        self.has_static_cache = getattr(model, "has_static_cache", False)
        self.pads_left = getattr(model, "pads_left", False)
        self.may_end = end_id is not None
        self.prefill = self._prefill if hasattr(model, "prefill") else None

    def step(self, token_ids, parents, position, cache):
        logits, cache = self._model.step(self._own_ids(token_ids), parents, position, cache)
        return self._with_control_ids(logits), cache

    def logits(self, token_ids):
        return self._with_control_ids(self._model.logits(self._own_ids(token_ids)))

    def attention_scores(self, token_ids):
        return self._model.attention_scores(self._own_ids(token_ids))

    def _prefill(self, token_ids, next_ids, count, cache):
        own_ids = None if next_ids is None else self._own_ids(next_ids)
        log_probs, cache = self._model.prefill(self._own_ids(token_ids), own_ids, count, cache)
        if next_ids is not None:
            is_control = next_ids < len(CONTROL_IDS)
            if self._end_id is not None:
                is_control |= next_ids == self._end_id + len(CONTROL_IDS)
                is_control &= next_ids != END_ID
            log_probs = ops.where(is_control, -1e9, log_probs)
        return log_probs, cache

    def _own_ids(self, token_ids):
        ids = ops.maximum(token_ids - len(CONTROL_IDS), 0)
        return ids if self._end_id is None else ops.where(token_ids == END_ID, self._end_id, ids)

    def _with_control_ids(self, logits):
        count = len(CONTROL_IDS)
        columns = [[0, 0]] * (len(logits.shape) - 1) + [[count, 0]]
        logits = ops.pad(ops.cast(logits, "float32"), columns, constant_values=-1e9)
        if self._end_id is None:
            return logits
        ids, end_id = ops.arange(ops.shape(logits)[-1]), self._end_id + count
        end = logits[..., end_id, None]
        return ops.where(ids == END_ID, end, ops.where(ids == end_id, -1e9, logits))
