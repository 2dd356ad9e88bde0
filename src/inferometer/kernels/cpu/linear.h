// Linear maps of few rows: every weight is read once, and its memory is asked for ahead of time.
#pragma once
#include "team.h"
#include "tiles.h"
#include "vectors.h"

// weight: outputs rows of `stride` numbers where block is 0; else [outputs / block][stride / 2][block][2], which is how the processor's
// matrix instructions want it: pairs of inputs side by side. Inputs beyond `inputs` up to `stride` are zero there.
//
// kind other than 0: a weight in few bits (few_bits.h), stored as kernels/quant_weight.py says; stride and block are 0 then.
// scale, zero: its scales and zero points, of scale_type, zero may be null. group: inputs that share one. order: null, or which input
// each column belongs to. rounded: whether x is rounded to whole numbers of up to 127, by a scale for each row.
struct Linear {
    const void* weight;
    const float* bias;
    int64_t outputs, inputs, stride, block;
    const void *scale, *zero;
    const int32_t* order;
    int64_t group;
    int32_t kind, scale_type, rounded;
};

constexpr int GROUP = 8;       // rows whose sums fit the registers
constexpr int64_t MOST_TOKENS = 512;  // of a call
constexpr int64_t CHUNK = 16;  // outputs of a task, unless the layout has blocks
constexpr int64_t WIDEST_CHUNK = 64;
constexpr int64_t AHEAD_BYTES = 8192;

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

template <class T> struct Dot {
    static constexpr int step = W;
    using Vector = Floats;
    static Vector at(const T* p) { return load(p); }
    static Vector part(const T* p, int64_t count) { return load_part(p, count); }
    static void add(Floats& sum, Vector a, Vector b) { sum = multiply_add(a, b, sum); }
};

#if defined(__AVX512BF16__)
template <> struct Dot<Bfloat16> {
    static constexpr int step = 32;
    using Vector = __m512bh;
    static Vector at(const Bfloat16* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static Vector part(const Bfloat16* p, int64_t count) {
        Bfloat16 out[32] = {};
        memcpy(out, p, count * sizeof *p);
        return at(out);
    }
    static void add(Floats& sum, Vector a, Vector b) { sum = (Floats)_mm512_dpbf16_ps((__m512)sum, a, b); }
};
#endif

// O neighbouring outputs of R rows. A row's result does not depend on R or O: its sums are taken in one order.
template <class T, int R, int O>
void outputs_of_rows(const T* w, int64_t stride, const T* x, int64_t x_stride, int64_t inputs, float* out, const T* ahead) {
    using D = Dot<T>;
    Floats sums[R][O] = {};
    int64_t k = 0;
    for (; k + D::step <= inputs; k += D::step) {
        typename D::Vector v[O];
        for (int o = 0; o < O; o++) {
            v[o] = D::at(w + o * stride + k);
            if (ahead) prefetch(ahead + o * stride + k);
        }
        for (int r = 0; r < R; r++) {
            const typename D::Vector a = D::at(x + r * x_stride + k);
            for (int o = 0; o < O; o++) D::add(sums[r][o], v[o], a);
        }
    }
    if (k < inputs)
        for (int r = 0; r < R; r++) {
            const typename D::Vector a = D::part(x + r * x_stride + k, inputs - k);
            for (int o = 0; o < O; o++) D::add(sums[r][o], D::part(w + o * stride + k, inputs - k), a);
        }
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++) out[r * WIDEST_CHUNK + o] = sum(sums[r][o]);
}

template <class T, int R>
void rows_major(const T* w, int64_t stride, int64_t count, const T* x, int64_t x_stride, int64_t inputs, float* out, const T* ahead) {
    constexpr int O = R > 4 ? 2 : 4;
    int64_t o = 0;
    for (; o + O <= count; o += O) {
        const T* next = !ahead ? nullptr : o + 2 * O <= count ? w + (o + O) * stride : ahead;
        outputs_of_rows<T, R, O>(w + o * stride, stride, x, x_stride, inputs, out + o, next);
    }
    for (; o < count; o++) outputs_of_rows<T, R, 1>(w + o * stride, stride, x, x_stride, inputs, out + o, nullptr);
}

// A block of outputs, as far as they are there; the layout is that of a Linear with blocks.
template <int R>
void pairs(const Bfloat16* w, int64_t block, int64_t count, const Bfloat16* x, int64_t x_stride, int64_t stride, float* out,
           const Bfloat16* ahead) {
    const int64_t bytes = 2 * stride * block;
    for (int64_t column = 0; column < count; column += 2 * W) {
        Floats sums[R][2] = {};
        for (int64_t k = 0; k < stride / 2; k++) {
            const char* at = (const char*)w + 4 * (k * block + column);
            if (ahead) {
                const int64_t later = at - (const char*)w + AHEAD_BYTES;
                const char* p = later < bytes ? (const char*)w + later : (const char*)ahead + later - bytes;
                for (int line = 0; line < 8 * W; line += 64) prefetch(p + line);
            }
#if defined(__AVX512BF16__)
            const __m512bh low = (__m512bh)_mm512_loadu_si512(at), high = (__m512bh)_mm512_loadu_si512(at + 4 * W);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, x + r * x_stride + 2 * k, 4);
                const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
                sums[r][0] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][0], low, a);
                sums[r][1] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][1], high, a);
            }
