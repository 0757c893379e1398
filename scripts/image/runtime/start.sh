# shellcheck shell=sh
# Sourced by the entrypoint, and through shell.sh by shells that it did not start. Nothing here may
# end the shell that reads it; without a choice the host's own driver is used.
# torch_image_says=--say makes it say in one line what was chosen.
eval "$(/usr/bin/python3 -sES /usr/local/lib/torch-images/cuda_runtime.py "${torch_image_says-}" || :)" || :
if [ "${TORCH_IMAGE_PROFILE-}" != off ]; then
    # shellcheck source=/dev/null
    . /usr/local/lib/torch-images/profile.sh
fi
export TORCH_IMAGE_STARTED=1
