# shellcheck shell=sh
# The entrypoint sources this file, and so do shells that it did not start (shell.sh). Nothing here
# may end the shell that reads it. If no libcuda can be chosen, the host's is used.
# torch_image_says=--say makes it print one line that says what was chosen.
eval "$(/usr/bin/python3 -sES /usr/local/lib/torch-images/cuda_runtime.py "${torch_image_says-}" || :)" || :
if [ "${TORCH_IMAGE_PROFILE-}" != off ]; then
    # shellcheck source=/dev/null
    . /usr/local/lib/torch-images/profile.sh
fi
export TORCH_IMAGE_STARTED=1
