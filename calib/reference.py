"""What the kernels must find, by numpy: a pool's words are a hash of their number, so no copy of it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calib import plan

if TYPE_CHECKING:
    Words = np.ndarray[Any, np.dtype[np.uint32]]


def hashed_words(first: int, count: int, seed: int) -> Words:
    """Return words `first` to `first + count` of a pool that `fill` wrote."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    high = (numbers >> np.uint64(32)).astype(np.uint32) + np.uint32(seed)
    return _mixed(numbers.astype(np.uint32) ^ _mixed(high))


def _mixed(h: Words) -> Words:
    """Return MurmurHash3's finaliser, modulo 2^32 as everything here."""
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def words_sum(words: Words) -> int:
    """Return the sum of words modulo 2^64."""
    return int(words.sum(dtype=np.uint64))


def scan_sum(keys: Words, threads: int) -> int:
    """Return what a two-pass scan adds up to; thread t of `threads` has vectors t, t + threads, ... of 4 words."""
    vectors = keys.reshape(-1, 4)
    rounds = -(-len(vectors) // threads)
    tops = np.zeros((rounds * threads, 4), dtype=np.uint8)
    tops[: len(vectors)] = vectors >> np.uint32(24)
    there = (np.arange(rounds * threads) < len(vectors)).reshape(rounds, threads, 1)
    by_thread = tops.reshape(rounds, threads, 4)
    highest = by_thread.max(axis=(0, 2))
    return words_sum(keys) + int((there & (by_thread == highest[None, :, None])).sum())


def page_scores(pages: Words) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the score-like value of each token of whole pages, as paged_read.cu `score` has it."""
    keys = (pages[:, :2048].reshape(-1, plan.PAGE_TOKENS, 32) & np.uint32(0xFFFF)).sum(axis=2, dtype=np.uint32)
    scores: np.ndarray[Any, np.dtype[np.float32]] = (keys * ((pages[:, 2048:] & np.uint32(7)) + np.uint32(1))).astype(
        np.float32
    )
    return scores
