"""What answers prompts in the benchmarks: a mode of the running services, or transformers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks.provenance import ROOT
from benchmarks.sample import Prompt, Sample
from domino_cli.ask import Answer, ask
from domino_cli.errors import CommandError
from domino_cli.progress import say
from domino_client import Client, Speculation
from router.tokenizer import Tokenizer
from serving.contract import ModeName

ATTEMPTS = 3


class Arm(Protocol):
    """Answers one prompt at a time, greedily, up to the target's own end of text."""

    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...
    def answer(self, prompt: Prompt, max_tokens: int) -> Sample: ...


class ServiceArm:
    """A mode of the services behind `client`; width 1 is plain decoding.

    adaptive: the services choose up to `width`, so that plain steps mean no lost draft.
    """

    def __init__(
        self, client: Client, mode: ModeName, width: int = 1, *, adaptive: bool = False
    ) -> None:
        self.name: ModeName = mode
        self.width, self._adaptive = width, adaptive
        self._client = client

    def answer(self, prompt: Prompt, max_tokens: int) -> Sample:
        """Times are the client's: both gRPC hops, tokenizing and detokenizing included.

        An answer for which the draft was lost is no sample of this arm: it is asked for again, and
        the sample says how often. Raises CommandError when the draft stays lost.
        """
        for attempt in range(1, ATTEMPTS + 1):
            found = self._ask(prompt, max_tokens)
            if self._was_drafted(found.completion.speculation):
                return self._sample(prompt, found, attempt)
            say(f"{self.name}: the draft was lost or refused on {prompt.workload}[{prompt.index}]")
        raise CommandError(f"{self.name}: lost the draft {ATTEMPTS} times in a row")

    def _ask(self, prompt: Prompt, max_tokens: int) -> Answer:
        return ask(
            self._client,
            None,
            lambda text: None,
            chat=[{"role": "user", "content": prompt.text}],
            mode=self.name,
            draft_tokens=self.width - 1 if self.width > 1 else None,
            max_tokens=max_tokens,
        )

    def _was_drafted(self, found: Speculation) -> bool:
        """Drafting may end with one plain step: when a single token is left to produce."""
        plain = self.width == 1 or self._adaptive or found.plain_steps <= 1
        return found.mode == self.name and plain

    def _sample(self, prompt: Prompt, found: Answer, attempts: int) -> Sample:
        speculation = found.completion.speculation
        return Sample(
            arm=self.name,
            width=self.width,
            prompt=prompt,
            token_ids=found.completion.token_ids,
            ttft_s=found.ttft_s,
            total_s=found.total_s,
            verify_steps=speculation.verify_steps,
            step_tokens=speculation.step_tokens,
            accepted_by_position=speculation.accepted_by_position,
            attempts=attempts,
        )


class TransformersArm:
    """transformers' `generate` in a process of its own; a context manager.

    Times are those of the call alone, without tokenizing and without the way to the process.
    """

    name = "transformers"
    width = 1

    def __init__(self, target: Path, dtype: str, threads: int | None) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise CommandError(
                "comparing needs transformers: `pip install -c constraints.txt -e '.[bench]'`"
            )
        self._tokenizer = Tokenizer.load(target)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transformers_worker", str(target.resolve()), dtype]
            + ([str(threads)] if threads else []),
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is for the benchmark, which ends it
        )

    def __enter__(self) -> Self:
        try:
            self.about = self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()  # waits, and closes both pipes

    def answer(self, prompt: Prompt, max_tokens: int) -> Sample:
        found = self._ask({"text": prompt.text, "max_tokens": max_tokens})
        expected = self._tokenizer.encode_chat([{"role": "user", "content": prompt.text}])
        if found["prompt_ids"] != expected:
            raise CommandError(
                f"{prompt.workload}[{prompt.index}]: the router and transformers tokenize it "
                "differently; their speeds do not compare"
            )
        return Sample(
            arm=self.name,
            width=self.width,
            prompt=prompt,
            token_ids=tuple(found["token_ids"]),
            ttft_s=found["ttft_s"],
            total_s=found["total_s"],
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise CommandError(f"transformers ended with code {code} (its message is above)")
        found: dict[str, Any] = json.loads(line)
        return found
