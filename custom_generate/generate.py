"""Hub entry: `target.generate(**inputs, custom_generate="org/drafter", trust_remote_code=True, assistant_model=draft)`."""

import inspect

from transformers import GenerationMixin, StoppingCriteriaList
from transformers.generation import StopStringCriteria


def generate(model, assistant_model=None, streamer=None, tokenizer=None, stop_strings=None, **kwargs):
    """Assisted decoding with a Domino drafter; nothing of transformers is wrapped.

    Takes what `generate` takes. `assistant_model` is the drafter, loaded from this repository.
    """
    if assistant_model is None:
        raise ValueError(
            "This decoding loop needs its drafter: pass assistant_model=AutoModel.from_pretrained(<this repository>, "
            "trust_remote_code=True)."
        )
    # transformers passes its own arguments as None when they were not given; a None of the caller's means something.
    own = inspect.signature(GenerationMixin.generate).parameters
    kwargs = {name: value for name, value in kwargs.items() if value is not None or name not in own}
    if stop_strings is not None:  # transformers gives a custom loop no tokenizer, so the criterion is built here
        criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", []))
        criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=tokenizer))
        kwargs["stopping_criteria"] = criteria
    kwargs["custom_generate"] = assistant_model.decode
    # The class's method: a model loaded from this repository has this very function as its own `generate`.
    return GenerationMixin.generate(model, drafter_streamer=streamer, **kwargs)
