// Attention of one query token to the keys that lie in pages, a part of its context at a time.
#pragma once
#include "vectors.h"

constexpr int64_t PART = 256;  // keys of a task
constexpr int HEADS = 4;       // query heads that share the reading of a key

// Keys or values of one head in one layer: token p lies at (table[p / page_size] * page_size + p % page_size) * stride.
template <class T> struct Pages {
    const T* memory;
    const int32_t* table;
    int64_t page_size, stride;

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

// Columns d to d + N * W of the weighted sums of values.
template <class T, int G, int N>
void weigh(const Pages<T>& values, int64_t begin, int64_t end, int64_t d, const float (*weights)[PART], float* out, int64_t size) {
    Floats sums[G][N] = {};
    values.each(begin, end, [&](int64_t position, const T* value) {
        for (int n = 0; n < N; n++) {
            const Floats v = load(value + d + n * W);
            for (int g = 0; g < G; g++) sums[g][n] = multiply_add(v, splat(weights[g][position - begin]), sums[g][n]);
        }
    });
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) store(out + g * size + d + n * W, sums[g][n]);
}

// G heads of `size`, whose queries (already scaled) lie side by side, against positions begin to end, at most PART of them.
// out: (G, size) sums of values weighted by e^(score - most); most, total: of each head. slopes: of ALiBi, or null.
template <class T, int G>
void attend(const float* query, int64_t size, const Pages<T>& keys, const Pages<T>& values, int64_t begin, int64_t end, int64_t at,
            const float* slopes, float* out, float* most, float* total) {
    float scores[G][PART];
    const int64_t whole = size / W * W;
    keys.each(begin, end, [&](int64_t position, const T* key) {
        Floats sums[G] = {};
        for (int64_t d = 0; d < whole; d += W) {
            const Floats k = load(key + d);
            for (int g = 0; g < G; g++) sums[g] = multiply_add(k, load(query + g * size + d), sums[g]);
        }
        if (whole < size)
            for (int g = 0; g < G; g++)
                sums[g] = multiply_add(load_part(key + whole, size - whole), load_part(query + g * size + whole, size - whole), sums[g]);
        for (int g = 0; g < G; g++) scores[g][position - begin] = sum(sums[g]) + (slopes ? slopes[g] * float(position - at) : 0.0f);
    });
    const int64_t count = end - begin;
    for (int g = 0; g < G; g++) {
        float* s = scores[g];
        float peak = s[0];
        for (int64_t i = 1; i < count; i++) peak = s[i] > peak ? s[i] : peak;
        for (int64_t i = count; i % W; i++) s[i] = -1e30f;  // their e^ is below anything that counts
        Floats sums = {};
        for (int64_t i = 0; i < count; i += W) {
            const Floats e = exponential(load(s + i) - splat(peak));
            store(s + i, e);
            if (i + W <= count) sums += e;
            else for (int64_t j = i; j < count; j++) sums[0] += s[j];
        }
        most[g] = peak;
        total[g] = sum(sums);
    }
    int64_t d = 0;
    for (; d + 4 * W <= size; d += 4 * W) weigh<T, G, 4>(values, begin, end, d, scores, out, size);
    for (; d + W <= size; d += W) weigh<T, G, 1>(values, begin, end, d, scores, out, size);
    for (; d < size; d++) {
        float sums[G] = {};
        values.each(begin, end, [&](int64_t position, const T* value) {
            for (int g = 0; g < G; g++) sums[g] = multiply_add(widen(value[d]), scores[g][position - begin], sums[g]);
        });
        for (int g = 0; g < G; g++) out[g * size + d] = sums[g];
    }
}
