"""A latent dependency tree inside an encoder: every word has to say the gender of its head, which the data do not contain."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from structgrad import StructuredLayer
from structgrad.oracles import ProjectiveTree

DETERMINER, ADJECTIVE, NOUN, VERB, ADVERB = range(5)
GENDERS = 4


def sentence() -> tuple[list[int], list[int]]:
    """Tags of the words, and their heads: numbers from 1 on, 0 for the root."""
    tags, heads = [], []

    def phrase() -> None:
        kinds = [kind for kind in (DETERMINER, ADJECTIVE) if torch.rand(()) < 0.6] + [NOUN]
        heads.extend([len(tags) + len(kinds)] * (len(kinds) - 1) + [-1])  # -1: the verb
        tags.extend(kinds)

    phrase()
    verb = len(tags) + 1
    tags.append(VERB)
    heads.append(0)
    for extend in (phrase, lambda: (tags.append(ADVERB), heads.append(-1))):
        if torch.rand(()) < 0.7:
            extend()
    return tags, [verb if head < 0 else head for head in heads]


def batch(size: int) -> tuple[torch.Tensor, ...]:
    """Tags, heads and genders [size, n], padded with 0, and the lengths [size]."""
    sentences = [sentence() for _ in range(size)]
    lengths = torch.tensor([len(tags) for tags, _ in sentences])
    tags, heads = (nn.utils.rnn.pad_sequence([torch.tensor(s[i]) for s in sentences], batch_first=True) for i in (0, 1))
    return tags, heads, torch.randint(GENDERS, tags.shape), lengths


class Parser(nn.Module):
    def __init__(self, estimator: str, size: int = 32) -> None:
        super().__init__()
        self.tag, self.gender = nn.Embedding(5, size), nn.Embedding(GENDERS + 1, size)  # the last gender is the root's
        self.context = nn.LSTM(size, size, bidirectional=True, batch_first=True)
        self.root, self.head, self.modifier = nn.Parameter(torch.randn(2 * size)), nn.Linear(2 * size, size), nn.Linear(2 * size, size)
        self.tree = StructuredLayer(ProjectiveTree(), estimator)
        self.said = nn.Linear(size, GENDERS + 1)

    def forward(self, tags: torch.Tensor, genders: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.context(self.tag(tags))[0]
        nodes = torch.cat([self.root.expand(len(tags), 1, -1), words], 1)  # node 0 is the root
        arcs = self.head(nodes) @ self.modifier(nodes).mT / nodes.shape[-1] ** 0.5  # [b, heads, modifiers]
        tree = self.tree(arcs, lengths=lengths)
        messages = self.gender(pad(genders, (1, 0), value=GENDERS))
        return self.said(tree.mT @ messages)[:, 1:], tree


def main(estimator: str, steps: int = 60) -> None:
    torch.manual_seed(0)
    model = Parser(estimator)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        tags, heads, genders, lengths = batch(32)
        answer = pad(genders, (1, 0), value=GENDERS).gather(1, heads)  # the gender of each word's head
        inside = torch.arange(tags.shape[1]) < lengths.unsqueeze(1)
        optimiser.zero_grad()
        cross_entropy(model(tags, genders, lengths)[0][inside], answer[inside]).backward()
        optimiser.step()
    tags, heads, genders, lengths = batch(500)
    with torch.no_grad():
        tree = model.eval()(tags, genders, lengths)[1]  # the best tree
    inside = torch.arange(tags.shape[1]) < lengths.unsqueeze(1)
    right = (ProjectiveTree.heads(tree) == heads)[inside].float().mean()
    print(f"{estimator}: {right:.1%} of the heads are right")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["structured_attention"])
