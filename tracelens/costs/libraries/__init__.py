"""Costs of ops that libraries bring: Transformer Engine, Triton, collectives of torch and of others."""

from tracelens.costs.libraries.custom_collective import MESSAGE_OPS, Message, message

__all__ = ["MESSAGE_OPS", "Message", "message"]
