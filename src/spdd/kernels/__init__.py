"""Tensors in, tensors out: the few operations whose speed decides whether decoding is free."""

from .reference import Groups, group_items, grouped_topk

__all__ = ["Groups", "group_items", "grouped_topk"]
