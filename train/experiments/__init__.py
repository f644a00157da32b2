"""The work of each command, with TensorFlow; its flags are in train/<name>.py."""
