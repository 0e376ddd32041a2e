"""Model, data and training: nothing here knows fedstill."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def load_data(partition_id, num_partitions):
    """This node's share of the first 1,200 digits, by label, and the last 300 as a test set."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
    mine = (y[:1200] * num_partitions // 10) == partition_id
    return (x[:1200][mine], y[:1200][mine]), (x[-300:], y[-300:])


def load_pool():
    """297 digits without labels, for the server."""
    return torch.tensor(load_digits().data[1200:1497] / 16, dtype=torch.float32).view(-1, 1, 8, 8)


def train(net, data, epochs=3, lr=0.1):
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net, data):
    x, y = data
    with torch.no_grad():
        return (net(x).argmax(1) == y).double().mean().item()
