"""The GPU's pass over a `Product` (Triton): the best score of each value group in every tile of items, and each row's mass.

Persistent programs go through the tiles; scores live in registers and are never written, only a tile's best of each
group: 4 bytes for a few hundred of the table's. Items of the best tiles are then scored again in torch. Excluded items come
as a list for each tile, not as a mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # pyrefly: ignore
import triton.language as tl  # pyrefly: ignore
from torch import Tensor

from .reference import Barred, Groups, Product, columns
from .stream import Found


class Setting(NamedTuple):
    """items: a tile's.  programs: for each multiprocessor.  warps, stages: as Triton has them"""

    items: int
    programs: int
    warps: int
    stages: int


# By the bytes of the type products are taken in, and rows at a time. Chosen so that half types spill next to nothing and two
# tiles are always under way (what the compiler says for a Hopper, tests/kernels/test_triton.py); not yet measured on a GPU.
SETTINGS = {
    2: {16: Setting(256, 2, 4, 3), 32: Setting(128, 2, 4, 3), 64: Setting(128, 2, 4, 3), 128: Setting(128, 1, 8, 3)},
    4: {16: Setting(64, 2, 4, 3), 32: Setting(64, 2, 4, 3), 64: Setting(64, 1, 8, 3), 128: Setting(32, 1, 8, 3)},
}
LEAST_ITEMS = 16  # the narrowest tile a product is taken of
MOST_GROUPS = 8  # a tile's best is taken group by group
ROOM = 1 << 27  # bytes for the best of every tile, where those are written
HOPPER, RESERVED = 232_448, 1024  # bytes of shared memory: what one program may have, and what each takes beside it
LISTED = 16  # barred pairs of a tile that are looked at in one go; tiles with more come last
KEPT = 3  # best tiles of a group that a program remembers; where more are wanted, every tile's best is written


