#!/bin/bash
# In the folder of train.py: `./two-nodes.sh ADDRESS 0` on the machine with that address, `... 1` on the other.
set -euo pipefail
docker run --rm --gpus all --network=host --ipc=host --volume="$PWD:/workspace" --workdir=/workspace \
    torch-cu130:sm90 torchrun --nnodes=2 --node-rank="$2" --nproc-per-node=auto \
    --master-addr="$1" --master-port=29500 train.py
