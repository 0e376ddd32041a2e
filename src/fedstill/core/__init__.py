"""The foundation: messages, options, random streams, errors and registries. It imports nothing else of fedstill."""
