// Attention of query tokens to the keys that lie in pages, a part of their contexts at a time.
//
// What a query gives is the same to the bit whichever run beside it: a score is added up column by column, a sum of values key by key.
#pragma once
#include "turned.h"

constexpr int64_t PART = 256;              // keys of a task
constexpr int HEADS = 4;                   // query heads of a key head that are a task's
constexpr int SHARING = 16;                // queries that read the same keys: those heads, of as many tokens that follow one another
constexpr int KEY_HEADS = 4;               // of a task: keys of neighbouring heads lie side by side, and memory likes longer stretches
constexpr int QUERIES = SHARING * KEY_HEADS;
constexpr int64_t STRETCH = 64;            // keys of one head that are read before those of the next
constexpr int BLOCKS = 4;                  // vectors of keys that are turned at a time
constexpr int SUMS = W == 8 ? 8 : 16;      // vectors that are added to at a time: AVX2 has half as many registers as the others
constexpr int TOGETHER = SUMS / 2;         // queries that they are of at most

// Vectors of sums of each of so many queries.
constexpr int across(int queries) { return queries * 4 > SUMS ? 2 : 4; }

// Keys or values of one head in one layer: token p lies at (table[p / page_size] * page_size + p % page_size) * stride.
template <class T> struct Pages {
    const T* memory;
    const int32_t* table;
    int64_t page_size, stride;

    // Of the head whose numbers are so many behind.
    Pages behind(int64_t numbers) const { return {memory + numbers, table, page_size, stride}; }

    // run(position, pointer) for the positions from begin to end.
    template <class F> void each(int64_t begin, int64_t end, F run) const {
        for (int64_t position = begin; position < end;) {
            const int64_t page = position / page_size;
            const int64_t stop = (page + 1) * page_size < end ? (page + 1) * page_size : end;
            const T* p = memory + (table[page] * page_size + position % page_size) * stride;
            for (; position < stop; position++, p += stride) run(position, p);
        }
    }
};

// One head of one token. values: of the head, already scaled. keys: of the part, those that it attends to: the first ones, at least one.
// ahead: where the part begins, less where the token is. slope: of ALiBi, or 0. out: (size) sums of values weighted by e^(score - most).
// most, total: of its scores, and of their weights.
struct Query {
    const float* values;
    int64_t keys, ahead;
    float slope;
    float *out, *most, *total;
};

// Columns d to d + count of R queries times those of B vectors of keys, added to their scores from `first` on.
template <int R, int B>
void multiply_turned(const Query* query, int64_t d, int64_t count, const Floats (*turned)[COLUMNS], float (*scores)[PART], int64_t first) {
    Floats sums[R][B];
    for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) sums[r][b] = d ? load(scores[r] + first + b * W) : Floats{};
    for (int64_t i = 0; i < count; i++)
        for (int r = 0; r < R; r++) {
            const Floats q = splat(query[r].values[d + i]);
            for (int b = 0; b < B; b++) sums[r][b] = multiply_add(turned[b][i], q, sums[r][b]);
        }
    for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) store(scores[r] + first + b * W, sums[r][b]);
}

// run(first, constant) for `count` queries, TOGETHER at a time and what is left at once: constant() is how many.
template <int R = TOGETHER, class F> void by_together(int count, F run, int first = 0) {
    if constexpr (R == TOGETHER)
        for (; first + R <= count; first += R) run(first, std::integral_constant<int, R>());
    else if (first + R == count) run(first, std::integral_constant<int, R>());
    if constexpr (R > 1) by_together<R - 1>(count, run, first);
}

// Scores of the keys from begin to end: `scores` holds as many, and what fills up their last vector is anything.
template <class T, int B>
void score(const Query* query, int count, int64_t size, const Pages<T>& keys, int64_t part, int64_t begin, int64_t end,
           float (*scores)[PART]) {
    const T* at[B * W];
    keys.each(part + begin, part + end, [&](int64_t position, const T* key) { at[position - part - begin] = key; });
    for (int64_t i = end - begin; i < B * W; i++) at[i] = at[end - begin - 1];
    for (int64_t d = 0; d < size; d += COLUMNS) {
        const int64_t columns = size - d < COLUMNS ? size - d : COLUMNS;
        Floats turned[B][COLUMNS];
        for (int b = 0; b < B; b++) turn(at + b * W, d, columns, turned[b]);
        by_together(count, [&](int r, auto together) {
            constexpr int N = B < across(together()) ? B : across(together());
            for (int b = 0; b < B; b += N)
                multiply_turned<together(), N>(query + r, d, columns, turned + b, scores + r, begin + b * W);
        });
    }
}

