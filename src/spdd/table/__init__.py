"""Re-ranking a table of candidates on disk: a table in, a table out, memory bounded, nothing half written."""

from .rerank import Summary, needs, rerank_table
from .source import Source, open_source
from .target import Target

__all__ = ["Source", "Summary", "Target", "needs", "open_source", "rerank_table"]
