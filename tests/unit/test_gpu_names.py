"""GPUs as programs, clouds and people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.pick.gpus import find_gpu

# The name that is found, and what is written for it.
SPELLINGS = {
    # nvidia-smi, and labels of Kubernetes with its words.
    "A100 8.0": "NVIDIA A100-SXM4-80GB|NVIDIA A100 80GB PCIe|NVIDIA A100X|A100_SXM4"
    "|NVIDIA-A100-SXM4-40GB-MIG-1g.5gb|NVIDIA A100-SXM4-40GB MIG 3g.20gb|GRID A100D-40C"
    "|a2-highgpu-1g|a2-ultragpu-1g|p4d.24xlarge|p4de.24xlarge|Standard_NC24ads_A100_v4"
    "|Standard_ND96asr_v4|BM.GPU4.8",
    "H100 9.0": "NVIDIA H100 80GB HBM3|NVIDIA H100 PCIe|NVIDIA H100 NVL|h100|H100SXM|H100-1-80G"
    "|GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-2d5f0a40-1111-2222-a100-444455556666)"
    "|H100 MIG 1g.10gb|NVIDIA-H100-80GB-HBM3-MIG-1g.10gb|NVIDIA H100XM-80C|nvidia-h100-mega-80gb"
    "|a3-highgpu-8g|a3-megagpu-8g|p5.48xlarge|Standard_ND96isr_H100_v5|BM.GPU.H100.8"
    "|gpu_8x_h100_sxm5|gd-8xh100ib-i128|8xH100|8x H100|8\N{MULTIPLICATION SIGN}H100|H100x8|H100 x 8|H100:4|H100*2",
    "H200 9.0": "NVIDIA H200|NVIDIA H200 NVL|p5en.48xlarge|a3-ultragpu-8g",
    "GH200 9.0": "NVIDIA GH200 480GB|NVIDIA GH200 144G HBM3e|gpu_1x_gh200|Grace Hopper",
    "B200 10.0": "NVIDIA B200|a4-highgpu-8g|p6-b200.48xlarge",
    "GB200 10.0": "NVIDIA GB200|a4x-highgpu-4g|p6e-gb200.36xlarge",
    "B300 10.3": "NVIDIA B300 SXM6 AC",
    "GB10 12.1": "NVIDIA GB10",
    "DGX Spark 12.1": "DGX Spark",
    "Jetson AGX Thor 11.0": "NVIDIA Jetson AGX Thor Developer Kit",
    "A10 8.6": "NVIDIA A10|NVIDIA A10-24Q|Standard_NV36ads_A10_v5|VM.GPU.A10.1",
    "A10G 8.6": "NVIDIA A10G|g5.xlarge",
    "L4 8.9": "NVIDIA L4|nvidia-l4|g2-standard-4|g6.xlarge|g6f.large|gr6.4xlarge",
    "L40 8.9": "NVIDIA L40|NVIDIA L40G",
    "L40S 8.9": "NVIDIA L40S|NVIDIA L40S-48C|g6e.12xlarge|L40Sx8",
    "T4 7.5": "Tesla T4|nvidia-tesla-t4|GRID T4-16C|g4dn.xlarge|Standard_NC4as_T4_v3",
    "T4G 7.5": "NVIDIA T4G|g5g.xlarge",
    "GeForce MX450 7.5": "MX450|NVIDIA GeForce MX450",
    "V100 7.0": "Tesla V100-SXM2-32GB|Tesla V100S-PCIE-32GB|GRID V100D-32C|p3.2xlarge"
    "|Standard_NC6s_v3|VM.GPU3.1",
    "TITAN V 7.0": "NVIDIA TITAN V",
    "RTX A6000 8.6": "NVIDIA RTX A6000|Quadro RTX A6000|RTXA6000|A6000|NVIDIA RTXA6000-48Q"
    "|gpu_1x_a6000",
    "RTX A5000 8.6": "A5000",
    "Quadro RTX 6000 7.5": "Quadro RTX 6000|GRID RTX6000-24Q",
    "RTX 6000 Ada 8.9": "NVIDIA RTX 6000 Ada Generation|RTX_6000Ada|6000 Ada",
    "RTX 4000 SFF Ada 8.9": "NVIDIA RTX 4000 SFF Ada Generation",
    "RTX 3500 Ada 8.9": "NVIDIA RTX 3500 Ada Generation Laptop GPU",
    "RTX PRO 6000 12.0": "NVIDIA RTX PRO 6000 Blackwell Server Edition|RTXPRO6000|pro 6000"
    "|NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition|RTX_PRO_6000_WS"
    "|NVIDIA RTXPRO6000-96C|g4-standard-48|g7e.2xlarge|RTX 6000 Blackwell",
    "RTX PRO 3000 12.0": "NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU",
    "GeForce RTX 5090 12.0": "NVIDIA GeForce RTX 5090|NVIDIA GeForce RTX 5090 D|5090|RTX5090x2",
    "GeForce RTX 4090 8.9": "NVIDIA GeForce RTX 4090 Laptop GPU|RTX_4090|4090|4x4090",
    "GeForce RTX 4070 8.9": "rtx4070super|rtx4070tisuper",
    "GeForce RTX 3090 8.6": "NVIDIA GeForce RTX 3090 Ti|2 x RTX 3090",
    "GeForce RTX 3080 8.6": "3080ti",
    "GeForce GTX 1660 7.5": "NVIDIA GeForce GTX 1660 Ti",
    # Compute capabilities, targets of compilers, and our own tags and identifiers.
    "GPU 12.0 12.0": "12.0|sm_120|sm120|compute_120|SM 12.0|cc 12.0|12.0a|torch-cu130:2.14.1-sm120"
    "|cu130-sm120-torch2.14.1-trixie-runtime",
    "GPU 9.0 9.0": "sm_90a|ghcr.io/torch-images/torch-cu130:sm90",
    "GPU 8.6 8.6": "compute_86|compute capability 8.6",
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [(one, name) for name, several in SPELLINGS.items() for one in several.split("|")],
)
def test_find_spellings(real: Config, written: str, expected: str) -> None:
    gpu = find_gpu(real, written)
    assert f"{gpu.name} {gpu.capability}" == expected
    assert gpu.capability.runs(gpu.architecture.capability)
    assert gpu.geforce == expected.startswith(("GeForce", "TITAN"))
    assert gpu.named != expected.startswith("GPU")


# What is written, and the error, in part.
REFUSED = {
    "NVIDIA GeForce GTX 1080 Ti": "6.1, which GTX 1080 has; they serve 7.0",
    "Tesla P100-PCIE-16GB": "6.0, which P100 has",
    "p2.xlarge": "3.7, which K80 has",
    "Orin (nvgpu)": "8.7, which Orin has; they serve 7.0",
    "NVIDIA Jetson AGX Orin Developer Kit": "; for a Jetson use NVIDIA's own PyTorch (https://docs",
    "8.7": "8.7, which this GPU has",
    "Rubin": "10.7, which Rubin has",
    "AMD Instinct MI300X": "is made by AMD; these images need an NVIDIA GPU",
    "rx 5090": "these images need an NVIDIA GPU",
    "g4ad.xlarge": "is made by AMD",
    "Intel Arc A770": "is made by Intel",
    "Gaudi 3": "is made by Intel",
    "trn1.32xlarge": "is made by Amazon",
    "TPU v5e": "is made by Google",
    "6000": "names several GPUs: Quadro RTX 6000 (7.5), RTX 6000 Ada (8.9), RTX PRO 6000 (12.0)",
    "H100 or A100": "names several GPUs: ",
    "sm_90 sm_120": "names several architectures: 9.0, 12.0; give one",
    "RTX 5990": "unknown GPU 'RTX 5990'; did you mean 'RTX 5090'?",
    "MIG 1g.10gb": "give the name of that GPU",
    "Blackwell": "unknown GPU 'Blackwell'",
    "": "unknown GPU ''; known: ",
}


@pytest.mark.parametrize(("written", "text"), REFUSED.items())
def test_find_refuses_other_names(real: Config, written: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(real, written)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("RTX 4090, NVIDIA GeForce RTX 3090", ["GeForce RTX 4090", "GeForce RTX 3090"]),
        ("8.9,8.6", ["GPU 8.9", "GPU 8.6"]),
        ("2x H100 and 1x A100", ["H100", "A100"]),
        ("NVIDIA L4\nNVIDIA L4", ["L4"]),
        ("NVIDIA H100 80GB HBM3, 81559 MiB", ["H100"]),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", ["A100"]),
    ],
)
def test_find_several_models(real: Config, written: str, names: list[str]) -> None:
    assert [gpu.name for gpu in find_gpu(real, written).all] == names


def test_find_every_listed_name(real: Config) -> None:
    """As it is, as nvidia-smi writes it and with a count; none is hidden by another one."""
    for architecture in real.architectures:
        for name in (*architecture.gpus, *architecture.geforce):
            for written in (name, f"NVIDIA {name}", f"NVIDIA GeForce {name}", f"8x{name}"):
                match = find_gpu(real, written)
                assert match.name.removeprefix("GeForce ") == name
                assert match.geforce == (name in architecture.geforce)
                assert match.capability == architecture.capability
    for gpu, aliases in real.gpu_aliases:
        for alias in aliases:
            try:
                assert find_gpu(real, alias).name == gpu
            except UsageError as error:
                assert f"which {gpu} has" in str(error)
    for capability, names in real.other_gpus:
        for name in (*names, str(capability)):
            with pytest.raises(UsageError, match=f"{capability}, which .* has; they serve"):
                find_gpu(real, name)


@given(st.text(max_size=30) | st.from_regex(r"[a-z]{0,4}[ _-]?[0-9]{1,4}[a-z ]{0,6}[x*]?[0-9]?"))
def test_find_of_any_text(real: Config, name: str) -> None:
    try:
        gpu = find_gpu(real, name)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert gpu.architecture in real.architectures
