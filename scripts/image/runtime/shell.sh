# shellcheck shell=sh
# For shells of `docker exec`, ssh and replaced entrypoints, through BASH_ENV, ENV, PROMPT_COMMAND
# and /etc/profile.d: gives them what the entrypoint gives the container's command, once.
if [ -z "${TORCH_IMAGE_STARTED-}" ]; then
    case ":${PATH-}:" in # /etc/profile and sshd set their own
        *:/opt/venv/bin:*) ;;
        *)
            if [ -d /usr/local/cuda/bin ]; then
                export PATH="/usr/local/cuda/bin:$PATH" CUDA_HOME=/usr/local/cuda
            fi
            export PATH="/opt/venv/bin:$PATH" VIRTUAL_ENV=/opt/venv
            # What holds pip and uv, where the image's environment did not come along.
            torch_image_held=/usr/share/torch-images/constraints.txt
            export PIP_CONSTRAINT="${PIP_CONSTRAINT-$torch_image_held}"
            export UV_CONSTRAINT="${UV_CONSTRAINT-$torch_image_held}"
            export PIP_BUILD_CONSTRAINT="${PIP_BUILD_CONSTRAINT-$torch_image_held}"
            export UV_BUILD_CONSTRAINT="${UV_BUILD_CONSTRAINT-$torch_image_held}"
            unset torch_image_held
            ;;
    esac
    # shellcheck source=/dev/null
    . /usr/local/lib/torch-images/start.sh
fi