#else
            for (int half = 0; half < 2; half++) {
                Ints both;
                memcpy(&both, at + half * 4 * W, sizeof both);
                const Floats even = (Floats)(both << 16), odd = (Floats)(both & (int32_t)0xffff0000);
                for (int r = 0; r < R; r++) {
                    const Bfloat16* pair = x + r * x_stride + 2 * k;
                    sums[r][half] = multiply_add(even, splat(widen(pair[0])), sums[r][half]);
                    sums[r][half] = multiply_add(odd, splat(widen(pair[1])), sums[r][half]);
                }
            }
#endif
        }
        for (int r = 0; r < R; r++)
            for (int half = 0; half < 2; half++) store(out + r * WIDEST_CHUNK + column + half * W, sums[r][half]);
    }
}

template <class T, int R>
void chunk_of_rows(const Linear& map, int64_t first, int64_t count, const T* x, int64_t x_stride, float* out, const void* ahead) {
    const T* w = (const T*)map.weight + first * map.stride;
    if constexpr (sizeof(T) == 2)
        if (map.block) return pairs<R>(w, map.block, count, x, x_stride, map.stride, out, (const T*)ahead);
    rows_major<T, R>(w, map.stride, count, x, x_stride, map.inputs, out, (const T*)ahead);
}

inline int64_t chunk_size(const Linear& map) { return map.block ? map.block : CHUNK; }

inline int64_t chunks_of(const Linear& map) { return (map.outputs + chunk_size(map) - 1) / chunk_size(map); }

template <class T> const void* chunk_at(const Linear& map, int64_t chunk) {
    if (map.kind) return map.weight;  // to be fetched ahead, which few_bits.h sees to itself
    return (const T*)map.weight + chunk * chunk_size(map) * map.stride;
}

template <class T>
void multiply_by_vectors(const Linear& map, int64_t first, int64_t count, int64_t rows, const T* x, int64_t x_stride, float* out,
                         const void* ahead) {
    for (int64_t row = 0; row < rows; row += GROUP) {
        const T* from = x + row * x_stride;
        float* to = out + row * WIDEST_CHUNK;
        const void* then = row ? nullptr : ahead;  // by now the weights are near
        switch (rows - row) {
            case 1: chunk_of_rows<T, 1>(map, first, count, from, x_stride, to, then); break;
            case 2: chunk_of_rows<T, 2>(map, first, count, from, x_stride, to, then); break;
            case 3: chunk_of_rows<T, 3>(map, first, count, from, x_stride, to, then); break;
            case 4: chunk_of_rows<T, 4>(map, first, count, from, x_stride, to, then); break;
            case 5: chunk_of_rows<T, 5>(map, first, count, from, x_stride, to, then); break;
            case 6: chunk_of_rows<T, 6>(map, first, count, from, x_stride, to, then); break;
            case 7: chunk_of_rows<T, 7>(map, first, count, from, x_stride, to, then); break;
            default: chunk_of_rows<T, 8>(map, first, count, from, x_stride, to, then);
        }
    }
}

// x (rows, x_stride) times a chunk of the weight, plus bias: out (rows, WIDEST_CHUNK). Returns how many outputs those are.
// Memory behind the last row of x must be there up to a multiple of 16 rows, whatever it holds.
template <class T>
int64_t multiply(const Linear& map, int64_t chunk, int64_t rows, const T* x, int64_t x_stride, float* out, const void* ahead) {
    const int64_t first = chunk * chunk_size(map);
    const int64_t count = map.outputs - first < chunk_size(map) ? map.outputs - first : chunk_size(map);
    bool done = false;
#if TILES
    if constexpr (sizeof(T) == 2)
        if (map.block % 32 == 0 && map.block && map.stride % 32 == 0 && tiles_allowed()) {
            const T* w = (const T*)map.weight + first * map.stride;
            for (int64_t row = 0; row < rows; row += MOST_TILED)
                for (int64_t column = 0; column < count; column += 32)
                    pairs_by_tiles(w + 2 * column, map.block, rows - row, x + row * x_stride, x_stride, map.stride,
                                   out + row * WIDEST_CHUNK + column, WIDEST_CHUNK, column > 0 || row > 0, (const char*)ahead);
            done = true;
        }
#endif
    if (!done) multiply_by_vectors(map, first, count, rows, x, x_stride, out, ahead);
    if (map.bias)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t o = 0; o < count; o++) out[row * WIDEST_CHUNK + o] += map.bias[first + o];
    return count;
}
