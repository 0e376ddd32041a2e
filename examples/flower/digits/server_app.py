"""The server of Flower's quick start with one line changed: the strategy."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits.task import Net, load_pool
from fedstill.flower import FedD3A, FedDF
from fedstill.fusion.distillation.options import Distillation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    if context.run_config["strategy"] == "fedd3a":
        strategy = FedD3A(Net(), load_pool())  # was: FedAvg()
    else:
        strategy = FedDF(Net(), load_pool(), distillation=Distillation(steps=200))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    print(result.evaluate_metrics_clientapp)
