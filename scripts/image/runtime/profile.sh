# shellcheck shell=sh
# Settings that every process of the container gets from the entrypoint, and shells from shell.sh.
# What the environment has already (docker run -e NAME=VALUE, also an empty one) is left as it is;
# TORCH_IMAGE_PROFILE=off leaves out all of them. docs/runtime.md says what was measured.

# TF32 for float32 matrix products: several times faster on Ampere and newer, with 10 bits of
# mantissa instead of 23. PyTorch's default is off. The same as torch.set_float32_matmul_precision
# ("high"), which a program can take back. NVIDIA's own PyTorch images set it, too.
export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="${TORCH_ALLOW_TF32_CUBLAS_OVERRIDE-1}"

# The allocator maps memory into growing segments, so that tensors of changing sizes fragment less.
# PyTorch's default is off. Not compatible with memory pools that manage their own (vLLM's sleep
# mode): set it to nothing there.
if [ -z "${PYTORCH_CUDA_ALLOC_CONF+set}${PYTORCH_ALLOC_CONF+set}" ]; then
    export PYTORCH_ALLOC_CONF=expandable_segments:True
fi

# Where Inductor's CUTLASS backend finds CUTLASS, in images that have it. PyTorch's default is the
# third_party folder of a source tree, which no installed torch has.
if [ -d /opt/cutlass/include ]; then
    export TORCHINDUCTOR_CUTLASS_DIR="${TORCHINDUCTOR_CUTLASS_DIR-/opt/cutlass}"
fi

# Not set, because it is so anyway: CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2.
