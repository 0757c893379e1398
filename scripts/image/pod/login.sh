# shellcheck shell=sh
# A person who logs in to a pod sees the GPUs, and whether CUDA works with this image.
# The entrypoint has made TORCH_IMAGE_QUIET 1 or 0.
if [ -n "${SSH_TTY-}" ] && [ "${TORCH_IMAGE_QUIET-}" != 1 ]; then
    cuda-doctor || :
fi
