"""vLLM in this process, and what a vLLM worker needs to take over the weights of a model in training."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.sampling_params import RequestOutputKind

from star.errors import StarError
from star.policies.engine import FINISH, Request, Sampled

Weights = Iterable[tuple[str, torch.Tensor]]
WORKER = "star.policies.vllm.Worker"
"""Name of the worker extension, for `--worker-extension-cls`."""
GIB = 1 << 30


class Worker:
    """Methods that vLLM adds to its worker (`--worker-extension-cls`)."""

    def star_update(self, weights: Weights) -> None:
        """Take over weights that are named as in a checkpoint.

        vLLM prepares the weights of some processors in a form of its own when it loads a layer. A head that shares the weights
        of the embedding is no layer in a checkpoint: without a second preparation it would keep the old form.
        """
        worker: Any = self
        worker.reload_weights(weights_iterator=weights)
        for module in worker.get_model().modules():
            if isinstance(module, VocabParallelEmbedding) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
                module.quant_method.process_weights_after_loading(module)

    def star_load(self, directory: str) -> dict[str, Any]:
        """Take over the safetensors files of a directory; say under which settings this worker samples."""
        files = sorted(Path(directory).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no safetensors files in {directory}")
        self.star_update(_tensors(files))
        worker: Any = self
        model = worker.vllm_config.model_config
        dtype = str(model.dtype).removeprefix("torch.")
        return {"dtype": dtype, "logprobs_mode": model.logprobs_mode, "max_model_len": model.max_model_len}


def _tensors(files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(str(file), framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # it is no mapping
                yield name, stored.get_tensor(name)


class LocalEngine:
    """One `vllm.LLM` on the device of this process, with prefix caching: turns, and forks, reuse what was read before.

    On a CUDA device it sleeps between batches of rollouts: its weights and its cache leave the memory to the optimizer.
    """

    def __init__(self, path: str, *, bf16: bool, context: int, likeliest: int, kv_cache_gib: float) -> None:
        """Load the checkpoint at `path`. Raises StarError if vLLM refuses it."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are handed over as they are in memory
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer's threads are in this process too
        self._sleeps = torch.cuda.is_available()
        others = torch.distributed.is_initialized()  # each process has an engine of its own, over the connection of all
        self._asleep = False
        self._likeliest = likeliest
        try:
            self._llm = LLM(
                model=path,
                dtype="bfloat16" if bf16 else "float32",
                max_model_len=context,
                logprobs_mode="processed_logprobs",
                max_logprobs=likeliest,
                generation_config="vllm",
                enable_prefix_caching=True,
                enable_sleep_mode=self._sleeps,
                enforce_eager=not torch.cuda.is_available(),
                kv_cache_memory_bytes=round(kv_cache_gib * GIB),
                gpu_memory_utilization=0.01,  # only asked for at the start, since the cache has a size of its own
                worker_extension_cls=WORKER,
                distributed_executor_backend="external_launcher" if others else None,
                disable_log_stats=True,
                use_tqdm_on_load=False,
            )
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1]
            fix = "Adjust limits.context or rollouts.kv_cache_gib, or sample with rollouts: hf"
            raise StarError(f"vLLM cannot serve {path!r}: {reason}", fix) from error

    def submit(self, request: Request) -> None:
        params = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_tokens=request.limit,
            stop_token_ids=[request.end],
            ignore_eos=True,  # the end of a turn is the renderer's alone
            logprobs=self._likeliest,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._llm.llm_engine.add_request(request.key, {"prompt_token_ids": request.ids}, params)

    def wait(self) -> dict[str, Sampled]:
        ended: dict[str, Sampled] = {}
        while not ended:
            ended = {output.request_id: _sampled(output.outputs[0]) for output in self._llm.llm_engine.step() if output.finished}
        return ended

    def update(self, weights: Weights) -> None:
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("star_update", args=(weights,))
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self._llm.reset_prefix_cache():
            raise StarError("vLLM keeps what it cached under the old weights", "Update only while no turn is under way")

    def rest(self) -> None:
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        """Free everything, vLLM's connection to other processes included: this one works alone from here on."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()


def _sampled(output: Any) -> Sampled:
    """A finished output with flat log-probabilities: for each position those of the sampled id and then of the likeliest."""
    flat = output.logprobs
    found = [tuple(flat.logprobs[start:end]) for start, end in zip(flat.start_indices, flat.end_indices, strict=True)]
    return Sampled(
        tuple(output.token_ids), tuple(row[0] for row in found), tuple(row[1:] for row in found), FINISH[output.finish_reason]
    )
