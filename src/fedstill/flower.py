"""fedstill with Flower: apps that run a configuration, and strategies for an app of one's own.

``server_app`` and ``client_app`` make the two halves of a Flower app; ``fedstill flower init`` writes one that uses them.
``FedDF`` and ``FedD3A`` take the place of ``flwr.serverapp.strategy.FedAvg`` where there is an app already.
"""

from fedstill.engine.flower.client import client_app
from fedstill.engine.flower.strategies import FedD3A, FedDF, projection
from fedstill.run.federation import server_app

__all__ = ["FedD3A", "FedDF", "client_app", "projection", "server_app"]
