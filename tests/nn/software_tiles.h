// AMX by plain code, for processors without: `tiles.h` compiled after this takes its tiles.
#pragma once
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef __AMX_BF16__
#define __AMX_BF16__ 1
#undef syscall
#define syscall(...) 0L  // every system lets a process have these

struct SoftwareTile {
    uint8_t rows[16][64];
};
inline thread_local SoftwareTile software_tiles[8];
inline thread_local uint8_t software_configuration[64];

inline void software_load(int tile, const void* from, int64_t stride) {
    for (int row = 0; row < 16; row++) memcpy(software_tiles[tile].rows[row], (const char*)from + row * stride, 64);
}

inline void software_store(int tile, void* to, int64_t stride) {
    for (int row = 0; row < 16; row++) memcpy((char*)to + row * stride, software_tiles[tile].rows[row], 64);
}

// sums (16, 16) += a (16, 32) b, whose pairs of inputs are (16, 16, 2).
inline void software_multiply(int sums, int a, int b) {
    const auto number = [](const uint8_t* p) {
        uint16_t half;
        memcpy(&half, p, 2);
        const uint32_t bits = uint32_t(half) << 16;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    };
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            float sum;
            uint8_t* at = software_tiles[sums].rows[row] + 4 * column;
            memcpy(&sum, at, 4);
            for (int k = 0; k < 32; k++)
                sum += number(software_tiles[a].rows[row] + 2 * k) * number(software_tiles[b].rows[k / 2] + 4 * column + 2 * (k % 2));
            memcpy(at, &sum, 4);
        }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_zero(tile) memset(software_tiles + tile, 0, sizeof(SoftwareTile))
#define _tile_loadd(tile, from, stride) software_load(tile, from, stride)
#define _tile_stored(tile, to, stride) software_store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) software_multiply(sums, a, b)
#define _tile_loadconfig(from) memcpy(software_configuration, from, 64)
#define _tile_storeconfig(to) memcpy(to, software_configuration, 64)
#define _tile_release() memset(software_configuration, 0, 64)
