"""What everything else is built of: messages, options, random streams, errors, registries. Knows nothing else of fedstill."""