def group_topk(scores: Product, groups: Groups, k: int, barred: Barred, mass: bool) -> Found:
    """As `stream.group_topk`. Nothing here waits for the device."""
    (rows, width), count = scores.hidden.shape, len(scores.table)
    levels, keep = len(groups.size), k <= KEPT
    kind, device = _kind(scores), scores.table.device
    block, setting = fitting(rows, width, kind.itemsize, scores.table.itemsize, _shared(device))
    tiles = -(-count // setting.items)
    few = max(min(SETTINGS[kind.itemsize]), ROOM // (4 * levels * tiles))
    if not keep and rows > few:  # every tile's best is written: some rows at a time, for the memory
        return _joined([group_topk(mine, groups, k, lists, mass) for mine, lists in _split(scores, barred, few)])
    hidden, table = scores.hidden.to(kind).contiguous(), scores.table.contiguous()
    member = groups.member
    if barred.eligible is not None:
        member = member.masked_fill(~barred.eligible, 255)
    lists = [x.long() for x in (barred.seen, barred.used) if x is not None]
    out = torch.cat(lists, 1) if lists else torch.empty(rows, 0, dtype=torch.int64, device=device)
    listed = Listed.of(out, setting.items, tiles)
    programs = min(tiles, setting.programs * _multiprocessors(device))
    places = KEPT * programs if keep else tiles
    best = torch.empty(places, rows, levels, dtype=torch.float32, device=device)
    tile = torch.empty(places if keep else 1, rows, levels, dtype=torch.int32, device=device)
    top = torch.empty(programs, rows, dtype=torch.float32, device=device)
    total = torch.empty(programs, rows, dtype=torch.float64, device=device)
    whole, rest = parts(width)
    _tile_best[(programs, -(-rows // block))](
        hidden, table, table if scores.row_scale is None else scores.row_scale, member.contiguous(), *listed,
        best, tile, top, total, rows, count, tiles, width, programs, len(listed.crowded),
        GROUPS=levels, LANES=triton.next_power_of_2(levels), ROWS=block, ITEMS=setting.items, WIDTH=whole, REST=rest,
        LISTED=LISTED, KEEP=keep, MASS=mass, SCALED=scores.row_scale is not None,
        num_warps=setting.warps, num_stages=setting.stages,
    )  # fmt: skip
    found, items = _best_items(best, tile if keep else None, scores, member, out, k, setting.items)
    depth = [min(k, size) for size in groups.size]
    if min(depth) < k:
        found, items = (torch.cat([x[:, g, :n] for g, n in enumerate(depth)], 1) for x in (found, items))
    masses = _mass(scores, top, total, member, barred) if mass else None
    return Found(found.flatten(1), items.flatten(1), columns(depth, device), masses)


def takes(scores: Product, groups: Groups) -> bool:
    """Whether the pass can be launched: few enough groups, and a tile that fits into shared memory."""
    (rows, width), size = scores.hidden.shape, _kind(scores).itemsize
    few = size in SETTINGS and len(groups.size) <= MOST_GROUPS
    return few and fitting(rows, width, size, scores.table.itemsize, _shared(scores.table.device)) is not None


def fitting(rows: int, width: int, size: int, stored: int, room: int) -> Any:
    """How many rows at a time, and the setting, whose shared memory fits into `room` bytes; None where none does.

    Of what does not fit, tiles are halved, then one is loaded ahead and not two, then rows are halved: tiles cost least, for each row
    of a block shares the read of the table. size, stored: bytes of the type of products, and of the table's
    """
    settings = SETTINGS[size]
    most = next((block for block in settings if block >= rows), max(settings))
    for block in sorted((block for block in settings if block <= most), reverse=True):
        for stages in (settings[block].stages, 2):
            items = settings[block].items
            while items >= LEAST_ITEMS:
                setting = settings[block]._replace(items=items, stages=stages)
                need = shared(block, width, size, setting, stored) + RESERVED
                if need <= room + RESERVED:
                    return block, setting._replace(programs=min(setting.programs, (room + RESERVED) // need))
                items //= 2
    return None


def shared(rows: int, width: int, size: int, setting: Setting, stored: int) -> int:
    """Bytes of shared memory the compiler takes, or a little more: tiles on their way, hidden states, and room to hand numbers over.

    stored: bytes of the table's type, which may be narrower than that of products.
    """
    wide = sum(parts(width))
    ahead = setting.stages - (
        rows < 64 or size == 4
    )  # in half types 64 rows are a Hopper's own product: it reads one tile more
    tiles = setting.items * wide * (ahead * stored + size * (stored < size))
    struck, moved = 2 * LISTED * (setting.items + rows), 4 * rows * setting.items * (size == 4)
    return tiles + rows * wide * size + max(struck, moved)


def parts(width: int) -> tuple[int, int]:
    """The width as a power of two and a rest, 0 or a power of two; none below what products take."""
    whole = max(16, 1 << (width.bit_length() - 1))
    return whole, max(16, triton.next_power_of_2(width - whole)) if width > whole else 0


def _best_items(best, tile, scores, member, out, k, width):
    """(R, G, k) logits and items: the best of each group, which lie in as many of its best tiles.

    best: (T, R, G) of tiles, whose numbers are in `tile`, or T if None.  out: (R, L) items that are barred
    """
    found = best.permute(1, 2, 0).contiguous().topk(min(k, len(best)), 2)
    tile = found.indices if tile is None else tile.permute(1, 2, 0).gather(2, found.indices).long()
    # Where nothing was found, no tile was either; ascending tiles keep the lower item first.
    tile = tile.masked_fill(found.values == -torch.inf, 1 << 40).sort(2).values
    items = (tile[..., None] * width + torch.arange(width, device=tile.device)).flatten(2)  # (R, G, n)
    there = items < len(member)
    items = items.clamp_max(len(member) - 1)
    there &= member[items] == torch.arange(items.shape[1], device=tile.device)[:, None]
    if out.shape[1]:
        out = out.sort(1).values
        place = torch.searchsorted(out, items.flatten(1)).clamp_max(out.shape[1] - 1)
        there &= (out.gather(1, place) != items.flatten(1)).view_as(items)
    logits = _at(scores, items.flatten(1)).view_as(items).masked_fill(~there, -torch.inf)
    missing = max(0, k - logits.shape[2])
    if missing:
        pad = torch.nn.functional.pad
        logits, items = pad(logits, (0, missing), value=-torch.inf), pad(items, (0, missing))
    order = logits.sort(dim=2, descending=True, stable=True).indices[:, :, :k]
    logits = logits.gather(2, order)
    return logits, items.gather(2, order).masked_fill(logits == -torch.inf, -1)


def _mass(scores, top, total, member, barred: Barred) -> Tensor:
    """(R, 1) what programs summed, and what used items add to it: those are barred, but part of the distribution."""
    parts = (top.double() + total.log()).T
    if barred.used is not None and barred.used.shape[1]:
        used = barred.used.long().sort(1).values
        there = (used >= 0) & torch.nn.functional.pad(used[:, 1:] != used[:, :-1], (1, 0), value=True)
        used = used.clamp_min(0)
        there &= member[used] < 255
        if barred.seen is not None:
            there &= ~(used[:, :, None] == barred.seen[:, None]).any(2)
        parts = torch.cat([parts, _at(scores, used).double().masked_fill(~there, -torch.inf)], 1)
    return parts.logsumexp(1, keepdim=True)


def _at(scores: Product, items: Tensor) -> Tensor:
    """(R, N) float32 logits of these items (R, N)."""
    logits = torch.einsum("rd,rnd->rn", scores.hidden.float(), scores.table[items].float())
    return logits if scores.row_scale is None else logits * scores.row_scale[items]


def _kind(scores: Product) -> torch.dtype:
    """In which type products are taken; int8 is exact in the half types, whose products are the fast ones."""
    one, other = scores.hidden.dtype, scores.table.dtype
    return one if one == other or (other == torch.int8 and one.itemsize == 2) else torch.float32


class Listed(NamedTuple):
    """Barred pairs (E,) by item, and where each tile's begin (T + 1,). crowded: tiles with more than LISTED, then T where none is"""

    pointer: Tensor
    row: Tensor
    item: Tensor
    crowded: Tensor

    @classmethod
    def of(cls, out: Tensor, width: int, tiles: int) -> Listed:
        """out: (R, L), -1 for none. A pair that is there twice does no harm."""
        nowhere, pad = tiles * width, torch.nn.functional.pad
        # One pair of no item at the end: an empty tensor has no address.
        item, order = pad(out.where(out >= 0, nowhere).flatten(), (0, 1), value=nowhere).sort()
        row = order // max(1, out.shape[1])
        pointer = torch.searchsorted(item, torch.arange(0, nowhere + 1, width, device=out.device))
        tile = item // width
        begins = pad(tile[1:] != tile[:-1], (1, 0), value=True)
        full = pad(tile[LISTED:] == tile[:-LISTED], (0, min(LISTED, len(tile))), value=False)
        crowded = tile.masked_fill(~(begins & full), tiles).sort().values[: len(tile) // LISTED + 1]
        return cls(pointer.int(), row.int(), item, crowded.int())


def _split(scores, barred, few):
    """Scores and lists of so many rows at a time."""
    for first in range(0, len(scores.hidden), few):
        mine = slice(first, first + few)
        seen, used = (None if x is None else x[mine] for x in barred[:2])
        yield scores._replace(hidden=scores.hidden[mine]), Barred(seen, used, barred.eligible)


def _joined(parts: list[Found]) -> Found:
    masses = [part.mass for part in parts if part.mass is not None]
    mass = torch.cat(masses) if masses else None
    logit, items = (torch.cat([getattr(part, name) for part in parts]) for name in ("logit", "items"))
    return Found(logit, items, parts[0].group, mass)


def _shared(device: torch.device) -> int:
    """Bytes of shared memory a program may have, as Triton counts when it launches; a Hopper's where there is no GPU."""
    return triton.compiler.compiler.max_shared_mem(device.index) if device.type == "cuda" else HOPPER


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@triton.jit
def _tile_best(
    p_hidden, p_table, p_scale, p_member, p_pointer, p_row, p_item, p_crowded, p_best, p_tile, p_top, p_total,
    rows, count, tiles, width, programs, crowded,
    GROUPS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, LISTED: tl.constexpr, KEEP: tl.constexpr, MASS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Through all tiles, then through the crowded ones again: a loop in which there is none can load ahead."""
    start = tl.program_id(0)
    i_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    i_lane = tl.arange(0, LANES)
    hidden = _part(p_hidden, i_row, rows, width, 0, WIDTH)
    rest = _part(p_hidden, i_row, rows, width, WIDTH, REST) if REST else hidden
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float64)
    one = tl.full([ROWS, LANES], float("-inf"), tl.float32)
    two, three = one, one
    in_one = tl.zeros([ROWS, LANES], tl.int32)
    in_two, in_three = in_one, in_one
    for tile in range(start, tiles, programs):
        i_item = tl.arange(0, ITEMS) + tl.cast(tile, tl.int64) * ITEMS
        scores = _scores(hidden, rest, p_table, p_scale, i_item, count, width, WIDTH, REST, SCALED)
        member = tl.load(p_member + i_item, mask=i_item < count, other=255)
        first, last = tl.load(p_pointer + tile), tl.load(p_pointer + tile + 1)
        later = last - first > LISTED  # a crowded tile, perhaps by another program: nothing of it is written here
        member = tl.where(later, 255, member)
        if last > first:
            struck = _struck(p_row, p_item, first, last, i_row, i_item, LISTED)
            scores = tl.where(struck > 0, float("-inf"), scores)
        best, top, total = _taken(scores, member, i_lane, top, total, GROUPS, ROWS, LANES, MASS)
        if KEEP:
            one, two, three, in_one, in_two, in_three = _kept(best, tile, one, two, three, in_one, in_two, in_three)
        else:
            _written(p_best, best, tile, i_row, tl.where(later, 0, rows), rows, i_lane, GROUPS)
    for e in range(start, crowded, programs):
        tile = tl.load(p_crowded + e)
        if tile < tiles:
            i_item = tl.arange(0, ITEMS) + tl.cast(tile, tl.int64) * ITEMS
            scores = _scores(hidden, rest, p_table, p_scale, i_item, count, width, WIDTH, REST, SCALED)
            member = tl.load(p_member + i_item, mask=i_item < count, other=255)
            struck = tl.zeros([ROWS, ITEMS], tl.float32)
            last = tl.load(p_pointer + tile + 1)
            for first in range(tl.load(p_pointer + tile), last, LISTED):
                struck += _struck(p_row, p_item, first, last, i_row, i_item, LISTED)
            scores = tl.where(struck > 0, float("-inf"), scores)
            best, top, total = _taken(scores, member, i_lane, top, total, GROUPS, ROWS, LANES, MASS)
            if KEEP:
                one, two, three, in_one, in_two, in_three = _kept(best, tile, one, two, three, in_one, in_two, in_three)
            else:
                _written(p_best, best, tile, i_row, rows, rows, i_lane, GROUPS)
    if KEEP:
        _written(p_best, one, 3 * start, i_row, rows, rows, i_lane, GROUPS)
        _written(p_best, two, 3 * start + 1, i_row, rows, rows, i_lane, GROUPS)
        _written(p_best, three, 3 * start + 2, i_row, rows, rows, i_lane, GROUPS)
        _written(p_tile, in_one, 3 * start, i_row, rows, rows, i_lane, GROUPS)
        _written(p_tile, in_two, 3 * start + 1, i_row, rows, rows, i_lane, GROUPS)
        _written(p_tile, in_three, 3 * start + 2, i_row, rows, rows, i_lane, GROUPS)
    tl.store(p_top + start * rows + i_row, top, mask=i_row < rows)
    tl.store(p_total + start * rows + i_row, total, mask=i_row < rows)


@triton.jit
def _part(p_table, i_row, rows, width, first, WIDTH: tl.constexpr):
    """(n, WIDTH) columns of these rows from `first` on."""
    i_width = first + tl.arange(0, WIDTH)
    inside = (i_row < rows)[:, None] & (i_width < width)[None, :]
    return tl.load(p_table + i_row[:, None] * width + i_width[None, :], mask=inside, other=0)


@triton.jit
def _scores(
    hidden, rest, p_table, p_scale, i_item, count, width, WIDTH: tl.constexpr, REST: tl.constexpr, SCALED: tl.constexpr
):
    """(ROWS, ITEMS)"""
    part = _part(p_table, i_item, count, width, 0, WIDTH).to(hidden.dtype)
    scores = tl.dot(hidden, tl.trans(part), input_precision="ieee")
    if REST:
        part = _part(p_table, i_item, count, width, WIDTH, REST).to(hidden.dtype)
        scores = tl.dot(rest, tl.trans(part), scores, input_precision="ieee")
    if SCALED:
        scores *= tl.load(p_scale + i_item, mask=i_item < count, other=0.0)[None, :]
    return scores


@triton.jit
def _struck(p_row, p_item, first, last, i_row, i_item, LISTED: tl.constexpr):
    """(ROWS, ITEMS) above 0 for what is barred for whom.

    As a product of who by what, so that a list of any order costs one small product and not a pass over the scores per entry.
    """
    i_entry = first + tl.arange(0, LISTED)
    listed = i_entry < last
    row = tl.load(p_row + i_entry, mask=listed, other=-1)
    item = tl.load(p_item + i_entry, mask=listed, other=-1)
    who = tl.where(i_row[:, None] == row[None, :], 1.0, 0.0).to(tl.float16)
    what = tl.where(item[:, None] == i_item[None, :], 1.0, 0.0).to(tl.float16)
    return tl.dot(who, what)


@triton.jit
def _taken(
    scores, member, i_lane, top, total,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, MASS: tl.constexpr,
):  # fmt: skip
    """(ROWS, LANES) the tile's best of each group, and top and total with the tile's part."""
    if MASS:
        inside = tl.where((member < GROUPS)[None, :], scores, float("-inf"))
        new = tl.maximum(top, tl.max(inside, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        mass = tl.sum(tl.exp(inside - safe[:, None]), 1)
        total = total * tl.exp(top - safe) + mass  # in float64: a program adds up more than a thousand tiles
        top = new
    best = tl.full([ROWS, LANES], float("-inf"), tl.float32)
    for g in tl.static_range(GROUPS):
        mine = tl.max(tl.where((member == g)[None, :], scores, float("-inf")), 1)
        best = tl.where((i_lane == g)[None, :], mine[:, None], best)
    return best, top, total


@triton.jit
def _kept(best, tile, one, two, three, in_one, in_two, in_three):
    """The three best tiles so far."""
    first, second, third = best > one, best > two, best > three
    three = tl.where(second, two, tl.where(third, best, three))
    in_three = tl.where(second, in_two, tl.where(third, tile, in_three))
    two = tl.where(first, one, tl.where(second, best, two))
    in_two = tl.where(first, in_one, tl.where(second, tile, in_two))
    return (
        tl.where(first, best, one), two, three,
        tl.where(first, tile, in_one), in_two, in_three,
    )  # fmt: skip


@triton.jit
def _written(p_out, x, place, i_row, some, rows, i_lane, GROUPS: tl.constexpr):
    """The first `some` rows of x (ROWS, LANES) at `place` of (places, rows, GROUPS)."""
    at = (tl.cast(place, tl.int64) * rows + i_row)[:, None] * GROUPS + i_lane[None, :]
    tl.store(p_out + at, x, mask=(i_row < some)[:, None] & (i_lane < GROUPS)[None, :])
