"""Data-parallel training: every process takes its rows of the batch. Start it with torchrun, or with python for one process."""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from structgrad import StructuredLayer
from structgrad.oracles import Subset


class Selector(nn.Module):
    """Selects three of eight features for a classifier."""

    def __init__(self, estimator: str) -> None:
        super().__init__()
        self.scorer, self.classifier = nn.Linear(8, 8), nn.Linear(8, 2)
        self.selected = StructuredLayer(Subset(3), estimator)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.classifier(features * self.selected(self.scorer(features)))


def main(estimator: str = "structured_attention") -> None:
    alone = not distributed.is_torchelastic_launched()
    if not alone:
        distributed.init_process_group("gloo")
    rank, processes = (0, 1) if alone else (distributed.get_rank(), distributed.get_world_size())
    torch.manual_seed(0)  # the same parameters and data everywhere; the layer draws other random numbers in every process
    model = Selector(estimator)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    trained = model if alone else DistributedDataParallel(model)
    features = torch.randn(256, 8)
    labels = (features[:, 0] > features[:, 5]).long()
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(trained(features[rank::processes]), labels[rank::processes]).backward()
        optimiser.step()
    if rank == 0:
        loss = nn.functional.cross_entropy(model.eval()(features), labels)
        print(f"{processes} processes: loss {loss.item():.6f}")
    if not alone:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
