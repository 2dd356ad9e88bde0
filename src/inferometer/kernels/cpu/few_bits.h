// Products with weights in few bits: widened as they are read (widened.h), every number once for up to four rows.
#pragma once
#include <cmath>
#include <type_traits>

#include "linear.h"
#include "widened.h"

constexpr int WIDENED_ROWS = 4;  // that share the widening; the sums of more would not stay in registers
constexpr int64_t SLAB = 64;  // groups whose scales are widened at once

// O neighbouring outputs of R rows of prepared x. A row's result does not depend on R or O: its sums are taken in one order.
template <int R, int O>
void nibbles_of_rows(const Linear& map, int64_t first, const float* x, int64_t x_stride, float* out) {
    const int64_t bytes = (map.inputs + 1) / 2, groups = (map.inputs + map.group - 1) / map.group;
    const uint8_t* w = (const uint8_t*)map.weight + first * bytes;
    Floats sums[R][O] = {};
    for (int64_t slab = 0; slab < groups; slab += SLAB) {
        const int64_t count = groups - slab < SLAB ? groups - slab : SLAB;
        float scales[O][SLAB], zeros[O][SLAB];
        for (int o = 0; o < O; o++) {
            widen_scales(map.scale, (first + o) * groups + slab, count, map.scale_type, scales[o]);
            if (map.zero) widen_scales(map.zero, (first + o) * groups + slab, count, map.scale_type, zeros[o]);
        }
        for (int64_t g = 0; g < count; g++) {
            const int64_t begin = (slab + g) * map.group / 2, after = begin + map.group / 2;
            const int64_t end = slab + g == groups - 1 ? bytes : after;
            const auto grid = [&](int o) { return Grid(scales[o][g], map.zero ? zeros[o][g] : 8.0f); };
            const auto run = [&](const auto&... grids) {
                const Grid all[O] = {grids...};
                const auto step = [&](int64_t k, auto read) {
                    Floats low[O], high[O];
                    for (int o = 0; o < O; o++) {
                        const Ints b = unsigned_ints(read(w + o * bytes + k));
                        low[o] = all[o].low(b), high[o] = all[o].high(b);
                    }
                    for (int r = 0; r < R; r++) {
                        const Floats even = load(x + r * x_stride + 2 * k), odd = load(x + r * x_stride + 2 * k + W);
                        for (int o = 0; o < O; o++) sums[r][o] = multiply_add(high[o], odd, multiply_add(low[o], even, sums[r][o]));
                    }
                };
                for (int o = 0; o < O; o++) prefetch(w + o * bytes + begin + AHEAD_BYTES);
                int64_t k = begin;
                for (; k + W <= end; k += W) step(k, [](const uint8_t* p) { return load_bytes(p); });
                if (k < end) step(k, [&](const uint8_t* p) { return load_bytes(p, end - k); });
            };
            if constexpr (O == 4) run(grid(0), grid(1), grid(2), grid(3));
            else run(grid(0));
        }
    }
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++) out[r * WIDEST_CHUNK + o] = sum(sums[r][o]);
}

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define PAIRS 1
#else
#define PAIRS 0
#endif

#if PAIRS
constexpr int64_t PAIR_BYTES = 32;  // of nibbles that are multiplied at once

