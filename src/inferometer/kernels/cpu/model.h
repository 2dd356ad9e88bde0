// What a sweep is given: the model, the tokens, and room for what lies between its phases.
#pragma once
#include <type_traits>

#include "attention.h"
#include "few_bits.h"
#include "linear.h"

struct Norm {
    const float *weight, *bias;
};

struct Layer {
    Norm attention_norm, feed_forward_norm;
    Linear qkv, output, up, down;
    float scale;
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_size, feed_forward;
    int32_t bfloat16, rms, post, residual_after_norm, gated, activation;
    float epsilon;
    const float* slopes;
    const Layer* layer;
    Norm final_norm;
    int32_t has_final_norm;
};

// x: (tokens, hidden) in, and out. cos, sin: float32 (tokens, head_size) or null. positions: of the tokens in their sequences.
// places: where their keys and values go. seats: their rows in the table of pages. scratch: as many bytes as scratch_bytes says.
// sums: (tokens, hidden), where ranks that share the layers meet; null for a rank alone.
struct Sweep {
    int64_t tokens;
    void* x;
    const float *cos, *sin;
    const int64_t *positions, *places;
    const int32_t *seats, *table;
    int64_t table_stride, page_size;
    void *keys, *values;
    int64_t layer_stride;
    void* scratch;
    float* sums;
};

inline int64_t rounded(int64_t count) { return (count + 63) / 64 * 64; }

// Where everything lies between the phases; rows of each are a multiple of 64 numbers apart.
template <class T> struct Room {
    Room(const Model& m, int64_t tokens, int64_t parts, char* at) {
        hidden = rounded(m.hidden), heads = rounded((m.heads + 2 * m.kv_heads) * m.head_size);
        attended_width = rounded(m.heads * m.head_size), inner = rounded(m.feed_forward);
        up_width = rounded((1 + m.gated) * m.feed_forward);
        char* const begin = at;
        const auto take = [&](auto*& p, int64_t count) {
            p = (std::remove_reference_t<decltype(p)>)at;
            at += rounded(count * sizeof *p);
        };
        take(shared, 1);
        take(x, tokens * hidden);
        take(base, tokens * hidden);
        take(qkv, tokens * heads);
        take(up, tokens * up_width);
        take(partial, tokens * parts * m.heads * m.head_size);
        take(most, tokens * parts * m.heads);
        take(total, tokens * parts * m.heads);
        int64_t widest = m.hidden > m.feed_forward ? m.hidden : m.feed_forward;
        if (m.heads * m.head_size > widest) widest = m.heads * m.head_size;
        prepared_width = ::prepared_width(widest);
        take(prepared, tokens * prepared_width);
        take(units, tokens);
        const int64_t rows = (tokens + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        take(normed, rows * hidden);
        take(attended, rows * attended_width);
        take(activated, rows * inner);
        bytes = at - begin;
    }
    int64_t hidden, heads, attended_width, inner, up_width, prepared_width, bytes;
    Shared* shared;
    float *x, *base, *qkv, *up, *partial, *most, *total, *prepared, *units;
    T *normed, *attended, *activated;
};

inline int64_t parts_of(const Sweep& s) {
    int64_t longest = 0;
    for (int64_t t = 0; t < s.tokens; t++) longest = s.positions[t] + 1 > longest ? s.positions[t] + 1 : longest;
    return (longest + PART - 1) / PART;
}
