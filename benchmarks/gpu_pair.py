"""Qwen3-8B and its Domino draft with random weights on one GPU, as executors for pair_steps."""

import copy

import torch

from benchmarks.gpu_draft_model import qwen3_8b_domino, random_draft
from benchmarks.gpu_verify_model import PAGE, TAPS, qwen3_8b, random_target
from benchmarks.pair_steps import PREFILL, Pair
from benchmarks.rollout_generator import QWEN3_8B, generate
from domino_kernels.rollout import DominoRollout
from domino_kernels.rollout_base import BaseRollout
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.gpu_executor import GpuExecutor as GpuDraftExecutor
from draft_service.gpu_rollout import CERTIFIED_BATCH
from draft_service.gpu_step import batch_buckets
from serving.garbage import settle
from verify_service.gpu_executor import GpuExecutor
from verify_service.gpu_prompts import row_buckets
from verify_service.gpu_target import GpuTarget

VOCAB = QWEN3_8B.vocab


class GpuPair:
    """The target's weights, drawn once; `plain` and `drafted` hold the device one after another."""

    def __init__(self) -> None:
        self.target = random_target(qwen3_8b(), torch.bfloat16)

    def plain(self, *, max_sequences: int, tokens: int) -> Pair:
        """The target alone: nothing projected, no draft loaded. tokens: room for so many."""
        pages = -(-tokens // PAGE)
        executor = self._executor(self.target, pages, max_sequences, [1])
        settle()  # as a service does
        return Pair(executor, None, vocab=VOCAB, pages=pages, page_size=PAGE)

    def drafted(
        self, *, max_sequences: int, tokens: int, widths: list[int], draft_tokens: int | None = None
    ) -> Pair:
        """With five taps projected and a draft of both modes. draft_tokens: room, as `tokens`."""
        pages, draft_pages = -(-tokens // PAGE), -(-(draft_tokens or tokens) // PAGE)
        target = copy.copy(self.target)
        small = random_target(qwen3_8b(layers=0, vocab=256), torch.bfloat16, TAPS)
        vars(target).update(projection=small.projection, _taps=small._taps)
        verify = self._executor(target, pages, max_sequences, widths)
        config, head = qwen3_8b_domino(), generate(QWEN3_8B, device="cuda")
        most = batch_buckets(max_sequences)[-1]
        domino = DominoRollout(  # as the draft service makes it by default
            head.weights,
            head.lm_head,
            head.embedding,
            "certified",
            most,
            proposals=config.max_draft_tokens,
            certified_batch=CERTIFIED_BATCH,
        )
        model = random_draft(config, head.embedding)
        draft = GpuDraftExecutor(
            model,
            {spec.MODE_DFLASH: BaseRollout(head.lm_head), spec.MODE_DOMINO: domino},
            model.new_kv(draft_pages, PAGE),
            max_sessions=max_sequences,
        )
        settle()
        return Pair(
            verify, draft, vocab=VOCAB, pages=pages, page_size=PAGE, draft_pages=draft_pages
        )

    def _executor(
        self, target: GpuTarget, pages: int, max_sequences: int, widths: list[int]
    ) -> GpuExecutor:
        settle()  # graphs of an executor before
        torch.cuda.empty_cache()
        return GpuExecutor(
            target,
            pages=pages,
            page_size=PAGE,
            max_sequences=max_sequences,
            widths=widths,
            prompt_rows=row_buckets(PREFILL),
        )
