"""Ctrl-C is held back once, and only where it is ours to hold."""

import signal
import threading

import pytest

from calmix.training.interrupting import Interrupted, interrupts_held


def test_the_first_ctrl_c_is_told_and_the_second_goes_through() -> None:
    with interrupts_held() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_is_put_back_after_an_error() -> None:
    with pytest.raises(RuntimeError), interrupts_held():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_somebody_elses_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held() as interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_than_the_main_one_holds_nothing() -> None:
    found: list[bool] = []

    def work() -> None:
        with interrupts_held() as interrupted:
            found.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_an_interrupted_run_is_a_keyboard_interrupt() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_sigterm_is_held_where_somebody_handles_it_even_if_ctrl_c_is_ignored() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held() as interrupted:
            signal.raise_signal(signal.SIGTERM)
            assert interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_sigterm_is_left_to_end_the_process_where_nobody_handles_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # tests before this one may have had Ray handle it
    try:
        with interrupts_held():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