// The same for x in bfloat16, whose products with nibbles are exact: a group's are summed up, then scaled, and its zero point's share is
// taken off by the sums of the group's x.
// x: blocks of 64 inputs, [32 even][32 odd]. sums: float32 by group, behind every row's blocks.
template <int R, int O>
void nibble_pairs_of_rows(const Linear& map, int64_t first, const float* prepared, int64_t stride, float* out) {
    const int64_t bytes = (map.inputs + 1) / 2, groups = (map.inputs + map.group - 1) / map.group;
    const uint8_t* w = (const uint8_t*)map.weight + first * bytes;
    const auto x = [&](int r) { return (const Bfloat16*)(prepared + r * stride); };
    const auto sums = [&](int r) { return prepared + r * stride + stride / 2; };
    // Whole numbers from 0 to 15, twice: of each index the lowest five bits count.
    alignas(64) static const uint16_t levels[32] = {
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    const __m512i table = _mm512_load_si512(levels);
    Floats totals[R][O] = {};
    for (int64_t slab = 0; slab < groups; slab += SLAB) {
        const int64_t count = groups - slab < SLAB ? groups - slab : SLAB;
        alignas(64) float scales[O][SLAB];
        for (int o = 0; o < O; o++) {
            const int64_t at = (first + o) * groups + slab;
            widen_scales(map.scale, at, count, map.scale_type, scales[o]);
            float zeros[SLAB];
            if (map.zero) widen_scales(map.zero, at, count, map.scale_type, zeros);
            for (int64_t g = 0; g < count; g += W) {
                const __mmask16 real = count - g < W ? __mmask16((1 << (count - g)) - 1) : __mmask16(0xffff);
                const Floats scale = (Floats)_mm512_maskz_loadu_ps(real, scales[o] + g);
                const Floats shift = scale * (map.zero ? (Floats)_mm512_maskz_loadu_ps(real, zeros + g) : splat(8.0f));
                for (int r = 0; r < R; r++) totals[r][o] = multiply_add(-shift, (Floats)_mm512_maskz_loadu_ps(real, sums(r) + slab + g), totals[r][o]);
            }
        }
        for (int64_t g = 0; g < count; g++) {
            const int64_t begin = (slab + g) * map.group / 2, after = begin + map.group / 2;
            const int64_t end = slab + g == groups - 1 ? bytes : after;
            Floats part[R][O] = {};
            const auto step = [&](int64_t k, auto read) {
                const int64_t at = k / PAIR_BYTES * 2 * PAIR_BYTES + k % PAIR_BYTES;
                for (int o = 0; o < O; o++) {
                    const __m512i wide = _mm512_cvtepu8_epi16(read(w + o * bytes + k));
                    const __m512bh low = (__m512bh)_mm512_permutexvar_epi16(wide, table);
                    const __m512bh high = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(wide, 4), table);
                    for (int r = 0; r < R; r++) {
                        part[r][o] = (Floats)_mm512_dpbf16_ps((__m512)part[r][o], low, (__m512bh)_mm512_loadu_si512(x(r) + at));
                        part[r][o] = (Floats)_mm512_dpbf16_ps((__m512)part[r][o], high, (__m512bh)_mm512_loadu_si512(x(r) + at + PAIR_BYTES));
                    }
                }
            };
            for (int o = 0; o < O; o++) prefetch(w + o * bytes + begin + AHEAD_BYTES);
            int64_t k = begin;
            for (; k + PAIR_BYTES <= end; k += PAIR_BYTES) step(k, [](const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); });
            // Fewer: nibbles of zero add nothing, whatever x lies there.
            if (k < end) step(k, [&](const uint8_t* p) { return _mm256_maskz_loadu_epi8((1u << (end - k)) - 1, p); });
            for (int o = 0; o < O; o++)
                for (int r = 0; r < R; r++) totals[r][o] = multiply_add(part[r][o], splat(scales[o][g]), totals[r][o]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++) out[r * WIDEST_CHUNK + o] = sum(totals[r][o]);
}
#endif

template <int K, int R, int O>
void bytes_of_rows(const Linear& map, int64_t first, const float* x, int64_t x_stride, float* out) {
    const uint8_t* w = (const uint8_t*)map.weight + first * map.inputs;
    Floats sums[R][O] = {};
    const int64_t inputs = map.inputs;
    const auto step = [&](int64_t k, auto read) {
        Floats v[O];
        for (int o = 0; o < O; o++) v[o] = widen_bytes<K>(read(w + o * inputs + k));
        for (int r = 0; r < R; r++) {
            const Floats a = load(x + r * x_stride + k);
            for (int o = 0; o < O; o++) sums[r][o] = multiply_add(v[o], a, sums[r][o]);
        }
    };
    const auto whole = [](const uint8_t* p) { return load_bytes(p); };
    int64_t k = 0;
    for (; k + 64 <= inputs; k += 64) {
        for (int o = 0; o < O; o++) prefetch(w + o * inputs + k + AHEAD_BYTES);
        for (int part = 0; part < 64; part += W) step(k + part, whole);
    }
    for (; k + W <= inputs; k += W) step(k, whole);
    if (k < inputs) step(k, [&](const uint8_t* p) { return load_bytes(p, inputs - k); });
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++)
            out[r * WIDEST_CHUNK + o] = sum(sums[r][o]) * ((const float*)map.scale)[first + o] * (K == FP8 ? FP8_UNIT : 1.0f);
}

template <class T> constexpr bool in_pairs() { return PAIRS && sizeof(T) == 2; }

template <class T, int R> void few_bits_of_rows(const Linear& map, int64_t first, int64_t count, const float* x, int64_t x_stride, float* out) {
    constexpr int O = 4;
    const auto outputs = [&](auto width, int64_t o) {
        constexpr int N = decltype(width)::value;
#if PAIRS
        if constexpr (in_pairs<T>())
            if (map.kind == INT4) {
                if constexpr (R > 2 && N > 2) {  // twice as many sums as elsewhere have to stay in registers
                    nibble_pairs_of_rows<R, 2>(map, first + o, x, x_stride, out + o);
                    return nibble_pairs_of_rows<R, 2>(map, first + o + 2, x, x_stride, out + o + 2);
                }
                return nibble_pairs_of_rows<R, N>(map, first + o, x, x_stride, out + o);
            }
#endif
        if (map.kind == INT4) nibbles_of_rows<R, N>(map, first + o, x, x_stride, out + o);
        else if (map.kind == INT8) bytes_of_rows<INT8, R, N>(map, first + o, x, x_stride, out + o);
        else bytes_of_rows<FP8, R, N>(map, first + o, x, x_stride, out + o);
    };
    int64_t o = 0;
    for (; o + O <= count; o += O) outputs(std::integral_constant<int, O>{}, o);
    for (; o < count; o++) outputs(std::integral_constant<int, 1>{}, o);
}

