#!/bin/bash
# Run this on both nodes, in the folder of train.py: ./two-nodes.sh ADDRESS-OF-THE-FIRST-NODE
set -euo pipefail
docker run --rm --gpus all --network=host --ipc=host --volume="$PWD:/workspace" --workdir=/workspace \
    torch-cu130:sm90 torchrun --nnodes=2 --nproc-per-node=auto \
    --rdzv-backend=c10d --rdzv-endpoint="$1:29500" --rdzv-id=train train.py
