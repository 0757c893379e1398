#!/bin/bash
# Serve a model of Hugging Face's on port 8000. The volume `models` keeps what was downloaded.
set -euo pipefail
docker run --rm --gpus all --ipc=host --publish=8000:8000 \
    --volume=models:/models --env=HF_HOME=/models torch-cu130:vllm \
    vllm serve "${1:-Qwen/Qwen3-0.6B}" --host=0.0.0.0 --port=8000
