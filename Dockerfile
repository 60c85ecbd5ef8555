# The tested environment, for a CPU or a GPU.
#
#   docker build -t fairseq-recur .
#   docker build -t fairseq-recur --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
#   docker run --rm -it -v "$PWD/work:/work" fairseq-recur        (GPUs: docker run --gpus all ...)
FROM python:3.11-slim

# PyTorch's index of CPU builds; those of CUDA builds end in /cu128 and the like.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# A C compiler: SRformer's scan is compiled on first use on a CPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev fonts-noto-cjk \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fairseq_recur
COPY requirements ./requirements
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
    --requirement requirements/py3.11.txt
COPY . .
RUN pip install --no-cache-dir --no-deps . && fairseq-recur check
WORKDIR /work
CMD ["bash"]
