"""A small decoder-only language model that generates one token after the other.

About 0.3 billion parameters, random, fp16: rotary positions, RMS norms, gated feed-forward, no biases. The keys and
values of all positions lie in a static cache, and the position is a tensor that each step advances, so that a step can
be captured as a CUDA graph and replayed. Attention looks at the whole cache and masks what lies ahead: every step costs
the same. At the end of the context the sequence begins again with its prompt, one token per row.

Tokens are fed back greedily. So that a result can be held against another to the last token, although sums may be
rounded in another order on another number of SMs, the head is the embedding in another order of tokens: what the
residual stream keeps of a token then outweighs what the layers add, and the best token leads by far. Its score takes in
all layers and the cache; it is recorded too, and checked within `SCORE_TOLERANCE`.
"""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SEED = 7
# Largest difference of a score, relative to the largest score. Within one process, on the same SMs, scores should come
# out the same to the bit; fp16 and fp32 differ by 0.0003, and a cache of zeros makes 0.02.
SCORE_TOLERANCE = 0.002


@dataclass(frozen=True)
class Size:
    vocabulary: int = 32_768
    width: int = 1_024
    heads: int = 16
    layers: int = 20
    hidden: int = 2_816

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass
class Layer:
    """Weight matrices as `functional.linear` takes them: output by input."""

    norm_attention: Tensor
    queries_keys_values: Tensor
    attention_out: Tensor
    norm_forward: Tensor
    gate_and_up: Tensor
    down: Tensor


