"""The device that is not there: boards, tensors without data, a Triton driver that counts."""
