"""The little of the Kubernetes container runtime interface (CRI v1) that an inventory needs."""
