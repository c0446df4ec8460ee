"""Whole networks of operations that Inductor makes Triton kernels of: for `ptx_networks.py`, and for tenants (`compiled`).

Weights and inputs are random and the same each time. Attention is written out, as products and a softmax: there is no kernel of a library in it."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        score = torch.matmul(query, key.transpose(-1, -2)).float() * (width // self.heads) ** -0.5
        at = torch.arange(length, device=x.device)
        score = torch.where(at.unsqueeze(1) >= at.unsqueeze(0), score, -float("inf"))
        mixed = torch.matmul(torch.softmax(score, dim=-1).to(x.dtype), value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.narrow(functional.gelu(self.wide(self.between(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A decoder in the manner of GPT-2, all tokens of a prompt at once."""

    def __init__(self, words=8192, length=1024, width=1024, heads=16, layers=4):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Mix(nn.Module):
    """A layer of an MLP-Mixer: over places, then over channels."""

    def __init__(self, places, width):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.over_channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.over_places(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.between(x))


class Mixer(nn.Module):
    def __init__(self, patch=16, side=224, width=512, layers=8, classes=1000):
        super().__init__()
        self.patch = patch
        self.first = nn.Linear(3 * patch * patch, width)
        self.layers = nn.Sequential(*(Mix((side // patch) ** 2, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        batch, channels, side, _ = images.shape
        count = side // self.patch
        x = images.view(batch, channels, count, self.patch, count, self.patch).permute(0, 2, 4, 1, 3, 5)
        x = self.layers(self.first(x.reshape(batch, count * count, -1)))
        return self.head(self.norm(x).mean(dim=1))


class Residual(nn.Module):
    def __init__(self, from_width, width, stride):
        super().__init__()
        self.first = nn.Conv2d(from_width, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList((nn.BatchNorm2d(width), nn.BatchNorm2d(width)))
        self.past = None
        if stride != 1 or from_width != width:
            self.past = nn.Sequential(nn.Conv2d(from_width, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        return functional.relu(y + (x if self.past is None else self.past(x)))


class ResNet(nn.Module):
    """ResNet-18."""

    def __init__(self, classes=1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.layers = nn.Sequential(*(nn.Sequential(Residual(a, b, s), Residual(b, b, 1)) for a, b, s in widths))
        self.head = nn.Linear(512, classes)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(self.layers(x).mean(dim=(2, 3)))


def tokens(batch, length=1024, words=8192):
    return torch.randint(0, words, (batch, length))


def images(batch, side=224):
    return torch.randn(batch, 3, side, side).to(torch.float16)


class Stream(nn.Module):
    """No network: reads 256 MiB and writes as much."""

    def forward(self, x):
        return x + 1


# A network, what it is given for a batch, the batch unless another one is asked for, and what work is counted in.
NETWORKS = {
    "gpt": (Gpt, tokens, 4, "sequence"),
    "mixer": (Mixer, images, 64, "image"),
    "resnet18": (ResNet, lambda batch: images(batch).to(memory_format=torch.channels_last), 32, "image"),
    "stream": (Stream, lambda batch: torch.randn(batch, 1 << 20).to(torch.float16), 128, "MiB"),
}


def made(name, batch=None):
    """A network in half precision with its input, in the host's memory."""
    torch.manual_seed(1)
    kind, given, usual, _ = NETWORKS[name]
    network = kind().to(torch.float16).eval().requires_grad_(False)
    if name == "resnet18":
        network = network.to(memory_format=torch.channels_last)
    return network, given(batch or usual)