// A query's scores to weights; those that fill up the last vector become zero.
inline void weights_of(const Query& query, float* scores) {
    const int64_t count = query.keys;
    if (query.slope)
        for (int64_t i = 0; i < count; i++) scores[i] = multiply_add(query.slope, float(query.ahead + i), scores[i]);
    for (int64_t i = count; i % W; i++) scores[i] = scores[count - 1];
    Floats peaks = load(scores), sums = {};
    for (int64_t i = W; i < count; i += W) peaks = larger(peaks, load(scores + i));
    float peak = peaks[0];
    for (int i = 1; i < W; i++) peak = peaks[i] > peak ? peaks[i] : peak;
    for (int64_t i = 0; i < count; i += W) {
        store(scores + i, exponential(load(scores + i) - splat(peak)));
        for (int64_t j = count; j < i + W; j++) scores[j] = 0;
        sums += load(scores + i);
    }
    *query.most = peak;
    *query.total = sum(sums);
}

// Columns d to d + N * W of the sums of values from `begin` to `end` of the part. A sum that begins later goes on.
template <class T, int R, int N>
void weigh(const Query* query, const Pages<T>& values, int64_t part, int64_t begin, int64_t end, int64_t d, const float (*weights)[PART]) {
    Floats sums[R][N];
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) sums[r][n] = begin ? load(query[r].out + d + n * W) : Floats{};
    values.each(part + begin, part + end, [&](int64_t position, const T* value) {
        for (int n = 0; n < N; n++) {
            const Floats v = load(value + d + n * W);
            for (int r = 0; r < R; r++) sums[r][n] = multiply_add(v, splat(weights[r][position - part]), sums[r][n]);
        }
    });
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) store(query[r].out + d + n * W, sums[r][n]);
}

// All columns.
template <class T, int R>
void weigh_all(const Query* query, int64_t size, const Pages<T>& values, int64_t part, int64_t begin, int64_t end,
               const float (*weights)[PART]) {
    constexpr int N = across(R);
    int64_t d = 0;
    for (; d + N * W <= size; d += N * W) weigh<T, R, N>(query, values, part, begin, end, d, weights);
    for (; d + W <= size; d += W) weigh<T, R, 1>(query, values, part, begin, end, d, weights);
    for (; d < size; d++)
        for (int r = 0; r < R; r++) {
            float sum = begin ? query[r].out[d] : 0.0f;
            values.each(part + begin, part + end, [&](int64_t position, const T* value) {
                sum = multiply_add(widen(value[d]), weights[r][position - part], sum);
            });
            query[r].out[d] = sum;
        }
}

// R queries of one head: their values from `begin` to `end` of the part.
template <class T, int R>
void weigh_stretch(const Query* query, int64_t size, const Pages<T>& values, int64_t part, int64_t begin, int64_t end,
                   const float (*weights)[PART]) {
    int64_t all = query->keys;
    for (int r = 1; r < R; r++) all = query[r].keys < all ? query[r].keys : all;
    if (begin < all) weigh_all<T, R>(query, size, values, part, begin, end < all ? end : all, weights);
    // What not all attend to is not weighed by zero: what a later token has there need not be a number.
    for (int r = 0; r < R; r++) {
        const int64_t first = begin < all ? all : begin, last = end < query[r].keys ? end : query[r].keys;
        if (first < last) weigh_all<T, 1>(query + r, size, values, part, first, last, weights + r);
    }
}

// Queries of `heads` neighbouring key heads of `size`, `count` of each, against the keys of the part that begins at position `part`.
// count: no more than SHARING. Those of the first head come first; keys and values are its own.
template <class T>
void attend(const Query* query, int count, int heads, int64_t size, const Pages<T>& keys, const Pages<T>& values, int64_t part) {
    float scores[QUERIES][PART];
    int64_t most = 0, begin = 0;
    for (int r = 0; r < count; r++) most = query[r].keys > most ? query[r].keys : most;
    for (; begin + STRETCH <= most; begin += STRETCH)
        for (int head = 0; head < heads; head++)
            for (int64_t i = 0; i < STRETCH; i += BLOCKS * W)
                score<T, BLOCKS>(query + head * count, count, size, keys.behind(head * size), part, begin + i, begin + i + BLOCKS * W,
                                 scores + head * count);
    for (int head = 0; head < heads; head++)
        for (int64_t i = begin; i < most; i += W)
            score<T, 1>(query + head * count, count, size, keys.behind(head * size), part, i, i + W < most ? i + W : most,
                        scores + head * count);
    for (int r = 0; r < heads * count; r++) weights_of(query[r], scores[r]);
    for (begin = 0; begin < most; begin += STRETCH)
        for (int head = 0; head < heads; head++)
            by_together(count, [&](int first, auto together) {
                weigh_stretch<T, together()>(query + head * count + first, size, values.behind(head * size), part, begin,
                                             begin + STRETCH < most ? begin + STRETCH : most, scores + head * count + first);
            });
}
