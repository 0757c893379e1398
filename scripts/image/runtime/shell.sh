# shellcheck shell=sh
# Gives a shell of `docker exec`, of ssh or of another entrypoint what our entrypoint gives the
# container's command, once. Shells read it through BASH_ENV, /etc/bash.bashrc and /etc/profile.d.
# Nothing here may end the shell that reads it, or print anything.
if [ -z "${TORCH_IMAGE_STARTED-}" ]; then
    case ":${PATH-}:" in # /etc/profile and sshd replace PATH
        *:/opt/venv/bin:*) ;;
        *)
            if [ -d /usr/local/cuda/bin ]; then
                export PATH="/usr/local/cuda/bin:$PATH" CUDA_HOME=/usr/local/cuda
            fi
            export PATH="/opt/venv/bin:$PATH" VIRTUAL_ENV=/opt/venv
            # A shell that lost PATH lost the image's other variables, too: set those that keep pip
            # and uv from changing torch.
            torch_image_held=/usr/share/torch-images/constraints.txt
            export PIP_CONSTRAINT="${PIP_CONSTRAINT-$torch_image_held}"
            export UV_CONSTRAINT="${UV_CONSTRAINT-$torch_image_held}"
            export PIP_BUILD_CONSTRAINT="${PIP_BUILD_CONSTRAINT-$torch_image_held}"
            export UV_BUILD_CONSTRAINT="${UV_BUILD_CONSTRAINT-$torch_image_held}"
            export UV_NO_BINARY_PACKAGE="${UV_NO_BINARY_PACKAGE-torch}"
            # Poetry fetches what it can before it refuses torch: it is told of all that torch needs.
            torch_image_names=torch
            if [ -r "$torch_image_held" ]; then
                while IFS= read -r torch_image_line; do
                    case $torch_image_line in
                        *==0+*) ;; # what must not be here
                        triton==* | cuda-toolkit==* | nvidia-*==*)
                            torch_image_names="$torch_image_names,${torch_image_line%%==*}"
                            ;;
                    esac
                done <"$torch_image_held"
            fi
            export POETRY_INSTALLER_NO_BINARY="${POETRY_INSTALLER_NO_BINARY-$torch_image_names}"
            unset torch_image_held torch_image_names torch_image_line
            ;;
    esac
    eval "$(/usr/bin/python3 -sES /usr/local/lib/torch-images/start.py 2>/dev/null || :)" || :
fi
