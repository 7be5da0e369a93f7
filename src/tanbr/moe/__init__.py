"""What an MoE is: checkpoints, families, runnable layers."""
