// The same products by AMX, which multiplies 16 rows by 16 outputs at a time; there is nothing of it on processors without.
#pragma once
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES 1
#else
#define TILES 0
#endif

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t MOST_TILED = 2 * TILE_ROWS;  // rows that are multiplied at a time

#if TILES

// Whether the system lets this process use tiles: it must be asked once.
inline bool tiles_allowed() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    static const bool allowed = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return allowed;
}

// While it lives, all eight tiles of this thread are 16 rows of 64 bytes; then they are again what they were.
class Tiles {
  public:
    Tiles() {
        if (!tiles_allowed()) return;
        _tile_storeconfig(before_);
        alignas(64) uint8_t now[64] = {1};
        for (int tile = 0; tile < 8; tile++) {
            now[16 + 2 * tile] = 64;
            now[48 + tile] = TILE_ROWS;
        }
        _tile_loadconfig(now);
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() {
        if (!tiles_allowed()) return;
        if (before_[0]) _tile_loadconfig(before_);
        else _tile_release();
    }

  private:
    alignas(64) uint8_t before_[64];
};

// 32 columns of a block for the first 16 rows of x, or 32 if there are more; out: rows `width` floats apart, all 16 or 32 written.
// w: [stride / 2][block][2]. again: the block has been read before, for other columns. ahead: what is read next.
inline void pairs_by_tiles(const Bfloat16* w, int64_t block, int64_t rows, const Bfloat16* x, int64_t x_stride, int64_t stride, float* out,
                           int64_t width, bool again, const char* ahead) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int64_t step = 64 * block;  // bytes of 16 pairs of inputs
    constexpr int64_t distance = 128;
    for (int64_t k = 0; k < stride; k += 32) {
        const char* at = (const char*)w + k / 32 * step;
        if (!again) {
            const char* after = ahead ? ahead + (k + distance - stride) / 32 * step : at;
            const char* later = k + distance < stride ? at + distance / 32 * step : after;
            for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(later + line, 0, 2);
        }
        _tile_loadd(6, at, 4 * block);
        _tile_loadd(7, at + 64, 4 * block);
        _tile_loadd(4, x + k, 2 * x_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (rows > TILE_ROWS) {
            _tile_loadd(5, x + TILE_ROWS * x_stride + k, 2 * x_stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, 4 * width);
    _tile_stored(1, out + 16, 4 * width);
    if (rows > TILE_ROWS) {
        _tile_stored(2, out + TILE_ROWS * width, 4 * width);
        _tile_stored(3, out + TILE_ROWS * width + 16, 4 * width);
    }
}

// 16 outputs whose weights lie row by row, for 16 or 32 rows of x, given as columns: [inputs / 2][rows][2], rows 16 or 32.
// out: (16 outputs, `rows`).
inline void rows_by_tiles(const Bfloat16* w, int64_t inputs, int64_t rows, const Bfloat16* columns, float* out, const Bfloat16* ahead) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t k = 0; k < inputs; k += 32) {
        for (int64_t row = 0; row < TILE_ROWS; row++) __builtin_prefetch(ahead + row * inputs + k, 0, 2);
        _tile_loadd(4, w + k, 2 * inputs);
        _tile_loadd(6, columns + k * rows, 4 * rows);
        _tile_dpbf16ps(0, 4, 6);
        if (rows > TILE_ROWS) {
            _tile_loadd(7, columns + k * rows + 2 * TILE_ROWS, 4 * rows);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, out, 4 * rows);
    if (rows > TILE_ROWS) _tile_stored(1, out + TILE_ROWS, 4 * rows);
}

#else

inline bool tiles_allowed() { return false; }
class Tiles {};

#endif
