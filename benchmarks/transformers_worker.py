"""`python -m benchmarks.transformers_worker TARGET DTYPE [THREADS]`: the peer in the benchmarks.

JSON lines {"text", "max_tokens"} in, {"prompt_ids", "token_ids", "ttft_s", "total_s"} out; greedy,
static cache, stops as the target's own configuration says. benchmarks.arms starts it.
"""

import json
import os
import sys
import time
from typing import Any, TextIO

import torch
import transformers


def main(target: str, dtype: str, threads: str = "") -> None:
    answers = own_stdout()
    if threads:
        torch.set_num_threads(int(threads))
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype))
    model.eval()
    send(answers, {"threads": torch.get_num_threads()})
    for line in sys.stdin:
        request = json.loads(line)
        ids = encode(tokenizer, request["text"])
        send(answers, {"prompt_ids": ids, **generate(model, ids, request["max_tokens"])})


def own_stdout() -> TextIO:
    """Stdout for answers alone: what a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def send(answers: TextIO, found: dict[str, Any]) -> None:
    print(json.dumps(found), file=answers, flush=True)


def encode(tokenizer: Any, text: str) -> list[int]:
    turns = [{"role": "user", "content": text}]
    found = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    return list(found["input_ids"])


class FirstToken:
    """A streamer that only notes when the first new token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, ids: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""

    @property
    def at(self) -> float:
        """The prompt is put first, then each new token."""
        return self.times[1]


@torch.inference_mode()
def generate(model: Any, ids: list[int], max_tokens: int) -> dict[str, Any]:
    streamer = FirstToken()
    begin = time.perf_counter()
    prompt = torch.tensor([ids])
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_tokens,
        cache_implementation="static",
        streamer=streamer,
    )
    token_ids = found[0, len(ids) :].tolist()
    end = time.perf_counter()
    return {"token_ids": token_ids, "ttft_s": streamer.at - begin, "total_s": end - begin}


if __name__ == "__main__":
    main(*sys.argv[1:])
