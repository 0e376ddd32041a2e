"""The client of Flower's quick start; the two lines that FedD3A adds are marked."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import Net, load_data, test, train
from fedstill.flower import projection  # FedD3A

app = ClientApp()


@app.train()
def train_here(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    subspace = projection(model, data[0])  # FedD3A: with the weights as received
    loss = train(model, data)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": len(data[0])}),
            "projection": subspace,  # FedD3A
        }
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate_here(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, held = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = MetricRecord({"eval_acc": test(model, held), "num-examples": len(held[0])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
