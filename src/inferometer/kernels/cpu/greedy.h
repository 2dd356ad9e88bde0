// The best score of each row and its log-probability, read where the scores lie.
#pragma once
#include <algorithm>
#include <cmath>

#include "team.h"
#include "vectors.h"

constexpr int64_t SCORES = 8192;  // of a task: fixed, so that threads do not change a sum
constexpr int64_t RUN = 32;       // of vectors: added up by themselves

struct Best {
    float score, total;  // total: of e^(score - best score)
    int64_t at;
};

// What is not a number counts as minus infinity, plus infinity as the largest number.
inline Floats sound(Floats v) {
    v = v == v ? v : splat(-INFINITY);
    return v > splat(3.402823466e38f) ? splat(3.402823466e38f) : v;
}

// The first of the best among `count` scores, which begin at number `first` of their row.
template <class T> Best best_of(const T* scores, int64_t count, int64_t first) {
    const auto part = [&](int64_t i) {
        if (i + W <= count) return sound(load(scores + i));
        Floats v = sound(load_part(scores + i, count - i));
        for (int64_t lane = count - i; lane < W; lane++) v[lane] = -INFINITY;
        return v;
    };
    Floats most = splat(-INFINITY);
    Ints place = {};
    for (int64_t i = 0; i < count; i += W) {
        const Floats v = part(i);
        place = v > most ? Ints{} + int32_t(i) : place;
        most = v > most ? v : most;
    }
    Best best{-INFINITY, 0, first};
    for (int lane = 0; lane < W; lane++) {
        const int64_t at = first + place[lane] + lane;
        if (most[lane] > best.score || (most[lane] == best.score && most[lane] > -INFINITY && at < best.at)) best = {most[lane], 0, at};
    }
    if (best.score == -INFINITY) return best;
    // In runs: what is small is added to what is small before it meets the best score's one, where its last bits would be lost.
    Floats sums = {};
    for (int64_t from = 0; from < count; from += RUN * W) {
        Floats few = {};
        for (int64_t i = from; i < std::min(count, from + RUN * W); i += W) few += exponential(part(i) - splat(best.score));
        sums += few;
    }
    best.total = sum(sums);
    return best;
}

// A row's parts, in their order, to one; total becomes the log-probability.
inline Best best_of(const Best* parts, int64_t count) {
    Best best = parts[0];
    for (int64_t i = 1; i < count; i++)
        if (parts[i].score > best.score) best = parts[i];
    float total = 0;
    for (int64_t i = 0; i < count; i++)
        if (parts[i].score > -INFINITY) total += parts[i].total * expf(parts[i].score - best.score);
    best.total = best.score > -INFINITY ? -logf(total) : -INFINITY;
    return best;
}
