"""A task that learns a sum in milliseconds, for the tests of training; also a program, to be killed and resumed."""

import json
import os
import sys
import time

import torch
from torch import nn

from spdd.models import train


class Toy:
    kind, fingerprint = "toy", "catalog"

    def __init__(self, seed=0, wide=8, slow=0.0, chance=0.2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(4, wide), nn.Dropout(chance), nn.Linear(wide, 1))
        self.config, self.slow, self.chance, self.losses = {"wide": wide}, slow, chance, 0

    def batches(self, epoch, rank, world):
        rng = torch.Generator().manual_seed(epoch)
        for _ in range(8):
            yield torch.randn(16, 4, generator=rng)[rank::world]

    def loss(self, batch, generator):
        time.sleep(self.slow)
        self.losses += 1
        noise = torch.rand(len(batch), generator=generator)
        return (self.model(batch)[:, 0] - batch.sum(1) - self.chance * noise).square().mean()

    def validate(self):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(99))
        return {"fit": -float((self.model(x)[:, 0] - x.sum(1)).square().mean().detach())}


if __name__ == "__main__":  # FOLDER SETTINGS SLOW CHANCE: train, then say the weights of every process
    folder, settings, slow, chance = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    rank = int(os.environ.get("RANK", 0))
    toy = Toy(seed=rank, slow=slow, chance=chance)
    train.fit(toy, train.Settings(**settings), folder)
    torch.save(toy.model.state_dict(), f"{folder}/weights{rank}.pt")
