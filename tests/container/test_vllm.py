"""vLLM, as far as it can be seen without a GPU: its command, its arguments, a model's configuration."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.container.test_extras import environment, skip_without

# A model of vLLM's smallest kind, as a file config.json of Hugging Face's describes one.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
}
CONFIGURE = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry
def configuration(length):
    args = EngineArgs(
        model=sys.argv[1], skip_tokenizer_init=True, max_model_len=length, dtype="bfloat16"
    )
    return args.create_model_config()
found = configuration(128)
try:
    configuration(4096)  # more positions than the model has
    refused = ""
except Exception as error:
    refused = str(error)
print(json.dumps({
    "length": found.max_model_len,
    "dtype": str(found.dtype),
    "layers": found.hf_config.num_hidden_layers,
    "heads": found.hf_config.num_key_value_heads,
    "registered": "LlamaForCausalLM" in ModelRegistry.get_supported_archs(),
    "refused": "max_model_len" in refused,
}))
"""

# Whether vLLM's sampler would take FlashInfer's kernels on a Hopper GPU.
SAMPLER = """
import os
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"  # FlashInfer asks the GPU otherwise
from vllm.platforms.interface import DeviceCapability
from vllm.v1.sample.ops import topk_topp_sampler as sampler
class Hopper:
    def is_cuda(self): return True
    def get_device_capability(self): return DeviceCapability(9, 0)
    def num_compute_units(self, index): return 132
sampler.current_platform = Hopper()
sampler.torch.accelerator.current_device_index = lambda: 0
print(sampler.flashinfer_sampler_supported())
"""


# What a stand-in for NVML answers, so that vLLM takes the machine for one with a GPU.
ONE_GPU = """
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = (void *) 1; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { *a = 9; *b = 0; return 0; }
"""


def run(*words: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program beside stand-ins for the driver's libraries, without a network."""
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env={**environment(answers), **offline}
    )


def test_the_server_lists_its_arguments(expected: dict[str, Any]) -> None:
    skip_without(expected, "vllm")
    done = run("vllm", "serve", "--help=all", answers=ONE_GPU)
    assert done.returncode == 0, done.stderr[-2000:]
    for option in ("--tensor-parallel-size", "--gpu-memory-utilization", "--max-model-len"):
        assert option in done.stdout


def test_it_reads_a_models_configuration(expected: dict[str, Any], tmp_path: Path) -> None:
    """It refuses an argument that makes no sense. One process, for vLLM takes seconds to import."""
    skip_without(expected, "vllm")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    done = run(sys.executable, "-c", CONFIGURE, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "length": 128,
        "dtype": "torch.bfloat16",
        "layers": 2,
        "heads": 2,
        "registered": True,
        "refused": True,
    }


def test_sampling_needs_no_compiler_that_is_not_here(expected: dict[str, Any]) -> None:
    """FlashInfer's sampler is compiled by nvcc when the engine starts, which ends without one."""
    skip_without(expected, "vllm")
    done = run(sys.executable, "-c", SAMPLER)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == str(shutil.which("nvcc") is not None)
