"""gRPC: decoding, calling, encoding, and nothing else."""
