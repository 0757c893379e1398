ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
ARG COMFYUI=https://github.com/comfyanonymous/ComfyUI.git#v0.35.0
ADD $COMFYUI /opt/comfyui
RUN pip install --no-cache-dir -r /opt/comfyui/requirements.txt
WORKDIR /opt/comfyui
EXPOSE 8188
CMD ["python", "main.py", "--listen"]