// What a map of few bits reads: a row of x as float32, in the order and at the places in which its weight comes, zeros behind it.
// Returns what the row's products are to be multiplied with. out: as many numbers as `prepared_width` says of the widest map; stride.
inline int64_t prepared_width(int64_t inputs) { return (inputs + 63) / 64 * 64 + 64; }

template <class T> float prepare(const Linear& map, const T* x, float* out, int64_t stride) {
    const int64_t width = (map.inputs + 63) / 64 * 64;
    float unit = 1.0f;
#if PAIRS
    if constexpr (in_pairs<T>())
        if (map.kind == INT4) {
            Bfloat16* to = (Bfloat16*)out;
            for (int64_t k = 0; k < width; k += 64)
                for (int64_t i = 0; i < 32; i++)
                    for (int64_t odd = 0; odd < 2; odd++) {
                        const int64_t from = k + 2 * i + odd;
                        to[k + 32 * odd + i] = from < map.inputs ? x[map.order ? map.order[from] : from] : T{0};
                    }
            for (int64_t i = 0; i < 32; i++) to[width + i] = T{0};
            float* sums = out + stride / 2;
            for (int64_t k = 0, g = 0; k < map.inputs; k += map.group, g++) {
                float total = 0;
                const int64_t end = k + map.group < map.inputs ? k + map.group : map.inputs;
                for (int64_t i = k; i < end; i++) total += widen(x[map.order ? map.order[i] : i]);
                sums[g] = total;
            }
            return unit;
        }
#endif
    if (map.rounded) {
        Floats most = {};
        for (int64_t k = 0; k < map.inputs; k += W) {
            const Floats v = k + W <= map.inputs ? load(x + k) : load_part(x + k, map.inputs - k);
            most = larger(most, larger(v, -v));
        }
        float all[W], peak = 0.0f;
        store(all, most);
        for (int i = 0; i < W; i++) peak = all[i] > peak ? all[i] : peak;
        unit = peak / 127.0f;
    }
    const float divisor = unit == 0.0f ? 1.0f : unit;
    for (int64_t k = 0; k < width; k += 2 * W) {
        float block[2 * W] = {};
        const int64_t count = map.inputs - k < 2 * W ? map.inputs - k : 2 * W;
        if (map.order) for (int64_t i = 0; i < count; i++) block[i] = widen(x[map.order[k + i]]);
        else if (count == 2 * W) store(block, load(x + k)), store(block + W, load(x + k + W));
        else for (int64_t i = 0; i < count; i++) block[i] = widen(x[k + i]);
        if (map.rounded) for (int64_t i = 0; i < 2 * W; i++) block[i] = rintf(block[i] / divisor);
        if (map.kind == INT4) for (int i = 0; i < W; i++) out[k + i] = block[2 * i], out[k + W + i] = block[2 * i + 1];
        else memcpy(out + k, block, sizeof block);
    }
    return unit;
}

// Prepared x (rows, x_stride) times a chunk of the weight, plus bias: out (rows, WIDEST_CHUNK). units: of each row, from `prepare`.
// Returns how many outputs those are.
template <class T>
int64_t multiply_few_bits(const Linear& map, int64_t chunk, int64_t rows, const float* x, int64_t x_stride, const float* units, float* out) {
    const int64_t first = chunk * CHUNK, count = map.outputs - first < CHUNK ? map.outputs - first : CHUNK;
    for (int64_t row = 0; row < rows; row += WIDENED_ROWS) {
        const float* from = x + row * x_stride;
        float* to = out + row * WIDEST_CHUNK;
        switch (rows - row) {
            case 1: few_bits_of_rows<T, 1>(map, first, count, from, x_stride, to); break;
            case 2: few_bits_of_rows<T, 2>(map, first, count, from, x_stride, to); break;
            case 3: few_bits_of_rows<T, 3>(map, first, count, from, x_stride, to); break;
            default: few_bits_of_rows<T, WIDENED_ROWS>(map, first, count, from, x_stride, to);
        }
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < count; o++) {
            float& y = out[row * WIDEST_CHUNK + o];
            y = y * units[row] + (map.bias ? map.bias[first + o] : 0.0f);
        }
    return count;
}
