// Order of elements in KV units and key tiles (twin: gpu_exec/kernels/layout.py).
#pragma once

#ifdef __CUDACC__
#define OASIS_BOTH __host__ __device__ __forceinline__
#else
#define OASIS_BOTH static inline
#endif

namespace oasis {

// An operand tile [16 rows x 16 columns] of 16-bit elements is stored in register order: lane l
// holds 16 bytes = rows l/4, l/4+8 x columns 2(l%4), +1, +8, +9.
OASIS_BOTH int operand_index(int row, int col) {
  int lane = (row & 7) * 4 + ((col & 7) >> 1);
  int reg = (row >> 3) + 2 * (col >> 3);
  return lane * 8 + reg * 2 + (col & 1);
}

// Element index inside a tile of K[token][d]: rows are tokens.
OASIS_BOTH int key_index(int token, int d) {
  return (d >> 4) * 256 + operand_index(token, d & 15);
}

// Element index inside a tile of V[token][d]: rows are dimensions.
OASIS_BOTH int value_index(int token, int d) {
  return (d >> 4) * 256 + operand_index(d & 15, token);
}

// Byte offset inside a key tile of element k of block row r: k < D is max[k], else min[k - D].
OASIS_BOTH int bound_offset(int r, int k, int fp8) {
  int inside = operand_index(r, k & 15);
  if (!fp8) return ((k >> 4) * 256 + inside) * 2;
  int lane = inside >> 3, rest = inside & 7;
  return (k >> 5) * 512 + lane * 16 + ((k >> 4) & 1) * 8 + rest;
}

}  // namespace oasis
