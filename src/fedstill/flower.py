"""fedstill with Flower: apps that run a configuration, and strategies for your own app.

``server_app`` and ``client_app`` make the two halves of a Flower app; ``fedstill flower init`` writes one that uses them.
``FedDF`` and ``FedD3A`` replace ``flwr.serverapp.strategy.FedAvg`` in an existing app.
"""

from fedstill.engine.flower.client import client_app
from fedstill.engine.flower.strategies import FedD3A, FedDF, projection
from fedstill.run.federation import server_app

__all__ = ["FedD3A", "FedDF", "client_app", "projection", "server_app"]
