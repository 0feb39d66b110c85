"""The rules of `hack` again, by loops over cells, written from docs/concepts/hack.md.

Slow, plain and independent: its programs are those of the page's table.
"""

import re
from pathlib import Path

import numpy as np

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "hack.md").read_text()
ROW_OF_TABLE = re.compile(
    r"^\| (\d+) \| (\w+) \| (\d+) \| (\d+) \| (\w+) \| (\w+) \| (\d+) \| (yes|no) \|$", re.MULTILINE
)
PROGRAMS = [
    {
        "name": name,
        "credits": int(credits),
        "energy": int(energy),
        "area": area,
        "effect": effect,
        "amount": int(amount),
        "ends": ends == "yes",
    }
    for _, name, credits, energy, area, effect, amount, ends in ROW_OF_TABLE.findall(PAGE)
]
FIELDS = ["block", "points", "program", "siphoned", "spawn", "pickup", "exit", "credits", "energy"]
OF_UNITS = ["unit", "hp", "stunned", "called", "arrival"]
FIELDS += OF_UNITS
NUMBERS = ["row", "column", "hp", "credits", "energy", "stage", "siphons", "attack", "show", "calm"]
LIMITS = {"hp": 3, "credits": 15, "energy": 15, "siphons": 9, "attack": 3, "show": 15, "calm": 15}
RICH = {"credits": 12, "energy": 12, "siphons": 4}  # what an enriched game begins with
PARTS = ["stage", "points", "units", "hp", "step", "won", "shaping"]  # of the reward
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # of the moves up, down, left, right
DATA, PROGRAM, UNKNOWN = 1, 2, 3
RUNNER, TANK, GHOST, LURKER = 1, 2, 3, 4
FAR = 1000
CELLS = range(36)
BESIDE = {  # up, left, right, down
    c: [
        n
        for n, is_there in ((c - 6, c > 5), (c - 1, c % 6 > 0), (c + 1, c % 6 < 5), (c + 6, c < 30))
        if is_there
    ]
    for c in CELLS
}


