#!/bin/bash
# Serve a model of Hugging Face's on port 8000. The volume `models` keeps downloads and compiled code.
# Models with a licence to accept need a token: HF_TOKEN=hf_... ./serve-vllm.sh meta-llama/...
set -euo pipefail
docker run --rm --gpus all --ipc=host --publish=8000:8000 --env=HF_TOKEN \
    --volume=models:/models --env=HF_HOME=/models --env=VLLM_CACHE_ROOT=/models/vllm torch-cu130:vllm \
    vllm serve "${1:-Qwen/Qwen3-0.6B}" --host=0.0.0.0 --port=8000
