"""The GPU's pass over a `Product` (Triton): the best score of each value group in every tile of items, and each row's mass.

Persistent programs go through the tiles; scores live in registers and are never written, only a tile's best of each
group: 4 bytes for a few hundred of the table's. Items of the best tiles are then scored again in torch. Excluded items come
as a list for each tile, not as a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # pyrefly: ignore
import triton.language as tl  # pyrefly: ignore

from .reference import Barred, Groups, Product, columns
from .stream import Found, Lists


class Setting(NamedTuple):
    """items: a tile's.  programs: for each multiprocessor.  warps, stages: as Triton has them"""

    items: int
    programs: int
    warps: int
    stages: int


# By rows at a time. Chosen so that scores and the tile fit the registers; not yet measured on a GPU.
SETTINGS = {16: Setting(256, 2, 4, 3), 32: Setting(128, 2, 4, 3), 64: Setting(128, 2, 4, 3), 128: Setting(128, 1, 8, 3)}
MOST_GROUPS = 8  # a tile's best is taken group by group


def group_topk(scores: Product, groups: Groups, k: int, barred: Barred, mass: bool) -> Found:
    """As `stream.group_topk`."""
    hidden, table = scores.hidden.contiguous(), scores.table.contiguous()
    (rows, width), count, device = hidden.shape, len(table), table.device
    block = next((size for size in SETTINGS if size >= rows), max(SETTINGS))
    setting = SETTINGS[block]
    tiles = -(-count // setting.items)
    lists = Lists.of(barred, rows, count, device)
    row, item, gone, pointer = _by_tile(lists, setting.items, tiles)
    member = groups.member
    if barred.eligible is not None:
        member = member.masked_fill(~barred.eligible, 255)
    levels = len(groups.level)
    programs = min(tiles, setting.programs * _multiprocessors(device))
    best = torch.empty(levels, tiles, rows, dtype=torch.float32, device=device)
    top = torch.empty(programs, rows, dtype=torch.float32, device=device)
    total = torch.empty_like(top)
    kind = table.dtype if table.dtype == hidden.dtype else torch.float32
    _tile_best[(programs, -(-rows // block))](
        hidden.to(kind), table, table if scores.row_scale is None else scores.row_scale, member.contiguous(), pointer,
        row, item, gone, best, top, total, rows, count, tiles, width, programs,
        GROUPS=levels, ROWS=block, ITEMS=setting.items, WIDTH=max(16, triton.next_power_of_2(width)),
        MASS=mass, SCALED=scores.row_scale is not None, WIDEN=table.dtype != kind,
        num_warps=setting.warps, num_stages=setting.stages,
    )  # fmt: skip
    parts = [_of_group(g, best[g], scores, member, lists, k, size, setting.items) for g, size in enumerate(groups.size)]
    found, items = (torch.cat(x, 1) for x in zip(*parts, strict=True))
    group = columns([part[0].shape[1] for part in parts], device)
    masses = torch.logsumexp(top.double() + total.double().log(), 0)[:, None] if mass else None
    return Found(found, items, group, masses)


def _of_group(g, best, scores, member, lists, k, size, width):
    """The k best items of a group, which lie in its k best tiles. best: (T, R)"""
    depth = min(k, size)
    tile = best.topk(min(depth, len(best)), 0).indices.T.sort(1).values  # (R, t), ascending
    items = (tile[:, :, None] * width + torch.arange(width, device=tile.device)).flatten(1)
    there = items < len(member)
    items = items.clamp_max(len(member) - 1)
    there &= member[items] == g
    if lists.items.shape[1]:
        place = torch.searchsorted(lists.items, items).clamp_max(lists.items.shape[1] - 1)
        there &= lists.items.gather(1, place) != items
    logits = torch.einsum("rd,rnd->rn", scores.hidden.float(), scores.table[items].float())
    if scores.row_scale is not None:
        logits = logits * scores.row_scale[items]
    logits = logits.masked_fill(~there, -torch.inf)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :depth]
    logits = logits.gather(1, order)
    return logits, items.gather(1, order).masked_fill(logits == -torch.inf, -1)


def _by_tile(lists: Lists, width: int, tiles: int):
    """Barred (row, item) pairs by tile, and where each tile's begin."""
    rows, most = lists.items.shape
    device = lists.items.device
    item, order = lists.items.flatten().sort()
    row = torch.arange(rows, device=device)[:, None].expand(rows, most).flatten()[order].int()
    starts = torch.arange(tiles + 1, device=device) * width
    gone = lists.gone.flatten()[order].int()
    one = item.new_zeros(1)  # never an empty tensor: its address is no address
    return (
        torch.cat([row, one.int()]), torch.cat([item, one]), torch.cat([gone, one.int()]),
        torch.searchsorted(item, starts).int(),
    )  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@triton.jit
def _tile_best(
    p_hidden, p_table, p_scale, p_member, p_pointer, p_row, p_item, p_gone, p_best, p_top, p_total,
    rows, count, tiles, width, programs,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    MASS: tl.constexpr, SCALED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0)
    i_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    i_width = tl.arange(0, WIDTH)
    m_width = i_width < width
    hidden = tl.load(
        p_hidden + i_row[:, None] * width + i_width[None, :], mask=(i_row < rows)[:, None] & m_width[None, :], other=0.0
    )
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(start, tiles, programs):
        i_item = tl.arange(0, ITEMS) + tl.cast(tile, tl.int64) * ITEMS
        m_item = i_item < count
        part = tl.load(
            p_table + i_item[:, None] * width + i_width[None, :], mask=m_item[:, None] & m_width[None, :], other=0
        )
        if WIDEN:
            part = part.to(tl.float32)
        scores = tl.dot(hidden, tl.trans(part), input_precision="ieee")  # (ROWS, ITEMS)
        if SCALED:
            scores = scores * tl.load(p_scale + i_item, mask=m_item, other=0.0)[None, :]
        member = tl.load(p_member + i_item, mask=m_item, other=255)
        inside = tl.where((member < GROUPS)[None, :], scores, float("-inf"))
        for e in range(tl.load(p_pointer + tile), tl.load(p_pointer + tile + 1)):
            struck = (i_row == tl.load(p_row + e))[:, None] & (i_item == tl.load(p_item + e))[None, :]
            scores = tl.where(struck, float("-inf"), scores)
            if MASS:
                inside = tl.where(struck & (tl.load(p_gone + e) > 0), float("-inf"), inside)
        if MASS:
            new = tl.maximum(top, tl.max(inside, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            total = total * tl.exp(top - safe) + tl.sum(tl.exp(inside - safe[:, None]), 1)
            top = new
        for g in tl.static_range(GROUPS):
            best = tl.max(tl.where((member == g)[None, :], scores, float("-inf")), 1)
            tl.store(p_best + tl.cast(g * tiles + tile, tl.int64) * rows + i_row, best, mask=i_row < rows)
    tl.store(p_top + start * rows + i_row, top, mask=i_row < rows)
    tl.store(p_total + start * rows + i_row, total, mask=i_row < rows)
