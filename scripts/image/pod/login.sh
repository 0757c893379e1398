# shellcheck shell=sh
# A person who logs in to a pod sees the GPUs, and whether CUDA works with this image.
if [ -n "${SSH_TTY-}" ] && [ -z "${TORCH_IMAGE_QUIET-}" ]; then
    cuda-doctor || :
fi
