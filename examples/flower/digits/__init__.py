"""A Flower app in the form of Flower's quick start: scikit-learn's digits, a small network, a strategy from fedstill."""
