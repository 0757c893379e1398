# shellcheck shell=sh
# What a person sees who logs in to a pod: the GPUs, and whether CUDA works with this image.
if [ -n "${SSH_TTY-}" ] && [ -z "${TORCH_IMAGE_QUIET-}" ]; then
    cuda-doctor || :
fi
