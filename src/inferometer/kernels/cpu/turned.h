// Keys turned: a vector of W keys for every column instead of vectors of columns for every key, so that W scores are one vector of sums and
// none has to be added up across its lanes.
#pragma once
#include <utility>

#include "vectors.h"

constexpr int64_t COLUMNS = 64;  // columns that are turned at a time

// lane(i): which of the 2 * W words of a and b is word i of the result.
template <class F, int... I> Ints shuffled(Ints a, Ints b, F lane, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, lane(I)...);
#else
    return __builtin_shuffle(a, b, Ints{lane(I)...});
#endif
}

template <class F> Ints shuffled(Ints a, Ints b, F lane) { return shuffled(a, b, lane, std::make_integer_sequence<int, W>()); }

// Rows and columns of W by W words change places: first within fours of words, which processors shuffle fastest, then whole fours.
inline void transpose(Ints* v) {
    Ints t[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i += 2) {
        t[i] = shuffled(v[i], v[i + 1], [](int i) constexpr { return i % 2 * W + i / 4 * 4 + i % 4 / 2; });
        t[i + 1] = shuffled(v[i], v[i + 1], [](int i) constexpr { return i % 2 * W + i / 4 * 4 + i % 4 / 2 + 2; });
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
        const Ints a = t[i / 4 * 4 + i % 4 / 2], b = t[i / 4 * 4 + i % 4 / 2 + 2];
        if (i % 2 == 0) v[i] = shuffled(a, b, [](int i) constexpr { return i % 4 / 2 * (W - 2) + i; });
        else v[i] = shuffled(a, b, [](int i) constexpr { return i % 4 / 2 * (W - 2) + i + 2; });
    }
    const auto lower = [](int i) constexpr { return i < W / 2 ? i : i + W / 2; };
    const auto upper = [](int i) constexpr { return i < W / 2 ? i + W / 2 : i + W; };
    const auto even = [](int i) constexpr { return i / (W / 2) * W + i / 4 % 2 * 8 + i % 4; };
    const auto odd = [](int i) constexpr { return i / (W / 2) * W + i / 4 % 2 * 8 + i % 4 + 4; };
#pragma GCC unroll 4
    for (int c = 0; c < 4 && W > 4; c++) {
        const Ints low = shuffled(v[c], v[c + 4], lower), high = shuffled(v[c], v[c + 4], upper);
        if constexpr (W == 8) {
            v[c] = low, v[c + 4] = high;
        } else if constexpr (W == 16) {
            const Ints low_too = shuffled(v[c + 8], v[c + 12], lower), high_too = shuffled(v[c + 8], v[c + 12], upper);
            v[c] = shuffled(low, low_too, even), v[c + 4] = shuffled(low, low_too, odd);
            v[c + 8] = shuffled(high, high_too, even), v[c + 12] = shuffled(high, high_too, odd);
        }
    }
}

// As many columns as W words hold, from `first` on, of W keys.
template <class T> void turn_words(const T* const* keys, int64_t first, Floats* turned) {
    Ints rows[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) memcpy(rows + i, keys[i] + first, sizeof *rows);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
        if constexpr (sizeof(T) == 4) turned[i] = (Floats)rows[i];
        else turned[2 * i] = (Floats)(rows[i] << 16), turned[2 * i + 1] = (Floats)(rows[i] & (int32_t)0xffff0000);
    }
}

// `count` columns from `first` on, no more than COLUMNS, of W keys, a vector of keys each.
template <class T> void turn(const T* const* keys, int64_t first, int64_t count, Floats* turned) {
    constexpr int64_t WIDTH = 4 * W / sizeof(T);  // columns of W words
    int64_t d = 0;
    for (; d + WIDTH <= count; d += WIDTH) turn_words(keys, first + d, turned + d);
    if (d == count) return;
    Floats rest[WIDTH];
    const int64_t back = WIDTH - (count - d);
    if (first + d >= back) {
        turn_words(keys, first + d - back, rest);  // what is left, and what was before it
        memcpy(turned + d, rest + back, (count - d) * sizeof *rest);
        return;
    }
    T some[W][WIDTH] = {};
    const T* from[W];
    for (int i = 0; i < W; i++) from[i] = (const T*)memcpy(some[i], keys[i] + first + d, (count - d) * sizeof(T));
    turn_words(from, 0, rest);
    memcpy(turned + d, rest, (count - d) * sizeof *rest);
}
