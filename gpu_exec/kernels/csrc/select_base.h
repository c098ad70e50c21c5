// What selection is made of: phases, arguments, scratch, bitmaps, histogram search.
//
// Selection is written as phases of independent iterations with a barrier between them, so that the same text
// runs as one CTA on a GPU and as plain loops on a CPU (where CI tests it bit by bit).
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define OASIS_DEVICE __device__ __forceinline__
#define OASIS_FOR(i, n) _Pragma("unroll 4") for (int i = threadIdx.x; i < (n); i += blockDim.x)
#define OASIS_ONCE if (threadIdx.x == 0)
#define OASIS_SYNC() __syncthreads()
#define OASIS_ADD(p, v) atomicAdd((p), (v))
#define OASIS_POPC(x) __popc(x)
#define OASIS_HIGHEST(x) (31 - __clz(x))
#else
#define OASIS_DEVICE static inline
#define OASIS_FOR(i, n) for (int i = 0; i < (n); ++i)
#define OASIS_ONCE
#define OASIS_SYNC()
template <class T>
static inline T oasis_add(T* p, T v) {
  T old = *p;
  *p += v;
  return old;
}
#define OASIS_ADD(p, v) oasis_add((p), (v))
#define OASIS_POPC(x) __builtin_popcount(x)
#define OASIS_HIGHEST(x) (31 - __builtin_clz(x))
#endif

namespace oasis {

constexpr int kPasses = 4;   // digits of 8 bits; fewer are needed when keys share a prefix
constexpr int kBins = 256;

// Scratch of one pair; the pointers lie in shared memory (sizes in select_scratch_bytes).
// Bitmaps over candidates are indexed by block - first_block.
struct SelectScratch {
  int* hist;           // [kPasses][kBins], bin 0 holds the largest digit
  uint32_t* key;       // [blocks] order-preserving image of the score
  uint32_t* target;    // [words] bitmap of the target
  uint32_t* resident;  // [words] bitmap of the residents before admission
  uint32_t* equal;     // [words] bitmap of keys equal to the threshold
  uint32_t* attend;    // [(pool + 31) / 32] bitmap of attended slots
  int* slot_block;     // [pool]
  int* stamp;          // [pool]
  uint64_t* need;      // [chosen] sort keys of needed blocks, unordered, best smallest
  uint64_t* evict_key; // [pool] sort keys of the slots outside the target
  int* admit;          // [chosen] admitted blocks in target order
  int* evictable;      // [pool] slots outside the target
  int* place;          // [pool] slot of the j-th admitted block
  int* scalar;         // [8]
};

enum { kOr, kAnd, kEvictable, kFree, kNeeded, kMoveBase };

struct SelectArgs {
  const float* scores;    // [pairs][score_stride], indexed by block
  int* slot_block;        // [pairs][pool] block in the slot, -1 when free
  int* stamp;             // [pairs][pool] step of the last selection
  int* attend_unit;       // [pairs][attend_stride] units to attend next
  int* attend_count;      // [pairs]
  int* counts;            // [pairs][2]: needed, admitted (statistics)
  long long* move_end;    // end of this layer's list, advanced by every pair
  long long* move_source; // host unit of each move
  int* move_target;       // unit in the layer's pool of each move
  long long score_stride, attend_stride;
  long long logical_base; // layer * heads_total * max_blocks is folded in by the caller
  long long pair_stride;  // logical host units between consecutive pairs of one layer and request
  long long request_stride;
  long long host_units;
  long long move_begin;   // begin of this layer's list
  int heads, pool, chosen, cap, slots_per_pair, first_block, recent_blocks, block_tokens;
  int aliased;
};

OASIS_DEVICE uint32_t score_key(float score) {
  float canonical = score + 0.0f;  // -0 ties with +0
  uint32_t bits;
#ifdef __CUDACC__
  bits = __float_as_uint(canonical);
#else
  __builtin_memcpy(&bits, &canonical, 4);
#endif
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Modelled host unit -> unit of the pinned pool (twin: HostPlacement in gpu_exec/moves.py).
OASIS_DEVICE long long place_unit(long long logical, long long units, int aliased) {
  if (!aliased) return logical;
  uint64_t x = static_cast<uint64_t>(logical);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<long long>((x ^ (x >> 31)) % static_cast<uint64_t>(units));
}

OASIS_DEVICE bool test_bit(const uint32_t* map, int i) { return map[i >> 5] >> (i & 31) & 1u; }

OASIS_DEVICE int bits_below(const uint32_t* map, int i) {
  int n = 0;
  for (int w = 0; w < (i >> 5); ++w) n += OASIS_POPC(map[w]);
  return n + OASIS_POPC(map[i >> 5] & ((1u << (i & 31)) - 1u));
}

// Set bit i of `map` to test(i) for all i below n; whole words are written.
template <class Test>
OASIS_DEVICE void fill_bits(uint32_t* map, int n, Test test) {
#ifdef __CUDACC__
  int padded = (n + 31) & ~31;
#pragma unroll 4
  for (int i = threadIdx.x; i < padded; i += blockDim.x) {
    uint32_t word = __ballot_sync(0xffffffffu, i < n && test(i));
    if ((i & 31) == 0) map[i >> 5] = word;
  }
#else
  for (int w = 0; w < (n + 31) / 32; ++w) map[w] = 0;
  for (int i = 0; i < n; ++i)
    if (test(i)) map[i >> 5] |= 1u << (i & 31);
#endif
}

OASIS_DEVICE void set_bit(uint32_t* map, int i) {
#ifdef __CUDACC__
  atomicOr(&map[i >> 5], 1u << (i & 31));
#else
  map[i >> 5] |= 1u << (i & 31);
#endif
}

// Ascending by `major`, then by block.
OASIS_DEVICE uint64_t sort_key(uint32_t major, int block) {
  return static_cast<uint64_t>(major) << 32 | static_cast<uint32_t>(block);
}

OASIS_DEVICE int count_less(const uint64_t* keys, int n, uint64_t key) {
  int count = 0;
#ifdef __CUDACC__
#pragma unroll 8
#endif
  for (int i = 0; i < n; ++i) count += keys[i] < key;
  return count;
}

struct Bin {
  int digit, above, inside;
};

// Find the bin, from the largest digit, in which the running count reaches `need`.
OASIS_DEVICE Bin find_bin(const int* hist, int need) {
#ifdef __CUDACC__
  const int lane = threadIdx.x & 31;  // every warp looks for itself: no barrier afterwards
  int4 a = reinterpret_cast<const int4*>(hist)[2 * lane];
  int4 b = reinterpret_cast<const int4*>(hist)[2 * lane + 1];
  int count[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += count[i];
  int upto = sum;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    int other = __shfl_up_sync(0xffffffffu, upto, d);
    if (lane >= d) upto += other;
  }
  int above = upto - sum, bin = 0, inside = 0, before = above;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (before < need) bin = i, above = before, inside = count[i];
    before += count[i];
  }
  int owner = __ffs(__ballot_sync(0xffffffffu, upto >= need)) - 1;
  return {255 - __shfl_sync(0xffffffffu, lane * 8 + bin, owner),
          __shfl_sync(0xffffffffu, above, owner), __shfl_sync(0xffffffffu, inside, owner)};
#else
  int above = 0, bin = 0;
  while (above + hist[bin] < need) above += hist[bin++];
  return {255 - bin, above, hist[bin]};
#endif
}

}  // namespace oasis
