"""The desk between a server's thread and a trainer's."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.broker.desk import Desk, Row, Told
from plugrl_gym.errors import UsageError
from plugrl_gym.server import Client, Refusal
from tests.support.fuzzing import fuzz


def client(number: int = 1) -> Client:
    return Client(number, f"127.0.0.1:{number}")


def told(reward: float = 0.0, ended: bool = False) -> Told:
    return Told(reward, ended, False, {}, "after", 0)


def take(desk: Desk, at_least: int = 0) -> list[Row]:
    taken = desk.take(at_least)
    assert taken is not None
    return taken[0]


def answer(desk: Desk, slots: list[int], value: float = 0.0) -> list[bool]:
    found: list[bool] = desk.answer(slots, np.full((1, len(slots)), value)).tolist()
    return found


def test_an_ask_is_answered_once_all_its_rows_are_in_any_order() -> None:
    desk = Desk()
    future = desk.ask(client(), [7, 3], "seen")
    assert [row.slot for row in take(desk)] == [0, 1]
    answer(desk, [1], 30.0)
    assert not future.done()
    answer(desk, [0], 70.0)
    assert future.result(0).tolist() == [[70.0, 30.0]]


def test_nothing_is_taken_before_enough_has_arrived() -> None:
    desk = Desk()
    desk.ask(client(), [0], "seen")
    assert desk.take(2) is None
    desk.ask(client(2), [0], "seen")
    assert len(take(desk, 2)) == 2


def test_what_came_of_an_action_comes_with_the_next_ask() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0], "before")
    assert take(desk)[0].told is None
    answer(desk, [0])
    desk.tell(one, [0], [told(2.5)])
    assert take(desk) == []
    desk.ask(one, [0], "now")
    (row,) = take(desk)
    assert (row.told and row.told.reward, row.observation, row.waiting) == (2.5, "now", True)
    assert desk.delivered == 1


def test_what_was_fed_back_before_a_client_left_is_a_row_that_waits_for_nothing() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0, 1], "before")
    take(desk)
    answer(desk, [0, 1])
    desk.tell(one, [1], [told(2.5)])
    desk.leave(one)
    taken = desk.take(5)
    assert taken is not None
    ((row,), events) = taken
    assert (row.slot, row.observation, row.waiting) == (1, "after", False)
    assert [(event.kind, event.slot) for event in events] == [("left", 0), ("left", 1)]


def test_a_row_that_nobody_took_before_its_client_left_is_not_lost() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0], "before")
    take(desk)
    answer(desk, [0])
    desk.tell(one, [0], [told(2.5)])
    future = desk.ask(one, [0], "now")
    future.cancel()
    desk.leave(one)
    (row,) = take(desk)
    assert (row.told and row.told.reward, row.waiting) == (2.5, False)


def test_an_env_that_came_and_went_before_anybody_looked_is_no_row() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0], "before")
    desk.leave(one)
    taken = desk.take(1)
    assert taken is not None
    assert taken[0] == []
    assert [event.kind for event in taken[1]] == ["joined", "left"]


def test_an_answer_to_an_env_that_has_just_left_is_dropped() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0], "before").cancel()
    desk.ask(client(2), [0], "before")
    take(desk)
    desk.leave(one)
    assert answer(desk, [0, 1]) == [False, True]


def test_a_slot_is_used_again_only_after_its_leave_was_read() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0], "before")
    take(desk)
    desk.leave(one)
    desk.ask(client(2), [0], "before")
    taken = desk.take(0)
    assert taken is not None
    assert [(event.kind, event.slot) for event in taken[1]] == [("left", 0), ("joined", 1)]
    desk.ask(client(3), [0], "before")
    assert [row.slot for row in take(desk)] == [0]


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([0, 5], "slot 5: no env is there; slots with an env: 0, 1, 2"),
        ([0, 1], "slot 1 does not wait for an action: it has been answered"),
        ([0, 2], "slot 2 does not wait for an action: its row has not been collected"),
    ],
)
def test_a_wrong_slot_is_refused_and_no_other_is_answered(slots: list[int], words: str) -> None:
    desk = Desk()
    first = desk.ask(client(1), [0], "seen")
    desk.ask(client(2), [0], "seen")
    take(desk)
    answer(desk, [1])
    desk.ask(client(3), [0], "seen")
    with pytest.raises(UsageError, match=words):
        answer(desk, slots)
    assert not first.done()
    answer(desk, [0])
    assert first.done()


def test_rows_that_wait_can_be_seen_again() -> None:
    desk = Desk()
    desk.ask(client(), [0, 1], "seen")
    take(desk)
    answer(desk, [1])
    assert [(row.slot, row.told) for row in desk.again()] == [(0, None)]


def test_a_refused_slot_closes_its_connection_only() -> None:
    desk = Desk()
    first, second = (desk.ask(client(n), [0], "seen") for n in (1, 2))
    take(desk)
    desk.refuse([0], "not with me")
    with pytest.raises(Refusal, match="not with me"):
        first.result(0)
    assert not second.done()


def test_an_env_that_does_not_ask_again_is_let_go_of_and_may_come_back() -> None:
    desk, one, two = Desk(), client(1), client(2)
    desk.ask(one, [0], "before")
    desk.ask(two, [0], "before")
    take(desk)
    answer(desk, [0, 1])
    assert desk.give_up([0, 1], 0.0) == []
    desk.tell(one, [0], [told(2.5)])
    assert desk.give_up([0, 1], 60.0) == []
    assert desk.give_up([0, 1], 0.0) == [0]
    taken = desk.take(1)
    assert taken is not None
    ((row,), events) = taken
    assert (row.told and row.told.reward, row.waiting) == (2.5, False)
    assert [(event.kind, event.slot) for event in events] == [("left", 0)]
    desk.ask(one, [0], "now")
    (row,) = take(desk)
    assert (row.slot, row.told, row.waiting) == (0, None, True)


def test_envs_that_a_mute_client_has_told_nothing_of_are_let_go_of_too() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0, 1], "before")
    take(desk)
    answer(desk, [0, 1])
    assert desk.tell(one, [0], [told(2.5)]) == 0
    assert desk.give_up([1], 0.0) == [1]
    assert desk.give_up([1], 0.0) == []
    assert take(desk) == []
    desk.ask(one, [0], "now")
    (row,) = take(desk)
    assert (row.slot, row.told and row.told.reward) == (0, 2.5)
    answer(desk, [0])
    assert desk.tell(one, [0, 1], [told(3.0), told(4.0)]) == 1


def test_envs_of_a_client_that_told_nothing_of_use_and_is_mute_are_let_go_of() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0, 1], "before")
    take(desk)
    answer(desk, [0, 1])
    desk.idle(one)
    assert desk.give_up([0, 1], 60.0) == []
    assert desk.give_up([0, 1], 0.0) == [0, 1]
    assert desk.take(1) is not None


def test_envs_of_a_client_that_asks_for_others_are_let_go_of_once_it_has_told_of_them() -> None:
    desk, one = Desk(), client()
    desk.ask(one, [0, 1, 2], "before")
    take(desk)
    answer(desk, [0, 1, 2])
    desk.tell(one, [0, 1], [told(1.0), told(2.0)])
    desk.ask(one, [0], "now")
    assert desk.give_up([0, 1, 2], 0.0) == [1]


def test_a_waiting_trainer_hears_of_a_failure() -> None:
    desk = Desk()
    threading.Timer(0.01, lambda: desk.fail(OSError("broken"))).start()
    assert desk.wait(1, 10.0)
    with pytest.raises(OSError, match="broken"):
        desk.take(1)
    with pytest.raises(OSError, match="broken"):
        desk.answer([0], np.zeros((1, 1)))


# -- Any sequence -----------------------------------------------------------------------------


class Model:
    """Clients that obey the protocol, a trainer, and what should come of it."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.clients: dict[int, Client] = {}
        self.open: dict[int, tuple[list[int], Future[Any]]] = {}
        self.holding: dict[int, dict[int, float]] = {}
        self.told: list[float] = []
        self.in_vain: set[float] = set()
        self.delivered: list[float] = []
        self.waiting: dict[int, tuple[Client, int]] = {}
        self.slots: dict[int, tuple[Client, int]] = {}
        self.serial = 0

    def ask(self, number: int, envs: list[int]) -> None:
        if number in self.open:
            return
        client = self.clients.setdefault(number, Client(len(self.clients) + number, "here"))
        self.open[number] = envs, self.desk.ask(client, envs, "seen")

    def tell(self, number: int, envs: list[int]) -> None:
        if number in self.open or number not in self.holding:
            return
        held = self.holding[number]
        rows = {env: held.pop(env) for env in envs if env in held}
        if not rows:
            return
        # The reward repeats the action: it is delivered to the slot that was sent it.
        missed = self.desk.tell(self.clients[number], list(rows), [told(v) for v in rows.values()])
        heard = [value for value in rows.values() if value not in self.in_vain]
        self.told.extend(heard)
        assert missed == len(rows) - len(heard)

    def drop(self, number: int, envs: list[int]) -> None:
        if number in self.open or number not in self.holding:
            return
        for env in envs:
            self.holding[number].pop(env, None)
        self.desk.idle(self.clients[number])

    def give_up(self, slots: list[int]) -> None:
        for slot in self.desk.give_up(slots, 0.0):
            self.waiting.pop(slot, None)
            client, env = self.slots[slot]
            (number,) = (n for n, each in self.clients.items() if each is client)
            if env in self.holding.get(number, {}):
                self.in_vain.add(self.holding[number][env])

    def leave(self, number: int) -> None:
        client = self.clients.pop(number, None)
        if client is None:
            return
        _, future = self.open.pop(number, ([], Future()))
        future.cancel()
        self.holding.pop(number, None)
        self.desk.leave(client)

    def take(self) -> None:
        taken = self.desk.take(0)
        assert taken is not None
        rows, events = taken
        for event in events:
            if event.kind == "joined":
                assert event.slot not in self.slots
                self.slots[event.slot] = event.client, event.env
        for row in rows:
            assert self.slots[row.slot][0] is row.client
            if row.told is not None:
                self.delivered.append(row.told.reward)
                assert row.told.reward % 1000 == row.slot
            if row.waiting:
                assert row.slot not in self.waiting
                self.waiting[row.slot] = self.slots[row.slot]
        for event in events:
            if event.kind == "left":
                assert self.slots.pop(event.slot) == (event.client, event.env)
                self.waiting.pop(event.slot, None)

    def answer(self, slots: list[int]) -> None:
        chosen = [slot for slot in slots if slot in self.waiting]
        if not chosen:
            return
        self.serial += 1
        values = [1000 * self.serial + slot for slot in chosen]
        self.desk.answer(chosen, np.array([values], np.float64))
        for slot in chosen:
            del self.waiting[slot]
        for number, (envs, future) in list(self.open.items()):
            if future.done():
                del self.open[number]
                given = zip(envs, future.result(0)[0].tolist(), strict=True)
                self.holding.setdefault(number, {}).update(given)


ENVS = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
SLOTS = st.lists(st.integers(0, 12), unique=True, max_size=8)


@given(st.data())
@fuzz(40)
def test_after_any_sequence_every_row_was_delivered_once_and_to_its_slot(
    data: st.DataObject,
) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 40))):
        number = data.draw(st.integers(0, 2))
        match data.draw(st.integers(0, 7)):
            case 0 | 1:
                model.ask(number, data.draw(ENVS))
            case 2:
                model.tell(number, data.draw(ENVS))
            case 3:
                model.take()
            case 4:
                model.answer(data.draw(SLOTS))
            case 5:
                model.give_up(data.draw(SLOTS))
            case 6:
                model.drop(number, data.draw(ENVS))
            case _ if data.draw(st.booleans()):
                model.leave(number)
    assert model.desk.uncollected() == len(model.told) - len(model.delivered)
    for number in list(model.clients):
        model.leave(number)
    model.take()
    assert Counter(model.delivered) == Counter(model.told)
    assert (model.desk.delivered, model.desk.uncollected()) == (len(model.told), 0)
    assert model.slots == {}
