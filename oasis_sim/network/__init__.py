"""The network tier: profiles of links between nodes, what a transfer takes, fair sharing."""

from oasis_sim.network.load import load_network, read_network
from oasis_sim.network.profile import NetworkProfile, Transfer

__all__ = ["NetworkProfile", "Transfer", "load_network", "read_network"]
