"""Networks in plain torch.nn for `torch_models.py`: ResNet-50, a vision transformer, a block of Llama.

They are written as such networks usually are: one ReLU that a block calls three times, sums of a residual in place,
attention as a function. Weights are random; norms of ResNet-50 hold statistics of random images, so that no layer
vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# -- ResNet-50 --------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """Three convolutions, each with a batch norm; the last one's result is added to the block's argument."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Any) -> Any:
        """[n, c, h, w] to [n, 4 * width, h / stride, w / stride]."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network of bottlenecks; with (3, 4, 6, 3) of them in its four stages it is ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3)):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        stages, channels = [], 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
            stages.append(
                nn.Sequential(*(Bottleneck(channels if n == 0 else 4 * width, width, s) for n, s in enumerate(strides)))
            )
            channels = 4 * width
        self.stages = nn.Sequential(*stages)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 1000)

    def forward(self, x: Any) -> Any:
        """Scores of 1000 classes for images [n, 3, h, w]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.stages(x))
        return self.fc(torch.flatten(x, 1))


# -- a vision transformer ---------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, over some heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, length, width))


class EncoderBlock(nn.Module):
    """Attention and two products with a gelu between them, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        """[batch, length, width] to the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """ViT: patches of 16x16 pixels as a sequence; with the sizes that are set here, ViT-B/16."""

    def __init__(self, image: int, depth: int = 12, width: int = 768, heads: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (image // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        """Scores of 1000 classes for images [n, 3, h, w]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


# -- a block of Llama -------------------------------------------------------------------------------------


class LlamaBlock(nn.Module):
    """Attention with rotated queries and keys, of which groups of heads share keys and values; and a gated product."""

    def __init__(self, length: int, width: int = 2048, heads: int = 32, groups: int = 8, hidden: int = 8192):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        steps = torch.arange(0, self.size, 2).double() / self.size
        angles = torch.outer(torch.arange(length).double(), 500000.0**-steps).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())

    def _rotated(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x: Any) -> Any:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = self._rotated(q), self._rotated(k)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


# -- with their arguments ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of networks and of their arguments."""

    batch: int
    image: int
    length: int
    small: bool


@dataclass(frozen=True)
class Network:
    """A network: what makes it, and the shape of its argument."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def networks(sizes: Sizes) -> list[Network]:
    """The networks; small ones have fewer blocks, of the same kinds."""
    images = (sizes.batch, 3, sizes.image, sizes.image)
    depth = 2 if sizes.small else 12
    blocks = (2, 1, 1, 1) if sizes.small else (3, 4, 6, 3)
    of_llama = (512, 8, 2, 1536) if sizes.small else (2048, 32, 8, 8192)
    return [
        Network("ResNet-17" if sizes.small else "ResNet-50", lambda: ResNet(blocks), images),
        Network(f"ViT-B/16, {depth} blocks", lambda: VisionTransformer(sizes.image, depth), images),
        Network(
            f"Llama block {of_llama[0]}",
            lambda: LlamaBlock(sizes.length, *of_llama),
            (sizes.batch, sizes.length, of_llama[0]),
        ),
    ]


def prepared(network: Network, seed: int) -> tuple[nn.Module, Any]:
    """The network in eval mode with random weights, and an argument."""
    torch.manual_seed(seed)
    model, x = network.make(), torch.randn(network.shape)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.0)
        nn.init.normal_(norm.bias, 0.0, 0.1)
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            model.train()(torch.randn(4, *network.shape[1:]))
    return model.eval(), x
