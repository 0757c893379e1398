# shellcheck shell=sh
# The entrypoint gives these settings to the container's command, and shell.sh gives them to shells.
# A variable that is set already (docker run -e NAME=VALUE), also to nothing, stays as it is.
# TORCH_IMAGE_PROFILE=off turns all of them off. docs/runtime.md says what was measured.

# TF32 for float32 matrix products is several times faster on Ampere and newer, and has 10 bits of
# mantissa instead of 23. PyTorch's default is off. The setting is the same as
# torch.set_float32_matmul_precision("high"), and a program can change it. NVIDIA's own PyTorch
# images set it, too.
export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="${TORCH_ALLOW_TF32_CUBLAS_OVERRIDE-1}"

# The allocator maps memory into growing segments, so that tensors of changing sizes fragment less.
# PyTorch's default is off. Memory pools that manage their own memory (vLLM's sleep mode) do not work
# with it: set PYTORCH_ALLOC_CONF to nothing for them.
if [ -z "${PYTORCH_CUDA_ALLOC_CONF+set}${PYTORCH_ALLOC_CONF+set}" ]; then
    export PYTORCH_ALLOC_CONF=expandable_segments:True
fi

# Where Inductor's CUTLASS backend finds CUTLASS, in images that have it. PyTorch's default is the
# third_party folder of a source tree, which no installed torch has.
if [ -d /opt/cutlass/include ]; then
    export TORCHINDUCTOR_CUTLASS_DIR="${TORCHINDUCTOR_CUTLASS_DIR-/opt/cutlass}"
fi

# TORCH_IMAGE_GEMM=cutlass lets CUTLASS compete with what max-autotune tries for matrix products by
# default. It compiles for minutes, so it is off unless asked for. TORCHINDUCTOR_MAX_AUTOTUNE is not
# set: it would turn max-autotune on for every torch.compile, and that is the program's choice.
torch_image_gemm=
case "${TORCH_IMAGE_GEMM-}" in
    "" | stock) ;;
    cutlass)
        if ! [ -d "${TORCHINDUCTOR_CUTLASS_DIR-}/include/cutlass" ]; then
            torch_image_gemm="has no effect: no CUTLASS at ${TORCHINDUCTOR_CUTLASS_DIR:-/opt/cutlass}; variant pod has it"
        elif ! command -v nvcc >/dev/null && ! [ -x "${CUDA_HOME-}/bin/nvcc" ]; then
            torch_image_gemm="has no effect: no nvcc here; variant pod has it"
        else
            export TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS="${TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS-ATEN,TRITON,CPP,CUTLASS}"
        fi
        ;;
    *) torch_image_gemm="is not cutlass or stock, and taken as not set" ;;
esac
# Only the entrypoint says it, as it says which libcuda it chose.
if [ -n "$torch_image_gemm" ] && [ -n "${torch_image_says-}" ] && [ -z "${TORCH_IMAGE_QUIET-}" ]; then
    printf 'torch-images: TORCH_IMAGE_GEMM=%s %s\n' "$TORCH_IMAGE_GEMM" "$torch_image_gemm" >&2
fi
unset torch_image_gemm

# CUDA_MODULE_LOADING is not set: LAZY is the default since CUDA 12.2.
