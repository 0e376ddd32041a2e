"""The task: data, clients and networks, built from a configuration, the same in every process."""

from fedstill.task.networks import Networks
from fedstill.task.task import ClientInfo, Pool, Task, short_name

__all__ = ["ClientInfo", "Networks", "Pool", "Task", "short_name"]