def straight(a, b):
    return abs(a // 6 - b // 6) + abs(a % 6 - b % 6)


class Twin:
    """One game. `cells[field][c]` is what the page's first table has."""

    def __init__(self, words):
        self.row, self.column = divmod((words[21] % 2**16) * 36 // 2**16, 6)
        self.hp, self.credits, self.energy, self.stage, self.siphons = 3, 2, 2, 1, 1
        self.attack, self.show, self.calm = 1, 0, 0
        self.owned = {0}
        self.begin_stage(words)

    @property
    def at(self):
        return 6 * self.row + self.column

    @property
    def exit(self):
        return self.cells["exit"].index(1)

    def player(self):
        return [getattr(self, name) for name in NUMBERS]

    def add(self, name, amount):
        setattr(self, name, min(getattr(self, name) + amount, LIMITS[name]))

    # A stage.

    def begin_stage(self, words):
        self.clock = 12 - self.stage
        layout = words[18]
        exit_row = layout // 2**8 % 256 * 3 // 256 + (3 if self.row < 3 else 0)
        exit_column = layout // 2**16 % 256 * 3 // 256 + (3 if self.column < 3 else 0)
        self.cells = {field: [0] * 36 for field in FIELDS}
        self.cells["exit"][6 * exit_row + exit_column] = 1
        for c in CELLS:
            if c in (self.at, self.exit):
                continue
            h = words[c] % 2**16 if c < 18 else words[c - 18] // 2**16
            is_site = c // 6 % 2 == layout % 2 and c % 6 % 2 == layout // 2 % 2
            if is_site and h % 4 > 0:
                self.draw_block(c, h)
            else:
                self.draw_floor(c, h)
        self.newcomers(0, self.stage // 2, words)

    def draw_block(self, c, h):
        k = h // 4 % 8
        self.cells["block"][c] = DATA if k < 3 else PROGRAM if k < 6 else UNKNOWN
        self.cells["points"][c] = max(1, h // 32 % 4) if k < 3 else 1
        self.cells["program"][c] = 0 if k < 3 else 1 + h // 128 * 22 // 512

    def draw_floor(self, c, h):
        t, amount = h % 16, max(1, h // 16 % 4)
        if t < 4:
            self.cells["spawn"][c] = 1
        elif t < 7:
            self.cells["credits"][c] = amount
        elif t < 10:
            self.cells["energy"][c] = amount
        elif t == 10:
            self.cells["pickup"][c] = 1

    def newcomers(self, num_called, num_others, words):
        offset = words[19] % 2**16 * 36 // 2**16
        waiting = [1] * num_called + [0] * num_others
        for i in CELLS:
            c = (offset + i) % 36
            is_free = self.cells["spawn"][c] and not self.cells["unit"][c] and c != self.at
            if waiting and is_free:
                kind = 1 + words[20] // 2 ** (2 * (c % 16)) % 4
                self.cells["unit"][c] = kind
                self.cells["hp"][c] = {RUNNER: 1, TANK: 3, GHOST: 2, LURKER: 2}[kind]
                self.cells["called"][c] = waiting.pop(0)
                self.cells["arrival"][c] = 3

    # What is allowed.

    def aimed(self, direction):
        """(cell of the unit that a move hits, cell that it goes to), each None if there is none."""
        down, right = STEPS[direction]
        row, column = self.row + down, self.column + right
        first = None if not (0 <= row < 6 and 0 <= column < 6) else 6 * row + column
        while 0 <= row < 6 and 0 <= column < 6:
            c = 6 * row + column
            if self.cells["block"][c]:
                return None, None if c == first else first
            if self.cells["unit"][c]:
                return c, None
            row, column = row + down, column + right
        return None, first

    def siphonable(self):
        return [
            c
            for c in [self.at, *BESIDE[self.at]]
            if self.cells["credits"][c]
            or self.cells["energy"][c]
            or (self.cells["block"][c] and not self.cells["siphoned"][c])
        ]

    def area(self, name):
        at, units = self.at, [c for c in CELLS if self.cells["unit"][c]]
        if name == "nearest":
            return [min(units, key=lambda c: (straight(c, at), c))] if units else []
        if name == "opposite":
            return [6 * (5 - self.row) + 5 - self.column]
        inside = {
            "self": lambda c: c == at,
            "plus": lambda c: c in BESIDE[at],
            "around": lambda c: (
                c != at and abs(c // 6 - self.row) <= 1 and abs(c % 6 - self.column) <= 1
            ),
            "near": lambda c: straight(c, at) in (1, 2),
            "lines": lambda c: c != at and (c // 6 == self.row or c % 6 == self.column),
            "board": lambda c: True,
        }[name]
        return [c for c in CELLS if inside(c)]

    def is_target(self, program, c):
        effect, x = program["effect"], {field: plane[c] for field, plane in self.cells.items()}
        if effect in ("heal", "siphons", "attack", "credits", "energy"):
            name = "hp" if effect == "heal" else effect
            return getattr(self, name) < LIMITS[name]
        return bool(
            {
                "wait": True,
                "hurt": x["unit"],
                "stun": x["unit"],
                "banish": x["unit"],
                "delay": x["unit"] and x["arrival"],
                "recast": x["unit"] and x["unit"] != program["amount"],
                "break": x["block"],
                "drain": x["credits"] or x["energy"],
                "refill": x["block"] and x["siphoned"],
                "decode": x["block"] == UNKNOWN and not x["siphoned"],
                "show": self.show == 0,
                "calm": self.calm == 0,
                "leap": not x["block"] and not x["unit"],
            }[effect]
        )

    def targets(self, program):
        return [c for c in self.area(program["area"]) if self.is_target(program, c)]

    def mask(self):
        moves = [self.aimed(d) != (None, None) for d in range(4)]
        programs = [
            k in self.owned
            and self.credits >= program["credits"]
            and self.energy >= program["energy"]
            and bool(self.targets(program))
            for k, program in enumerate(PROGRAMS)
        ]
        return [*moves, self.siphons > 0 and bool(self.siphonable()), *programs]

    # A turn.

    def step(self, action, words):
        """{part of the reward: how much of it} of one action."""
        if not self.mask()[action]:
            action = 5
        self.gains = dict.fromkeys(("stage", "points", "units", "hp", "won"), 0)
        before, alarm, ends = -straight(self.at, self.exit), 0, True
        if action < 4:
            self.move(action)
        elif action == 4:
            alarm = self.siphon()
        else:
            ends = PROGRAMS[action - 5]["ends"]
            self.run(PROGRAMS[action - 5])
        if self.at == self.exit:
            self.gains["stage"] = self.stage
            if self.stage == 8:
                self.gains["won"] = 1
            else:
                self.stage += 1
                self.attack = 1
                self.add("siphons", 1)
                self.add("hp", 1)
                self.begin_stage(words)
        elif ends:
            self.end_turn(alarm, words)
        is_over = self.gains["won"] or self.hp == 0
        after = 0 if is_over else -straight(self.at, self.exit)
        return self.gains | {"step": 1, "shaping": after - before}

    def move(self, direction):
        hit, goal = self.aimed(direction)
        if hit is None:
            self.come_to(goal)
        else:
            self.hurt(hit, self.attack)

    def come_to(self, c):
        self.row, self.column = divmod(c, 6)
        self.gather(c)
        self.add("siphons", self.cells["pickup"][c])
        self.cells["pickup"][c] = 0

    def gather(self, c):
        for name in ("credits", "energy"):
            self.add(name, self.cells[name][c])
            self.cells[name][c] = 0

    def hurt(self, c, amount):
        self.cells["hp"][c] -= amount
        if self.cells["hp"][c] <= 0:
            self.gains["units"] += 1
            if not self.cells["called"][c]:
                self.cells["credits"][c] = min(3, self.cells["credits"][c] + 1)
            self.remove(c)

    def remove(self, c):
        for field in OF_UNITS:
            self.cells[field][c] = 0

    def siphon(self):
        self.siphons -= 1
        alarm = 0
        for c in self.siphonable():
            self.gather(c)
            if self.cells["block"][c] and not self.cells["siphoned"][c]:
                self.cells["siphoned"][c] = 1
                alarm += self.cells["points"][c]
                if self.cells["block"][c] == DATA:
                    self.gains["points"] += self.cells["points"][c]
                else:
                    self.owned.add(self.cells["program"][c])
        return alarm

    def run(self, program):
        targets = self.targets(program)
        self.credits -= program["credits"]
        self.energy -= program["energy"]
        for c in targets:
            self.affect(c, program["effect"], program["amount"])

    def affect(self, c, effect, amount):
        cells = self.cells
        if effect == "hurt":
            self.hurt(c, amount)
        elif effect == "stun":
            cells["stunned"][c] = max(cells["stunned"][c], amount)
        elif effect == "banish":
            self.remove(c)
        elif effect == "delay":
            cells["arrival"][c] = min(3, cells["arrival"][c] + amount)
        elif effect == "recast":
            cells["unit"][c] = amount
        elif effect == "break":
            for field in ("block", "points", "program", "siphoned"):
                cells[field][c] = 0
        elif effect == "drain":
            self.gather(c)
        elif effect == "refill":
            cells["siphoned"][c] = 0
        elif effect == "decode":
            cells["block"][c] = PROGRAM
        elif effect == "leap":
            self.come_to(c)
        elif effect == "heal":
            self.add("hp", amount)
        elif effect != "wait":
            self.add(effect, amount)

    def end_turn(self, alarm, words):
        self.cells["arrival"] = [max(0, turns - 1) for turns in self.cells["arrival"]]
        hit = self.act(lambda c: True)
        hit |= self.act(lambda c: self.cells["unit"][c] == RUNNER and c not in hit)
        self.cells["stunned"] = [max(0, turns - 1) for turns in self.cells["stunned"]]
        for c in hit:
            self.cells["stunned"][c] = 1
        self.gains["hp"] = min(self.hp, len(hit))
        self.hp -= self.gains["hp"]
        self.show = max(0, self.show - 1)
        num_others = 0
        if self.calm:
            self.calm -= 1
        else:
            self.clock -= 1
            if self.clock == 0:
                num_others = 1
                self.clock = 12 - self.stage
        self.newcomers(alarm, num_others, words)

    def act(self, may_act):
        """The cells of the units that hit; the others have moved."""
        distance, cells, at = self.walking(), self.cells, self.at
        hit, goals = set(), {}
        for c in CELLS:
            is_ready = cells["unit"][c] and not cells["arrival"][c] and not cells["stunned"][c]
            if not is_ready or not may_act(c):
                continue
            if straight(c, at) == 1:
                hit.add(c)
                continue
            is_ghost = cells["unit"][c] == GHOST
            if cells["unit"][c] == LURKER and distance[c] > 3:
                continue
            for n in BESIDE[c]:
                is_nearer = (
                    straight(n, at) < straight(c, at) if is_ghost else distance[n] < distance[c]
                )
                if is_nearer and not cells["unit"][n]:
                    goals.setdefault(n, c)  # the first in reading order
                    break
        moved = [(n, {field: cells[field][c] for field in OF_UNITS}) for n, c in goals.items()]
        for c in goals.values():
            self.remove(c)
        for n, unit in moved:
            for field in OF_UNITS:
                cells[field][n] = unit[field]
        return hit

    def walking(self):
        """Fewest steps from the player to each cell without a block, FAR where there is no way."""
        distance = [FAR] * 36
        distance[self.at] = 0
        queue = [self.at]
        for c in queue:
            for n in BESIDE[c]:
                if distance[n] == FAR and not self.cells["block"][n]:
                    distance[n] = distance[c] + 1
                    queue.append(n)
        return distance


def numbers_of(twin, step_count):
    """Every field of a twin's state, by name."""
    return {
        "cells": [list(twin.cells[field]) for field in FIELDS],
        "player": twin.player(),
        "owned": sum(1 << k for k in twin.owned),
        "clock": twin.clock,
        "allowed": sum(1 << a for a, is_allowed in enumerate(twin.mask()) if is_allowed),
        "step_count": step_count,
    }


def enriched(twin, stage):
    """A game on another stage with all programs and much to pay them with."""
    for name, x in RICH.items():
        setattr(twin, name, x)
    twin.stage, twin.owned = stage, set(range(23))
    return twin


def played(words, actions, is_reset, number):
    """(numbers [T, ...], parts of the reward [T]) of one game."""
    rows, parts, twin, count = [], [], None, 0
    for word, action, fresh in zip(
        words.tolist(), actions.tolist(), is_reset.tolist(), strict=True
    ):
        if fresh:
            twin, count, gains = Twin(word), 0, dict.fromkeys(PARTS, 0)
            twin = enriched(twin, number % 9) if number % 9 else twin
        else:
            gains, count = twin.step(action, word), count + 1
        rows.append(numbers_of(twin, count))
        parts.append(gains)
    return (
        {name: np.array([row[name] for row in rows]) for name in rows[0]},
        {name: np.array([part[name] for part in parts]) for name in PARTS},
    )