class Weights:
    def __init__(self, size: Size, device: str, dtype: torch.dtype):
        self.size = size
        chance = torch.Generator(device).manual_seed(SEED)

        def matrix(outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
            values = torch.randn(outputs, inputs, generator=chance, device=device, dtype=torch.float32)
            return (values * (gain / math.sqrt(inputs))).to(dtype)

        def ones() -> Tensor:
            return torch.ones(size.width, device=device, dtype=dtype)

        # All layers together add about as much to the residual stream as the embedding brings.
        branch = 1.0 / math.sqrt(size.layers)
        self.layers = [
            Layer(
                ones(),
                matrix(3 * size.width, size.width),
                matrix(size.width, size.width, branch),
                ones(),
                matrix(2 * size.hidden, size.width),
                matrix(size.width, size.hidden, branch),
            )
            for _ in range(size.layers)
        ]
        self.norm = ones()
        self.embedding = matrix(size.vocabulary, size.width, math.sqrt(size.width))
        # Row t of the head is the embedding of the token before t in a random cycle through the vocabulary.
        cycle = torch.randperm(size.vocabulary, generator=chance, device=device)
        self.head = torch.empty_like(self.embedding)
        self.head[cycle.roll(-1)] = self.embedding[cycle]

    def parameters(self) -> int:
        shared = [self.norm, self.embedding, self.head]
        return sum(t.numel() for t in shared) + sum(t.numel() for layer in self.layers for t in vars(layer).values())


class Decoder:
    """The state of `batch` sequences. `step` generates one token for each, in place and without asking the host."""

    def __init__(self, weights: Weights, batch: int, context: int):
        size, like = weights.size, weights.embedding
        device, dtype = like.device, like.dtype
        self.weights, self.batch, self.context = weights, batch, context
        pairs = batch * size.heads
        self.caches = [
            tuple(torch.zeros(pairs, context, size.head_width, device=device, dtype=dtype) for _ in range(2))
            for _ in weights.layers
        ]
        positions = torch.arange(context, device=device)
        frequencies = 10_000.0 ** (-torch.arange(0, size.head_width, 2, device=device) / size.head_width)
        angles = positions[:, None] * frequencies
        self.cosines, self.sines = (turned.repeat(1, 2).to(dtype) for turned in (angles.cos(), angles.sin()))
        self.positions = positions
        self.prompt = torch.arange(batch, device=device) * 31 % size.vocabulary
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.token = self.prompt.clone()
        # What was generated at each position, and its score; -1 and NaN where nothing was.
        self.tokens = torch.full((context, batch), -1, dtype=torch.long, device=device)
        self.scores = torch.full((context, batch), math.nan, dtype=torch.float32, device=device)

    def reset(self) -> None:
        """Back to the prompt; the history is empty."""
        self.position.zero_()
        self.token.copy_(self.prompt)
        self.forget()

    def forget(self) -> None:
        """Empties the history; the sequences go on where they are."""
        self.tokens.fill_(-1)
        self.scores.fill_(math.nan)

    def step(self) -> None:
        weights, size = self.weights, self.weights.size
        cosine, sine = self.cosines.index_select(0, self.position), self.sines.index_select(0, self.position)
        ahead = torch.zeros_like(self.positions, dtype=cosine.dtype).masked_fill_(self.positions > self.position, -math.inf)
        x = functional.embedding(self.token, weights.embedding)
        for layer, cache in zip(weights.layers, self.caches, strict=True):
            normed = functional.rms_norm(x, (size.width,), layer.norm_attention)
            x = x + functional.linear(self._attention(normed, layer, cache, cosine, sine, ahead), layer.attention_out)
            normed = functional.rms_norm(x, (size.width,), layer.norm_forward)
            gate, up = functional.linear(normed, layer.gate_and_up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        logits = functional.linear(functional.rms_norm(x, (size.width,), weights.norm), weights.head)
        score, chosen = logits.max(dim=-1)
        self.tokens.index_copy_(0, self.position, chosen[None])
        self.scores.index_copy_(0, self.position, score[None].float())
        self.position.add_(1).remainder_(self.context)
        self.token.copy_(torch.where(self.position == 0, self.prompt, chosen))

    def _attention(self, x: Tensor, layer: Layer, cache, cosine: Tensor, sine: Tensor, ahead: Tensor) -> Tensor:
        size = self.weights.size
        # Sequence by head, one position, width of a head: the three are rows of one matrix.
        split = functional.linear(x, layer.queries_keys_values).view(self.batch, 3, size.heads, size.head_width)
        query, key, value = (part.reshape(-1, 1, size.head_width) for part in split.unbind(1))
        query, key = (part * cosine + turned(part) * sine for part in (query, key))
        keys, values = cache
        keys.index_copy_(1, self.position, key)
        values.index_copy_(1, self.position, value)
        scores = torch.bmm(query * (1.0 / math.sqrt(size.head_width)), keys.transpose(1, 2)) + ahead
        return torch.bmm(scores.softmax(dim=-1), values).view(self.batch, size.width)


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def checksum(tokens: Tensor) -> str:
    """Of a whole context of tokens; the same wherever these were computed."""
    return hashlib.sha256(tokens.to("cpu", torch.int32).numpy().tobytes()).hexdigest()[:16]


class History:
    """What the first tokens of a context should be, and whether those that a run generated are."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.tokens, self.scores = decoder.tokens.clone(), decoder.scores.clone()
        self.known = self.tokens[:, 0] >= 0
        self.checksum = checksum(self.tokens)

    def verify(self, steps: int) -> str:
        """After `steps` steps since the history was emptied."""
        decoder = self.decoder
        written = decoder.tokens[:, 0] >= 0
        count, expected = int(written.sum()), min(steps, decoder.context)
        if count != expected:
            return f"{steps} steps left {count} positions of the history; {expected} were expected"
        both = written & self.known
        wrong = int((decoder.tokens[both] != self.tokens[both]).sum())
        if wrong:
            return f"{wrong} of {int(both.sum()) * decoder.batch} tokens are not those of the first pass"
        differences = (decoder.scores[both] - self.scores[both]).abs()
        largest = self.scores[self.known].abs().max()
        difference = float(differences.max() / largest) if len(differences) else 0.0
        # Not `>`: a NaN is wrong.
        if not difference <= SCORE_TOLERANCE:
            return f"a score differs by {difference:.2g} of the largest from the first pass"
        return "ok"
