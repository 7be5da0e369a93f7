"""Training: task-routed pre-training and fine-tuning."""
